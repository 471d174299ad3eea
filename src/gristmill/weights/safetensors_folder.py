"""A Hugging Face folder seen as a checkpoint: safetensors (single or sharded), config and tokenizer files."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import ModelFileError
from gristmill.weights.content import content_id
from gristmill.weights.safetensors_file import TYPES, SafetensorsTensor, read_safetensors
from gristmill.weights.stored import HuggingFaceTokenizerFiles, StoredTensor

INDEX_NAME = "model.safetensors.index.json"
# What an answer depends on beside the weights.
SIDE_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
)
_MAX_JSON_BYTES = 256 << 20
_MEND = "fetch the model again, or take it from another source."


class SafetensorsFolder:
    """A model in a folder. Satisfies `checkpoint.Checkpoint`."""

    norms_include_one = False

    def __init__(self, path: Path) -> None:
        """Read the headers and config.json. Raises: ModelFileError."""
        self.path = path
        self.config: Mapping[str, Any] = read_json(path / "config.json")
        if quantization := self.config.get("quantization_config"):
            method = quantization.get("quant_method", "?") if isinstance(quantization, dict) else "?"
            raise ModelFileError(
                f"{path.name} is quantized by {method!r}, which is not supported.", "take the original weights, or a GGUF file."
            )
        self.generation_config: Mapping[str, Any] = _read_optional(path / "generation_config.json")
        self._tokenizer_config = _read_optional(path / "tokenizer_config.json")
        self._shards = find_shards(path)
        self._tensors = _read_shards(self._shards, path)

    @property
    def tokenizer_files(self) -> HuggingFaceTokenizerFiles:
        """tokenizer.json and its configuration. Raises: ModelFileError if there is no tokenizer.json."""
        file = self.path / "tokenizer.json"
        if not file.is_file():
            raise ModelFileError(
                f"{self.path.name} has no tokenizer.json.", "save the tokenizer in that form with Hugging Face's AutoTokenizer."
            )
        return HuggingFaceTokenizerFiles(_read_text(file), self._tokenizer_config)

    @property
    def chat_template(self) -> str | None:
        """chat_template.jinja, else the template (the default one of several) of the JSON files."""
        file = self.path / "chat_template.jinja"
        if file.is_file():
            return _read_text(file)
        for source in (_read_optional(self.path / "chat_template.json"), self._tokenizer_config):
            template = source.get("chat_template")
            if isinstance(template, list):
                named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
                template = named.get("default")
            if isinstance(template, str):
                return template
        return None

    def special_tokens(self) -> dict[str, str]:
        """Return `bos_token` and `eos_token` as text."""
        return {name: _token_text(self._tokenizer_config.get(name)) for name in ("bos_token", "eos_token")}

    def names(self) -> list[str]:
        """Return the names of the tensors whose types are ours."""
        return [name for name, tensor in self._tensors.items() if tensor.type in TYPES]

    def stored(self, name: str) -> StoredTensor:
        """Return a tensor. Raises: ModelFileError naming it if it is missing or of a type that is not ours."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{self.path.name} has no tensor {name}.", _MEND)
        if tensor.type not in TYPES:
            raise ModelFileError(
                f"the tensor {name} is stored as {tensor.type[:40]!r}; supported are {', '.join(TYPES)}.",
                "take the original weights.",
            )
        return StoredTensor(name, TYPES[tensor.type], tensor.shape, tensor.file, tensor.start, tensor.num_bytes)

    def content_id(self) -> str:
        """Return the SHA-256 over the hashes of all files that answers depend on."""
        files = [*self._shards, *(self.path / name for name in SIDE_FILES)]
        return content_id([file for file in files if file.is_file()])


def find_shards(folder: Path) -> list[Path]:
    """Return the safetensors files of a folder, in order. Raises: ModelFileError if there are none."""
    if (folder / INDEX_NAME).is_file():
        return [folder / name for name in _indexed(folder)]
    if (folder / "model.safetensors").is_file():
        return [folder / "model.safetensors"]
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if not found and any(folder.glob("*.bin")):
        raise ModelFileError(f"{folder.name} has pickled weights, which are never read.", "convert them to safetensors.")
    raise ModelFileError(
        f"{folder.name} has {len(found) or 'no'} safetensors files and no {INDEX_NAME}.", "fetch the whole folder of the model."
    )


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object. Raises: ModelFileError naming the file."""
    try:
        found = json.loads(_read_text(path))
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{path.name} is not JSON: {str(error)[:200]}.", _MEND) from error
    if not isinstance(found, dict):
        raise ModelFileError(f"{path.name} holds no object.", _MEND)
    return found


def _read_optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}


def _read_text(path: Path) -> str:
    try:
        if not path.is_file() or path.stat().st_size > _MAX_JSON_BYTES:
            raise ModelFileError(f"{path} is no file of at most {_MAX_JSON_BYTES:,} bytes.", _MEND)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelFileError(f"{path} cannot be read: {error}.", _MEND) from error


def _indexed(folder: Path) -> list[str]:
    """Return the shards that an index names; a name that leads out of the folder is refused."""
    weight_map = read_json(folder / INDEX_NAME).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelFileError(f"{INDEX_NAME} has no weight_map.", _MEND)
    names = set(map(str, weight_map.values()))
    for name in names:
        if Path(name).name != name or "\\" in name or not name.endswith(".safetensors"):
            raise ModelFileError(
                f"{INDEX_NAME} names the file {name[:200]!r}, which is no safetensors file of this folder.", _MEND
            )
        if not (folder / name).is_file():
            raise ModelFileError(f"the shard {name} is missing.", "put all shards in one folder.")
    return sorted(names)


def _read_shards(shards: list[Path], folder: Path) -> dict[str, SafetensorsTensor]:
    tensors: dict[str, SafetensorsTensor] = {}
    for shard in shards:
        more = read_safetensors(shard)
        if twice := tensors.keys() & more.keys():
            raise ModelFileError(f"the tensor {min(twice)[:200]!r} is in two shards.", _MEND)
        tensors |= more
    if (folder / INDEX_NAME).is_file():
        missing = [name for name in read_json(folder / INDEX_NAME)["weight_map"] if name not in tensors]
        if missing:
            raise ModelFileError(f"{INDEX_NAME} names the tensor {missing[0][:200]!r}, which no shard has.", _MEND)
    return tensors


def _token_text(token: Any) -> str:
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else ""
