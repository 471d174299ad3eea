"""One view of a model on disk, whether it is a GGUF file or a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from gristmill.core.errors import ModelFileError
from gristmill.weights.gguf_checkpoint import GgufCheckpoint
from gristmill.weights.safetensors_folder import SafetensorsFolder
from gristmill.weights.stored import GgufTokenizerMetadata, HuggingFaceTokenizerFiles, StoredTensor


class Checkpoint(Protocol):
    """A model's files, read and checked. Everything is in Hugging Face's names and shapes."""

    @property
    def path(self) -> Path:
        """The file (the first of a split set) or the folder."""
        ...

    @property
    def config(self) -> Mapping[str, Any]:
        """What config.json says, or what GGUF metadata says in its terms."""
        ...

    @property
    def generation_config(self) -> Mapping[str, Any]:
        """What generation_config.json says; empty if there is none."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The Jinja source; None for a base model."""
        ...

    @property
    def tokenizer_files(self) -> HuggingFaceTokenizerFiles | GgufTokenizerMetadata:
        """Plain data from which the caller makes a tokenizer. Raises: ModelFileError if the model has none."""
        ...

    @property
    def norms_include_one(self) -> bool:
        """True if norm weights that Hugging Face stores minus one are stored whole (GGUF)."""
        ...

    def special_tokens(self) -> dict[str, str]:
        """Return `bos_token` and `eos_token` as text, for chat templates; empty texts where there is none."""
        ...

    def names(self) -> list[str]:
        """Return the canonical names of the stored tensors, in the file's order."""
        ...

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor by its canonical name. Raises: ModelFileError naming it if it is missing or unsupported."""
        ...

    def content_id(self) -> str:
        """Return the SHA-256 of everything that the model's answers depend on."""
        ...


def open_checkpoint(path: Path) -> Checkpoint:
    """Read the headers of a .gguf file or a Hugging Face folder; weights stay on disk.

    Raises: ModelFileError naming the file, key or tensor.
    """
    if path.suffix == ".safetensors" and not path.is_dir():
        raise ModelFileError(
            f"{path.name} has weights only; its config and tokenizer lie beside it.", "give the folder it is in."
        )
    checkpoint: Checkpoint = SafetensorsFolder(path) if path.is_dir() else GgufCheckpoint(path)
    _check_layers(checkpoint)
    return checkpoint


def _check_layers(checkpoint: Checkpoint) -> None:
    """Every layer has tensors; a claim of more would have a graph built of layers that are not there."""
    text = checkpoint.config.get("text_config")
    for config in (checkpoint.config, text if isinstance(text, Mapping) else {}):
        num_layers, num_tensors = config.get("num_hidden_layers"), len(checkpoint.names())
        if isinstance(num_layers, int) and num_layers > num_tensors:
            raise ModelFileError(
                f"{checkpoint.path.name} claims {num_layers:,} layers, but has {num_tensors:,} tensors.", "fetch the model again."
            )
