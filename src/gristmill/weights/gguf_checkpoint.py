"""A GGUF file seen as a checkpoint: Hugging Face's names, config and row order."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import ModelFileError
from gristmill.weights.content import content_id
from gristmill.weights.gguf import read_gguf
from gristmill.weights.gguf_config import config_of, generation_config_of
from gristmill.weights.gguf_names import canonical_name
from gristmill.weights.stored import GgufTokenizerMetadata, StoredTensor

# The converters of these interleave the halves of each head's rows of q and k, for a rope of neighbouring pairs.
_INTERLEAVED = ("llama", "mistral")


class GgufCheckpoint:
    """A model in a GGUF file, or in the parts of a split one. Satisfies `checkpoint.Checkpoint`."""

    norms_include_one = True

    def __init__(self, path: Path) -> None:
        """Read the file's header. Raises: ModelFileError."""
        self.path = path
        self._file = read_gguf(path)
        self.config: Mapping[str, Any] = config_of(self._file)
        self.generation_config: Mapping[str, Any] = generation_config_of(self._file)
        self._architecture = str(self._file.metadata["general.architecture"])
        self._stored_names = {canonical_name(name, self._architecture): name for name in self._file.tensors}

    @cached_property
    def tokenizer_files(self) -> GgufTokenizerMetadata:
        """The metadata; which of it concerns the tokenizer is the tokenizer's affair."""
        return GgufTokenizerMetadata(self._file.metadata)

    @property
    def chat_template(self) -> str | None:
        """The Jinja source, if the file has one."""
        template = self._file.metadata.get("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def special_tokens(self) -> dict[str, str]:
        """Return `bos_token` and `eos_token` as text."""
        return {name: self._token(self._file.metadata.get(f"tokenizer.ggml.{name}_id")) for name in ("bos_token", "eos_token")}

    def names(self) -> list[str]:
        """Return the canonical names, in the file's order."""
        return list(self._stored_names)

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor by its canonical name. Raises: ModelFileError naming it."""
        stored_name = self._stored_names.get(name)
        if stored_name is None:
            raise ModelFileError(f"{self.path.name} has no tensor for {name}.", "fetch the file again, or take another one.")
        tensor = self._file.tensors[stored_name]
        return StoredTensor(
            name, tensor.type, tensor.shape, tensor.file, tensor.start, tensor.num_bytes, self._row_ids(name, tensor.shape)
        )

    def content_id(self) -> str:
        """Return the SHA-256 of the file, or of the hashes of its parts."""
        return content_id(self._file.paths)

    def _token(self, token_id: Any) -> str:
        tokens = self._file.metadata.get("tokenizer.ggml.tokens")
        if not isinstance(tokens, list) or not isinstance(token_id, int) or not 0 <= token_id < len(tokens):
            return ""
        return str(tokens[token_id])

    def _row_ids(self, name: str, shape: tuple[int, ...]) -> NDArray[np.int64] | None:
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2] if "." in name else "")
        if heads is None or self._architecture not in _INTERLEAVED:
            return None
        num_heads = self.config.get(heads, self.config.get("num_attention_heads"))
        if not isinstance(num_heads, int) or num_heads <= 0 or shape[0] % (2 * num_heads):
            raise ModelFileError(
                f"the tensor {name} has {shape[0]} rows, which {num_heads} heads cannot share evenly.",
                "check the file's metadata.",
            )
        return np.arange(shape[0], dtype=np.int64).reshape(num_heads, -1, 2).swapaxes(1, 2).reshape(-1)
