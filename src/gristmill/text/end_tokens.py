"""Which tokens end an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from gristmill.text.template import ChatTemplate

if TYPE_CHECKING:
    from gristmill.text.tokenizer import Tokenizer

# Tokens that models were trained to end a turn with; one counts where the template itself writes it.
_CLOSING_TOKENS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end|>")


def end_tokens(tokenizer: Tokenizer, template: ChatTemplate | None, generation_config: Mapping[str, Any]) -> frozenset[int]:
    """Return every id that ends an answer.

    They are those of the model's files (GGUF's eos, eot and eom), of generation_config, and the control tokens with which
    the template closes an assistant's turn: found by rendering one, so that they need not be known by name.
    """
    listed = generation_config.get("eos_token_id")
    ids = {item for item in (listed if isinstance(listed, list) else [listed]) if isinstance(item, int)}
    return frozenset(ids) | tokenizer.end_token_ids | _closing_ids(tokenizer, template)


def _closing_ids(tokenizer: Tokenizer, template: ChatTemplate | None) -> frozenset[int]:
    if template is None or template.source is None:
        return frozenset()
    named = {tokenizer.token_to_id(token) for token in _CLOSING_TOKENS if token in template.source}
    found = {token_id for token_id in named if token_id in tokenizer.special_ids}
    closing = tokenizer.encode(template.closing_text().lstrip(), add_special_tokens=False)
    if closing and closing[0] in tokenizer.special_ids:
        found.add(closing[0])
    return frozenset(token_id for token_id in found if token_id is not None)
