import json
import random

import pytest
from tests.models.goldens import ROOT

from gristmill.core.errors import ModelFileError, UnsupportedArchitecture
from gristmill.graph.recorder import record
from gristmill.models import gemma3, llama
from gristmill.models.registry import architectures, load_architecture


def test_a_configuration_is_served_by_the_file_of_its_model_type():
    assert load_architecture({"model_type": "llama"}) is llama.ARCHITECTURE
    assert load_architecture({"model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"]}) is gemma3.ARCHITECTURE
    assert load_architecture({"model_type": "gemma3", "architectures": ["Gemma3ForConditionalGeneration"]}) is gemma3.ARCHITECTURE


def test_every_file_of_the_folder_is_found():
    assert set(architectures()) == {"gemma3", "gemma3_text", "llama", "mistral", "phi3", "qwen2", "qwen3"}


def test_an_unknown_architecture_is_named_and_ours_are_listed():
    with pytest.raises(UnsupportedArchitecture) as error:
        load_architecture({"model_type": "mamba", "architectures": ["MambaForCausalLM"]})
    assert "'mamba'" in error.value.message
    assert all(name in error.value.message for name in architectures())


@pytest.mark.parametrize("config", [{}, {"model_type": 7}, {"model_type": None}, {"model_type": ["llama"]}])
def test_a_configuration_without_a_usable_model_type_is_refused(config):
    with pytest.raises(UnsupportedArchitecture):
        load_architecture(config)


def test_a_classifier_is_refused_by_its_class():
    with pytest.raises(UnsupportedArchitecture, match="LlamaForSequenceClassification"):
        load_architecture({"model_type": "llama", "architectures": ["LlamaForSequenceClassification"]})


JUNK = [None, True, -1, 0, 1, 7, 2**70, 10**400, -0.5, 1e308, float("nan"), float("inf"), "", "x", [], [1], {}, {"rope_type": []}]


def parses(config):
    try:
        architecture = load_architecture(config)
        record(architecture.build, architecture.parse(config, 64))
    except (ModelFileError, UnsupportedArchitecture):
        return False
    return True


@pytest.mark.parametrize("name", ["llama-llama3", "qwen2-window", "gemma3-softcap", "phi3-longrope-long"])
def test_a_mutated_configuration_parses_or_is_refused_clearly(name):
    golden, rng = json.loads((ROOT / name / "config.json").read_text()), random.Random(3)
    refused = 0
    for _ in range(400):
        config = json.loads(json.dumps(golden))
        places = [config, *(value for value in config.values() if isinstance(value, dict))]
        place = rng.choice(places)
        place[rng.choice(sorted(place))] = rng.choice(JUNK)
        refused += not parses(config)
    assert 40 < refused < 400
