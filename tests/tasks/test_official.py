"""--source official: a real load_dataset against a real local HTTP server; no network beyond this machine."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.conftest import make_row
from velox_eval.errors import DataError
from velox_eval.tasks import TaskOptions, get_task, task_info

# Apart from this process: conftest sets HF_HUB_OFFLINE, and datasets reads it when imported.
SCRIPT = """
import json, sys
from velox_eval.errors import DataError
from velox_eval.tasks import TaskOptions, get_task, sources
variant, base = sys.argv[1], sys.argv[2]
if base:
    sources._RAW_BASE = base
try:
    data = get_task("longgenbench", TaskOptions(source="official", variant=variant)).load()
    print(json.dumps({"rows": [dict(s.data) for s in data.samples], "origin": data.origin, "sha256": data.sha256}))
except DataError as error:
    print(json.dumps({"error": str(error)}))
"""


@dataclass
class Server:
    """Serves `folder` on 127.0.0.1 and remembers the paths asked for; `status` other than 200 breaks it."""

    folder: Path
    base: str = ""
    asked: list[str] = field(default_factory=list)
    status: int = 200

    def put(self, variant: str, content: str) -> None:
        official = task_info("longgenbench").settings["official"]
        path = self.folder / official["repository"] / official["revision"] / official["files"][variant]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    state = Server(tmp_path / "served")
    state.folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def send_head(self) -> Any:
            state.asked.append(self.path)
            if state.status != 200:
                self.send_error(state.status)
                return None
            return super().send_head()

        def log_message(self, *_: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=state.folder))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    state.base = f"http://127.0.0.1:{served.server_address[1]}"
    yield state
    served.shutdown()
    served.server_close()
    thread.join()


def load(tmp_path: Path, variant: str = "short", *, raw_base: str = "", usual_base: str = "", **env: str) -> Any:
    unset = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"VELOX_EVAL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "*"}
    environment |= {"VELOX_EVAL_RAW_BASE": raw_base, **env}
    command = [sys.executable, "-c", SCRIPT, variant, usual_base]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


ROWS = [
    make_row(checks_once={"2": "bakery"}, checks_range={}, checks_periodic={"4": "snack bar"}),
    make_row(checks_once={"3": "spa", "1": "café 图书馆"}, checks_periodic={}, type="Menu Week", number=52),
]


def test_rows_come_back_exactly(tmp_path: Path, server: Server) -> None:
    server.put("short", json.dumps(ROWS))
    server.put("long", json.dumps(ROWS[:1], indent=1))
    got = load(tmp_path, raw_base=server.base + "/")
    assert got["rows"] == ROWS
    assert got["origin"].startswith(server.base)
    assert "62c0e869219c225671a0b8f50217b0cd836b882b" in got["origin"]
    local = tmp_path / "same.json"
    local.write_text(json.dumps(ROWS))
    assert got["sha256"] == get_task("longgenbench", TaskOptions(data=str(local))).load().sha256
    assert load(tmp_path, "long", raw_base=server.base)["rows"] == ROWS[:1]
    server.put("short", json.dumps(ROWS[1:]))  # same place, new content: nothing stale
    assert load(tmp_path, raw_base=server.base)["rows"] == ROWS[1:]


def test_a_fetched_file_of_the_pinned_revision_is_kept_and_read_offline(tmp_path: Path, server: Server) -> None:
    server.put("short", json.dumps(ROWS))
    assert load(tmp_path, usual_base=server.base)["rows"] == ROWS
    server.asked.clear()
    assert load(tmp_path, usual_base=server.base, HF_HUB_OFFLINE="1")["rows"] == ROWS
    assert server.asked == []
    # another base is another source: the kept copy is not taken for it
    assert "error" in load(tmp_path, usual_base="https://example.org", raw_base=server.base, HF_HUB_OFFLINE="1")


@pytest.mark.parametrize("status", [404, 500])
def test_what_cannot_be_fetched_is_named_with_the_way_out(tmp_path: Path, server: Server, status: int) -> None:
    server.put("short", json.dumps(ROWS))
    server.status = status
    error = load(tmp_path, raw_base=server.base)["error"]
    assert f"cannot fetch {server.base}/mozhu621/LongGenBench/" in error
    assert "download Dataset_short.json" in error
    assert "--data PATH/Dataset_short.json" in error
    assert "\n" not in error


def test_no_server_is_the_same_as_no_network(tmp_path: Path) -> None:
    error = load(tmp_path, raw_base="http://127.0.0.1:9")["error"]
    assert "cannot fetch http://127.0.0.1:9/mozhu621" in error


def test_bad_content_names_the_url_and_line(tmp_path: Path, server: Server) -> None:
    server.put("short", json.dumps([make_row(number="four")]))
    error = load(tmp_path, raw_base=server.base)["error"]
    assert error.startswith(server.base)
    assert "line 1, field 'number': expected a whole number" in error


def test_offline_mode_is_respected_at_once(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("VELOX_EVAL_RAW_BASE", server.base)
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DataError, match="HF_HUB_OFFLINE is set"):
        get_task("longgenbench", TaskOptions(source="official")).load()
    assert server.asked == []
