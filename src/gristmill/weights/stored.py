"""What a checkpoint stores: tensors as the file has them, and the tokenizer's raw material."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.quant.block_types import BlockType
from gristmill.weights.mapped_file import MappedFile


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor under its canonical name; `raw` lies in the mapped file and may be unaligned.

    `row_ids` [N] says which stored row is canonical row i; None = row i.
    """

    name: str
    type: BlockType
    shape: tuple[int, ...]
    file: MappedFile
    start: int
    num_bytes: int
    row_ids: NDArray[np.int64] | None = None

    @property
    def raw(self) -> NDArray[np.uint8]:
        """The stored bytes."""
        return self.file.array(self.start, self.num_bytes)

    def forget(self) -> None:
        """Hand the pages of the stored bytes back; they can still be read."""
        self.file.forget(self.start, self.num_bytes)


@dataclass(frozen=True, slots=True)
class GgufTokenizerMetadata:
    """The key/values of a GGUF file, the tokenizer's among them."""

    metadata: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class HuggingFaceTokenizerFiles:
    """The tokenizer's files of a Hugging Face folder."""

    tokenizer_json: str
    tokenizer_config: Mapping[str, Any]
