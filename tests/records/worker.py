"""Writes a run as fast as it can, in a process that tests kill: `worker.py RESULTS SAMPLES SECONDS_BETWEEN`."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from conftest import make_header, make_record

from velox_eval.errors import StoreError
from velox_eval.records.store import RunStore


def main(results: str, samples: int, pause: float) -> int:
    draft = make_header()
    try:
        folder = RunStore(results).open(draft.config_hash, make_header)
    except StoreError as error:
        print(error, file=sys.stderr)
        return 2
    with folder:
        print(folder.state, len(folder.samples), flush=True)
        if folder.state == "finished":
            return 0
        for index in range(samples):
            if f"s{index}" not in folder.done:
                folder.append(make_record(index, response="word " * 4000))
                print(index, flush=True)
                time.sleep(pause)
        folder.update(folder.header.model_copy(update={"status": "success", "created_at": datetime.now(UTC)}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
