import json
from pathlib import Path

import numpy as np
import pytest
from tests.weights.samples import CONFIG, llama_weights, write_folder, write_raw_safetensors, write_safetensors

from gristmill.core.errors import ModelFileError
from gristmill.quant.block_types import BlockType
from gristmill.weights.checkpoint import open_checkpoint
from gristmill.weights.safetensors_folder import SafetensorsFolder

NAMES = list(llama_weights())


def test_a_folder_of_one_file_and_one_of_shards_hold_the_same(tmp_path: Path) -> None:
    weights = llama_weights()
    one = open_checkpoint(write_folder(tmp_path / "one", weights))
    many = open_checkpoint(write_folder(tmp_path / "many", weights, shards=(NAMES[:3], NAMES[3:])))
    assert set(one.names()) == set(many.names()) == set(weights)
    for name, weight in weights.items():
        for checkpoint in (one, many):
            stored = checkpoint.stored(name)
            assert stored.shape == weight.shape
            assert np.array_equal(stored.raw.view(np.float32).reshape(weight.shape), weight)
    assert one.config["hidden_size"] == CONFIG["hidden_size"]
    assert not one.norms_include_one


def test_the_three_float_types_keep_their_names(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    arrays = {"a": ("F32", np.ones(4, np.float32)), "b": ("F16", np.ones(4, np.float16)), "c": ("BF16", np.ones(4, np.uint16))}
    write_safetensors(tmp_path / "model.safetensors", arrays)
    folder = SafetensorsFolder(tmp_path)
    assert [folder.stored(name).type for name in "abc"] == [BlockType.F32, BlockType.F16, BlockType.BF16]


def test_another_type_is_refused_by_name_only_when_it_is_needed(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    write_safetensors(
        tmp_path / "model.safetensors", {"ids": ("I64", np.ones(4, np.int64)), "w": ("F32", np.ones(4, np.float32))}
    )
    folder = SafetensorsFolder(tmp_path)
    assert folder.names() == ["w"]
    with pytest.raises(ModelFileError, match="'I64'"):
        folder.stored("ids")
    with pytest.raises(ModelFileError, match="no tensor other"):
        folder.stored("other")


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "..\\x.safetensors", "x.bin", ""]
)
def test_an_index_cannot_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"w": name}}))
    with pytest.raises(ModelFileError, match="no safetensors file of this folder"):
        SafetensorsFolder(tmp_path)


def test_a_missing_shard_and_a_missing_tensor_are_named(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama_weights(), shards=(NAMES[:3], NAMES[3:]))
    index = folder / "model.safetensors.index.json"
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": {**weight_map, "ghost": weight_map[NAMES[0]]}}))
    with pytest.raises(ModelFileError, match="'ghost', which no shard has"):
        SafetensorsFolder(folder)
    (folder / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelFileError, match="model-00002-of-00002"):
        SafetensorsFolder(folder)


@pytest.mark.parametrize("index", ["{", "[]", "{}", '{"weight_map": []}', '{"weight_map": {}}'])
def test_a_broken_index_is_refused(tmp_path: Path, index: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(ModelFileError, match="index"):
        SafetensorsFolder(tmp_path)


def test_pickled_weights_are_never_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelFileError, match="pickled weights, which are never read"):
        SafetensorsFolder(tmp_path)


def test_a_folder_without_weights_or_config_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"config\.json"):
        SafetensorsFolder(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelFileError, match="no safetensors"):
        SafetensorsFolder(tmp_path)


@pytest.mark.parametrize("config", ["", "[]", "[" * 100_000, "\xff", '{"a":' + "9" * 5000 + "}"])
def test_a_broken_config_is_named(tmp_path: Path, config: str) -> None:
    (tmp_path / "config.json").write_bytes(config.encode("latin-1"))
    with pytest.raises(ModelFileError, match=r"config\.json"):
        SafetensorsFolder(tmp_path)


def test_a_quantized_checkpoint_is_refused_by_its_method(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": {"quant_method": "awq"}}))
    with pytest.raises(ModelFileError, match="'awq'"):
        SafetensorsFolder(tmp_path)


def test_the_file_alone_is_answered_with_the_folder(tmp_path: Path) -> None:
    write_raw_safetensors(tmp_path / "model.safetensors", b"{}")
    with pytest.raises(ModelFileError) as caught:
        open_checkpoint(tmp_path / "model.safetensors")
    assert "folder" in caught.value.mend


def test_the_template_is_found_wherever_hugging_face_keeps_it(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "m", llama_weights())
    assert SafetensorsFolder(folder).chat_template is None
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"chat_template": named, "bos_token": {"content": "<s>"}, "eos_token": None})
    )
    assert SafetensorsFolder(folder).chat_template == "D"
    assert SafetensorsFolder(folder).special_tokens() == {"bos_token": "<s>", "eos_token": ""}
    (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": "C", "eos_token": "</s>"}))
    assert SafetensorsFolder(folder).chat_template == "C"
    (folder / "chat_template.json").write_text(json.dumps({"chat_template": "J"}))
    assert SafetensorsFolder(folder).chat_template == "J"
    (folder / "chat_template.jinja").write_text("F")
    assert SafetensorsFolder(folder).chat_template == "F"


def test_a_model_without_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    checkpoint = SafetensorsFolder(write_folder(tmp_path / "m", llama_weights()))
    with pytest.raises(ModelFileError, match=r"no tokenizer\.json"):
        _ = checkpoint.tokenizer_files
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    assert checkpoint.tokenizer_files.tokenizer_json == "{}"
