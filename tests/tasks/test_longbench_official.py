"""LongBench's --source official: a real load_dataset of chained URLs, on a local server with the hub's protocol."""

from __future__ import annotations

import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.tasks.test_longbench import TEMPLATES, make_row
from tests.tasks.test_longbench_v2 import TEMPLATE, make_question
from velox_eval.tasks import task_info

# Apart from this process: conftest sets HF_HUB_OFFLINE, and datasets reads it when imported.
SCRIPT = """
import json, sys
from velox_eval.errors import DataError
from velox_eval.tasks import TaskOptions, get_task
try:
    task = get_task(sys.argv[1], TaskOptions(source="official", variant=sys.argv[2] or None))
    data = task.load()
    print(json.dumps({"prompts": [task.request(s).prompt for s in data.samples], "origin": data.origin,
                      "strata": [s.stratum for s in data.samples], "incomplete": data.incomplete}))
except DataError as error:
    print(json.dumps({"error": str(error)}))
"""


@dataclass
class Hub:
    """Serves data set repositories as the hub does, byte ranges included, and raw files of code repositories."""

    folder: Path
    base: str = ""
    asked: list[str] = field(default_factory=list)

    def place(self, repository: str, revision: str, file: str, *, hub: bool) -> Path:
        path = self.folder / ("hub" if hub else "raw") / repository / revision / file
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def put(self, task: str, archive: dict[str, str] | str, prompts: str, file: str = "") -> None:
        official = task_info(task).settings["official"]
        data, code = official["data"], official["prompts"]
        place = self.place(**data, hub=True)
        if isinstance(archive, str):
            place.write_text(archive)
        else:
            with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED) as zipped:
                for name, text in archive.items():
                    zipped.writestr(name, text)
        name = code.get("file") or f"{code['folder']}/{file}"
        self.place(code["repository"], code["revision"], name, hub=False).write_text(prompts)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    state = Hub(tmp_path / "served")

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.asked.append(self.path)
            if found := re.match(r"/api/datasets/(\w+/[\w-]+)/(revision|tree)/(\w+)", self.path):
                name, what, revision = found.groups()
                folder = state.folder / "hub" / name / revision
                files = [
                    {"type": "file", "path": path.name, "size": path.stat().st_size, "oid": "0" * 40}
                    for path in sorted(folder.glob("*"))
                ]
                about = {"id": name, "sha": revision, "siblings": [], "private": False, "tags": []}
                self.reply(json.dumps(about if what == "revision" else files).encode(), folder.is_dir())
            elif found := re.match(r"/datasets/(\w+/[\w-]+)/resolve/(\w+)/([\w.]+)$", self.path):
                self.send(state.folder / "hub" / found[1] / found[2] / found[3])
            else:
                self.send(state.folder / "raw" / self.path.lstrip("/").split("?")[0])

        def do_HEAD(self) -> None:
            self.do_GET()

        def send(self, path: Path) -> None:
            self.reply(path.read_bytes() if path.is_file() else b"", path.is_file())

        def reply(self, body: bytes, there: bool) -> None:
            part = re.match(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            self.send_response(206 if part and there else 200 if there else 404)
            if part and there:
                start, end = int(part[1]), min(int(part[2] or len(body)), len(body) - 1)
                self.send_header("Content-Range", f"bytes {start}-{end}/{len(body)}")
                body = body[start : end + 1]
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"0"')
            self.send_header("X-Repo-Commit", "0" * 40)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(io.BytesIO(body).getvalue())

        def log_message(self, *_: object) -> None:
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    state.base = f"http://127.0.0.1:{served.server_address[1]}"
    yield state
    served.shutdown()
    served.server_close()
    thread.join()


def load(tmp_path: Path, base: str, task: str = "longbench", variant: str = "", **env: str) -> Any:
    unset = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {key: value for key, value in os.environ.items() if key not in unset}
    environment |= {"VELOX_EVAL_CACHE": str(tmp_path / "cache"), "HF_HOME": str(tmp_path / "hf"), "NO_PROXY": "*"}
    # Two names for one server: what is under HF_ENDPOINT is the hub for datasets, the raw files must not be.
    environment |= {"HF_ENDPOINT": base, "VELOX_EVAL_RAW_BASE": base.replace("127.0.0.1", "localhost"), **env}
    command = [sys.executable, "-c", SCRIPT, task, variant]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def lines(*rows: dict[str, Any]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def test_data_sets_come_out_of_the_archive(tmp_path: Path, hub: Hub) -> None:
    """A line separator inside a text ends no row, and a row is what the archive says, character by character."""
    hotpotqa = [make_row(context="Zeile\u2028zwei \x85 “三”"), make_row(input="What?", _id="a2")]
    archive = {"data/hotpotqa.jsonl": lines(*hotpotqa), "data/lcc_e.jsonl": lines(make_row("lcc"))}
    hub.put("longbench", archive, json.dumps(TEMPLATES))
    got = load(tmp_path, hub.base, variant="hotpotqa,lcc_e")
    assert got["prompts"][0] == "Read.\nZeile\u2028zwei \x85 “三”\nNow: Who?\nAnswer:"
    assert got["strata"] == ["hotpotqa", "hotpotqa", "lcc_e"]
    assert got["incomplete"] == "hotpotqa has 2 of 200 rows"
    assert "5e628be450b7e67fb7ae6e201bd6d8f7056f7672" in got["origin"]


def test_what_is_not_there_is_named_with_the_way_out(tmp_path: Path, hub: Hub) -> None:
    hub.put("longbench", {"data/hotpotqa.jsonl": lines(make_row())}, json.dumps(TEMPLATES))
    error = load(tmp_path, hub.base, variant="lcc")["error"]
    assert f"cannot fetch zip://data/lcc.jsonl::{hub.base}/datasets/THUDM/LongBench/resolve/" in error
    assert "download data.zip from there and unpack it and give its folder with --data" in error
    assert "\n" not in error
    bad = load(tmp_path, hub.base, variant="hotpotqa", HF_HUB_OFFLINE="1")["error"]
    assert "HF_HUB_OFFLINE is set" in bad
    code = task_info("longbench").settings["official"]["prompts"]
    hub.place(**code, hub=False).unlink()
    missing = load(tmp_path, hub.base, variant="hotpotqa")["error"]
    assert "download dataset2prompt.json from there and put it in a folder config/ beside the data" in missing
    hub.put("longbench", "no archive", json.dumps(TEMPLATES))
    assert "cannot fetch zip://data/hotpotqa.jsonl" in load(tmp_path, hub.base, variant="hotpotqa")["error"]
    assert "cannot fetch" in load(tmp_path, "http://127.0.0.1:9", variant="hotpotqa")["error"]


def test_bad_content_names_archive_member_line_and_field(tmp_path: Path, hub: Hub) -> None:
    rows = lines(make_row(), make_row(answers=None, _id="b"))
    hub.put("longbench", {"data/hotpotqa.jsonl": rows}, json.dumps(TEMPLATES))
    error = load(tmp_path, hub.base, variant="hotpotqa")["error"]
    assert error.startswith(f"zip://data/hotpotqa.jsonl::{hub.base}")
    assert "line 2, field 'answers': expected a list of at least one string, got null" in error


def test_version_two_is_one_json_file(tmp_path: Path, hub: Hub) -> None:
    questions = [make_question(), make_question(_id="q2", question="Why?", context="Because\u2028so.")]
    hub.put("longbench_v2", json.dumps(questions, ensure_ascii=False), TEMPLATE, "0shot.txt")
    got = load(tmp_path, hub.base, "longbench_v2")
    assert got["prompts"][1] == "T: Because\u2028so.\nQ: Why?\n(A) one\n(B) two\n(C) three\n(D) four\n"
    assert got["incomplete"] == "2 of 503 rows"
    assert "2b48e494f2c7a2f0af81aae178e05c7e1dde0fe9/data.json" in got["origin"]
    hub.put("longbench_v2", json.dumps(questions), "no template", "0shot.txt")
    assert "is no prompt of LongBench v2" in load(tmp_path, hub.base, "longbench_v2")["error"]
