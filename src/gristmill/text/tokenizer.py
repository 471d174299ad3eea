"""One tokenizer, whether it came as tokenizer.json or as GGUF metadata."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from tokenizers import Tokenizer as Pipeline

from gristmill.core.errors import InvalidRequest, ModelFileError
from gristmill.text.end_tokens import end_tokens
from gristmill.text.gguf import SpecialTokens, build_pipeline
from gristmill.text.template import ChatTemplate
from gristmill.text.token_bytes import TokenBytes

# For these classes Transformers takes BOS and EOS from the flags of tokenizer_config.json, whatever tokenizer.json says.
_FLAGGED_CLASSES = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer")
# Normal form C joins at most four characters into one (U+1F82 is the longest).
_CHARACTERS_COMPOSED_MAX = 4


@runtime_checkable
class HuggingFaceFiles(Protocol):
    """The tokenizer's files of a Hugging Face folder."""

    @property
    def tokenizer_json(self) -> str | bytes:
        """The file's content."""
        ...

    @property
    def tokenizer_config(self) -> Mapping[str, Any]:
        """The parsed file, empty if there is none."""
        ...


class GgufMetadata(Protocol):
    """The key/values of a GGUF file."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """All of them; the tokenizer's begin with `tokenizer.`."""
        ...


class Tokenizer:
    """Turns text into token ids and back. Immutable; safe to use from any thread."""

    def __init__(self, pipeline: Pipeline, special: SpecialTokens) -> None:
        self._pipeline = pipeline
        self._special = special
        vocabulary = pipeline.get_vocab(with_added_tokens=True)
        self._tokens = [""] * (max(vocabulary.values(), default=-1) + 1)
        for token, token_id in vocabulary.items():
            self._tokens[token_id] = token
        self._bytes = TokenBytes(self._tokens, pipeline.decoder)
        self.special_ids = frozenset(i for i, added in pipeline.get_added_tokens_decoder().items() if added.special)
        self.longest_token_chars = self._longest_token_chars()

    @classmethod
    def from_files(
        cls,
        files: HuggingFaceFiles | GgufMetadata,
        config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        chat_template: str | None,
    ) -> Tokenizer:
        """Build from a checkpoint's parts; `end_token_ids` then has the tokens with which `chat_template` closes a turn."""
        if isinstance(files, HuggingFaceFiles):
            tokenizer = cls.from_huggingface(files.tokenizer_json, files.tokenizer_config, generation_config, config)
        else:
            tokenizer = cls.from_gguf(files.metadata)
        template = ChatTemplate(chat_template, bos_token=tokenizer.bos_token, eos_token=tokenizer.eos_token)
        ends = end_tokens(tokenizer, template, generation_config)
        return tokenizer._ending_with(ends)

    @classmethod
    def from_huggingface(
        cls,
        tokenizer_json: str | bytes,
        tokenizer_config: Mapping[str, Any],
        generation_config: Mapping[str, Any],
        config: Mapping[str, Any],
    ) -> Tokenizer:
        """Build from the files of a Hugging Face folder. Raises: ModelFileError if tokenizer.json is broken."""
        text = tokenizer_json.decode("utf-8", "replace") if isinstance(tokenizer_json, bytes) else tokenizer_json
        try:
            pipeline = Pipeline.from_str(text)
        except Exception as error:  # the library raises bare Exception
            raise ModelFileError(f"tokenizer.json cannot be read: {error}.", "fetch the file again.") from error
        pipeline.no_truncation()
        pipeline.no_padding()
        return cls(pipeline, _special_tokens(pipeline, tokenizer_config, generation_config, config))

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, Any]) -> Tokenizer:
        """Build from the key/values of a GGUF file. Raises: ModelFileError naming the key."""
        return cls(*build_pipeline(metadata))

    @property
    def vocab_size(self) -> int:
        """Return one more than the highest token id; a model's logits may be wider (padding)."""
        return len(self._tokens)

    @property
    def bos_id(self) -> int | None:
        """Return the id of the beginning-of-text token, if there is one."""
        return self._special.bos_id

    @property
    def bos_token(self) -> str:
        """Return the text of the beginning-of-text token, or an empty string."""
        return self.id_to_token(self._special.bos_id)

    @property
    def eos_token(self) -> str:
        """Return the text of the end-of-text token, or an empty string."""
        return self.id_to_token(self._special.eos_id)

    @property
    def adds_bos(self) -> bool:
        """Return whether `encode(..., add_special_tokens=True)` begins with BOS."""
        return self.bos_id is not None and self.bos_id in self._special.prefix

    @property
    def end_token_ids(self) -> frozenset[int]:
        """Return the ids that end a generation: those of the model's files, after `from_files` those of its template too."""
        return self._special.end_ids

    @property
    def strips_leading_space(self) -> bool:
        """Return whether the first space of a whole text is the tokenizer's own and is dropped."""
        return self._bytes.strips_leading_space

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Return the token ids of `text`; special tokens written in it are recognised.

        BOS is never doubled: a text that already begins with it gets no second one.
        Raises: InvalidRequest if the text holds a lone surrogate.
        """
        try:
            # Unlike `encode`, the batch call lets other threads run, and skips the offsets that nobody reads.
            ids: list[int] = self._pipeline.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError as error:  # what the library makes of a str that is not Unicode text
            raise _surrogate_error(text) from error
        return self._with_specials(ids) if add_special_tokens else ids

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool) -> str:
        """Return the text of `ids`; bytes that are not UTF-8 become U+FFFD, each broken sequence one."""
        skipped = self.special_ids if skip_special_tokens else frozenset()
        data = b"".join([self._bytes[token_id] for token_id in ids if token_id not in skipped])
        if self.strips_leading_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """Return what the token contributes to a text; nothing for an id without a token."""
        return self._bytes[token_id]

    def id_to_token(self, token_id: int | None) -> str:
        """Return the token as it stands in the vocabulary; empty for an id without one."""
        return self._tokens[token_id] if token_id is not None and 0 <= token_id < len(self._tokens) else ""

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a token as it stands in the vocabulary."""
        token_id: int | None = self._pipeline.token_to_id(token)
        return token_id

    def to_json(self) -> str:
        """Return the tokenizer in the format of tokenizer.json."""
        text: str = self._pipeline.to_str()
        return text

    def _ending_with(self, end_ids: frozenset[int]) -> Tokenizer:
        other = copy(self)
        other._special = replace(self._special, end_ids=end_ids)
        return other

    def _with_specials(self, ids: list[int]) -> list[int]:
        prefix, suffix = self._special.prefix, self._special.suffix
        if ids[: len(prefix)] == list(prefix):
            prefix = ()
        if suffix and ids[-len(suffix) :] == list(suffix):
            suffix = ()
        return [*prefix, *ids, *suffix]

    def _longest_token_chars(self) -> int:
        # A byte-level token has one character per byte, so that its length is an upper bound for the text's.
        longest = max(map(len, self._tokens), default=1)
        normalizer = self._pipeline.normalizer
        composes = normalizer is not None and b"NF" in normalizer.__getstate__()
        return longest * (_CHARACTERS_COMPOSED_MAX if composes else 1)


def _special_tokens(
    pipeline: Pipeline, tokenizer_config: Mapping[str, Any], generation_config: Mapping[str, Any], config: Mapping[str, Any]
) -> SpecialTokens:
    bos_id = _named_id(pipeline, tokenizer_config, "bos_token", config)
    eos_id = _named_id(pipeline, tokenizer_config, "eos_token", config)
    prefix, suffix = _frame(pipeline)
    if str(tokenizer_config.get("tokenizer_class", "")).removesuffix("Fast") in _FLAGGED_CLASSES:
        prefix = (bos_id,) if tokenizer_config.get("add_bos_token", True) and bos_id is not None else ()
        suffix = (eos_id,) if tokenizer_config.get("add_eos_token", False) and eos_id is not None else ()
    ends = {*_ids(config.get("eos_token_id")), *_ids(generation_config.get("eos_token_id"))}
    if eos_id is not None:
        ends.add(eos_id)
    return SpecialTokens(bos_id, eos_id, prefix, suffix, frozenset(ends))


def _named_id(pipeline: Pipeline, tokenizer_config: Mapping[str, Any], name: str, config: Mapping[str, Any]) -> int | None:
    token = tokenizer_config.get(name)
    if isinstance(token, Mapping):
        token = token.get("content")
    if isinstance(token, str):
        token_id: int | None = pipeline.token_to_id(token)
        return token_id
    # An explicit null means that there is none; only where nothing is said does the model's own config decide.
    return None if name in tokenizer_config else next(iter(_ids(config.get(f"{name}_id"))), None)


def _ids(value: Any) -> Iterable[int]:
    values = value if isinstance(value, Sequence) else [value]
    return [item for item in values if isinstance(item, int) and not isinstance(item, bool)]


def _frame(pipeline: Pipeline) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return what the post-processor puts before and after a text."""
    bare = pipeline.encode("x", add_special_tokens=False).ids
    framed = pipeline.encode("x", add_special_tokens=True).ids
    start = next((i for i in range(len(framed)) if framed[i : i + len(bare)] == bare), 0)
    return tuple(framed[:start]), tuple(framed[start + len(bare) :])


def _surrogate_error(text: str) -> InvalidRequest:
    at = next(i for i, character in enumerate(text) if "\ud800" <= character <= "\udfff")
    return InvalidRequest(
        f"the text has a lone surrogate ({text[at]!r}) at character {at:,}, which is not Unicode text.",
        "send well-formed Unicode: a surrogate only as half of a pair.",
    )
