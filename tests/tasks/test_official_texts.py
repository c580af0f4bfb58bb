"""longwriter and longgenbench_qa from --source official: a real load_dataset of raw files on a local server."""

from __future__ import annotations

import functools
import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from velox_eval.tasks import task_info

# Apart from this process: conftest sets HF_HUB_OFFLINE, and datasets reads it when imported.
SCRIPT = """
import json, sys
from velox_eval.errors import DataError
from velox_eval.tasks import TaskOptions, get_task
for name, variant, entries in json.loads(sys.argv[1]):
    try:
        task = get_task(name, TaskOptions(source="official", variant=variant, entries=entries))
        data = task.load()
        requests = [task.request(sample) for sample in data.samples]
        found = {"prompts": [r.prompt for r in requests], "limits": [r.max_tokens for r in requests],
                 "data": [dict(s.data) for s in data.samples], "strata": [s.stratum for s in data.samples],
                 "origin": data.origin, "notes": data.notes, "incomplete": data.incomplete}
    except DataError as error:
        found = {"error": str(error)}
    print(json.dumps(found))
"""


class Raw:
    """A folder served as raw files of code repositories."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.base = ""

    def put(self, repository: str, revision: str, file: str, text: str) -> None:
        path = self.folder / repository / revision / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def load(self, *wanted: tuple[str, str | None, int | None]) -> list[Any]:
        unset = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
        environment = {key: value for key, value in os.environ.items() if key not in unset}
        environment |= {"VELOX_EVAL_CACHE": str(self.folder / "c"), "HF_HOME": str(self.folder / "h"), "NO_PROXY": "*"}
        command = [sys.executable, "-c", SCRIPT, json.dumps(wanted)]
        done = subprocess.run(
            command, env={**environment, "VELOX_EVAL_RAW_BASE": self.base}, capture_output=True, text=True, check=True
        )
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def raw(tmp_path: Path) -> Iterator[Raw]:
    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    state = Raw(tmp_path)
    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=tmp_path))
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    state.base = f"http://127.0.0.1:{served.server_address[1]}"
    yield state
    served.shutdown()
    served.server_close()
    thread.join()


def lines(*rows: dict[str, Any]) -> str:
    return "\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n"


def test_longwriter_reads_every_variant(raw: Raw) -> None:
    official = task_info("longwriter").settings["official"]
    english = {"prompt": "Write about 茶 in 500 words.", "type": "food", "length": 500}
    chinese = {"prompt": "写一篇300字的文章", "type": "food", "length": 300}
    ruler = {"prompt": "Write a guide of 1000 words.", "type": "guide", "length": 1000}
    for name, rows in (("all", (chinese, english)), ("en", (english,)), ("ruler", (ruler,))):
        raw.put(official["repository"], official["revision"], official["files"][name], lines(*rows))
    variants = (None, "all", "en", "zh", "ruler", "morphkv")
    default, whole, en, zh, long, morphkv = raw.load(*(("longwriter", name, None) for name in variants))
    assert default == whole
    assert whole["data"] == [chinese, english]
    assert whole["limits"] == [32768, 32768]
    assert en["data"] == [english]
    assert zh["data"] == [chinese]
    assert long["data"] == [ruler]
    assert (morphkv["data"], morphkv["limits"]) == ([english], [1000])
    assert official["revision"] in whole["origin"]
    assert whole["incomplete"] is None


def test_questions_are_read_as_the_authors_run_them(raw: Raw) -> None:
    settings = task_info("longgenbench_qa").settings["official"]
    home = (settings["repository"], settings["revision"])
    gsm8k, mmlu = settings["gsm8k"], settings["mmlu"]
    raw.put(*home, f"data/{gsm8k['examples']}", "Question_1:\nOne and one?\n\nAnswer_1:\n1 + 1 = 2.\nThe answer is 2.")
    rows = [
        {"question": f"How much is {i} and 1?", "answer": f"{i}+1=<<{i}+1={i + 1}>>\n#### {i + 1}"} for i in range(705)
    ]
    raw.put(gsm8k["rows_repository"], gsm8k["rows_revision"], gsm8k["rows_file"], lines(*rows))
    examples = "About birds.\n\nQ: Which one swims?\n(A) a (B) b (C) c (D) d\nA: Penguins do. The answer is (A)."
    raw.put(*home, f"data/{mmlu['examples']}", json.dumps({"birds": examples, "fish": examples}))
    table = '"Is it, so?",yes,no,"may, be",never,%s\n"Two\n\nlines?",a,b,c,d,B\nMore?,a,b,c,d,C\n'
    for subject, letter in (("birds", "A"), ("fish", "D")):
        raw.put(*home, f"data/{mmlu['rows']}/{subject}_test.csv", table % letter)
    wanted = (("longgenbench_qa", None, None), ("longgenbench_qa", "mmlu", 2), ("longwriter", "all", None))
    numbers, letters, missing = raw.load(*wanted)
    assert [len(item["solutions"]) for item in numbers["data"]] == [35] * 20
    assert numbers["data"][0]["solutions"]["9"] == "1"
    assert "Question_9:\nHow much is 0 and 1?" in numbers["prompts"][0]
    assert "Answer_1:\n1 + 1 = 2." in numbers["prompts"][0]
    assert "<<" not in numbers["prompts"][0]
    assert numbers["limits"] == [4096] * 20
    assert numbers["notes"] == ["the first 700 of 705 questions, as the authors run it"]
    assert letters["strata"] == ["birds", "fish"]
    assert letters["data"][1]["solutions"] == {"6": "D", "7": "B"}
    assert "Question_6:\nIs it, so?\n(A) yes (B) no (C) may, be (D) never" in letters["prompts"][0]
    assert "Question_7:\nTwo\n\nlines?\n(A) a (B) b (C) c (D) d" in letters["prompts"][0]
    assert "Answer_1:\nPenguins do. The answer is (A)." in letters["prompts"][0]
    assert "cannot fetch" in missing["error"]
    assert "longbench_write.jsonl" in missing["error"]
