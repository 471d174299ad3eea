from pathlib import Path

import pytest

from gristmill.core.errors import SettingsError
from gristmill.core.settings import EngineSettings, ServeSettings, resolve_settings


def test_flags_win_over_the_environment_and_the_environment_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max-num-seqs = 3\nport = 9001\nkv_memory = '1GiB'\n")
    environment = {"GRISTMILL_PORT": "9002", "GRISTMILL_MAX_STEP_TOKENS": "64"}
    settings = resolve_settings(ServeSettings, {"port": 9003}, environment, file)
    assert (settings.max_num_seqs, settings.port, settings.max_step_tokens, settings.kv_memory) == (3, 9003, 64, 2**30)


@pytest.mark.parametrize(
    "text", ["http://a.test,http://b.test:3000", " http://a.test  http://b.test:3000 ", "http://a.test, http://b.test:3000"]
)
def test_origins_in_the_environment_are_a_list(text: str) -> None:
    settings = resolve_settings(ServeSettings, {}, {"GRISTMILL_CORS_ORIGIN": text})
    assert settings.cors_origin == ("http://a.test", "http://b.test:3000")


def test_every_setting_can_come_from_the_environment() -> None:
    given = {
        f"GRISTMILL_{name.upper()}": ",".join(field.default) if isinstance(field.default, tuple) else str(field.default)
        for name, field in ServeSettings.model_fields.items()
        if field.default is not None
    }
    assert resolve_settings(ServeSettings, {}, given) == ServeSettings()


def test_an_unknown_key_names_the_nearest_known_one(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("max_num_seq = 3\n")
    with pytest.raises(SettingsError, match="max_num_seqs"):
        resolve_settings(EngineSettings, {}, {}, file)
    with pytest.raises(SettingsError, match="max_num_seqs"):
        resolve_settings(EngineSettings, {"max_num_seq": 3}, {})


def test_a_key_of_the_server_is_told_apart_from_an_unknown_one(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("log_format = 'json'\n")
    with pytest.raises(SettingsError, match="log_format") as refused:
        resolve_settings(EngineSettings, {}, {}, file)
    assert "gristmill serve" in refused.value.mend


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_num_seqs", 0),
        ("max_num_seqs", "many"),
        ("memory_utilization", 1.5),
        ("kv_memory", "12 parsecs"),
        ("threads", 0),
        ("threads", 1025),
        ("threads", 2**70),
        ("threads", True),
        ("kv_memory", 0),
        ("max_num_seqs", True),
        ("max_model_len", 1),
        ("target_step_ms", "inf"),
        ("target_step_ms", 1e300),
        ("memory_utilization", "nan"),
        ("cpu_isa", "mmx"),
        ("max_model_len", -1),
    ],
)
def test_a_wrong_value_is_refused_with_its_name(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        resolve_settings(EngineSettings, {key: value}, {})


@pytest.mark.parametrize(("key", "value"), [("drain_timeout_s", "inf"), ("drain_timeout_s", 1e300), ("sse_comment_s", 1e-9)])
def test_a_time_that_no_clock_can_wait_for_is_refused(key: str, value: object) -> None:
    with pytest.raises(SettingsError, match=key):
        resolve_settings(ServeSettings, {key: value}, {})


def test_a_broken_settings_file_says_so(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_text("= nonsense")
    with pytest.raises(SettingsError, match=r"settings\.toml"):
        resolve_settings(EngineSettings, {}, {}, file)
