"""Run folders: `results/<run_id>/run.json` and `samples.jsonl`, and `results/runs.jsonl` over all runs.

A run is found again by its hash. One that is not finished resumes: scored samples stay, failed ones are taken out
and run again, or only scored again where they have an answer. A finished one is shown; if its file has lost samples,
it resumes. One process at a time works on a run.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, NamedTuple, TypeVar

from filelock import FileLock, Timeout
from pydantic import BaseModel, ValidationError

from velox_eval.errors import StoreError
from velox_eval.records import jsonl
from velox_eval.records.output import why_not_into
from velox_eval.records.schema import SCHEMA_VERSION, RunHeader, RunRow, SampleRecord, run_row

HASH_DIGITS = 12
M = TypeVar("M", bound=BaseModel)
_LOCK_SECONDS = 30


class StoredRun(NamedTuple):
    """A run as it was read: header, and samples in the task's order."""

    header: RunHeader
    samples: list[SampleRecord]


def load_run(path: Path | str) -> StoredRun:
    """Returns the run in folder `path`, finished or not, without changing it; samples come sorted by index.

    Raises StoreError naming file, line and field of what cannot be read, and for a finished run that lost samples.
    """
    folder = Path(path)
    header = _read_header(folder)
    samples = _read_samples(folder / "samples.jsonl")
    if lost := _lost(header, samples):
        raise StoreError(
            f"{folder / 'samples.jsonl'} has lost {lost} of the {len(samples) + lost} samples of a finished run; "
            "put the file back, or give the run's command again: it makes them anew"
        )
    return StoredRun(header, samples)


def load_header(path: Path | str) -> RunHeader:
    """Returns the header of the run in folder `path`. Raises StoreError naming file and field."""
    return _read_header(Path(path))


def find_run(run: str, results: Path | str) -> Path:
    """Returns the folder of `run`: a path, or a run id (or its unique beginning) under `results`.

    Raises StoreError when there is none, or more than one.
    """
    direct = Path(run)
    if (direct / "run.json").is_file():
        return direct
    root = Path(results)
    known = sorted(p.parent for p in root.glob("*/run.json"))
    hits = [p for p in known if p.name == run] or [p for p in known if run and p.name.startswith(run)]
    if len(hits) == 1:
        return hits[0]
    if hits:
        raise StoreError(f"run {run!r} is not unique under {root}: {', '.join(p.name for p in hits)}")
    raise StoreError(f"no run {run!r} under {root}; known: {', '.join(p.name for p in known) or 'none'}")


class RunStore:
    """The results folder."""

    def __init__(self, root: Path | str) -> None:
        self.root = Path(root)

    def open(self, config_hash: str, new_header: Callable[[str], RunHeader], *, again: bool = False) -> RunFolder:
        """Returns the folder to work in: the latest run of this hash, or a new one.

        `new_header(run_id)` makes a new run's header. `again` starts anew whatever is there. Raises
        StoreError when another process works on the run, or a stored file cannot be read or written.
        """
        self.check()
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with self._locked():
                return self._open(config_hash, new_header, again)
        except OSError as error:
            raise StoreError(f"cannot use the results folder {self.root}: {error.strerror or error}") from error

    def check(self) -> None:
        """Raises StoreError where a run's end could not be recorded: a folder that cannot be one, a damaged runs.jsonl.

        Writes nothing. For whoever is about to do work that should not be done in vain.
        """
        path = self.root / "runs.jsonl"
        try:
            jsonl.read(path)
            if path.exists():
                path.open("r+b").close()
        except OSError as error:
            raise StoreError(f"cannot use {path}: {error.strerror or error}") from error
        if why := why_not_into(self.root):
            raise StoreError(f"cannot use the results folder {self.root}: {why}")

    def is_finished(self, config_hash: str) -> bool:
        """Returns whether the latest run of this hash is finished, which `open` would show."""
        numbers = self._numbers(config_hash)
        if not numbers:
            return False
        header = _read_header(self._folder(config_hash, numbers[-1]))
        return header.config_hash == config_hash and header.status == "success"

    def _open(self, config_hash: str, new_header: Callable[[str], RunHeader], again: bool) -> RunFolder:
        numbers = self._numbers(config_hash)
        latest = self._folder(config_hash, numbers[-1]) if numbers else None
        if latest is not None and not again:
            header = _read_header(latest)
            if header.config_hash == config_hash:
                return _reopen(self, latest, header)
        run_id = f"{config_hash[:HASH_DIGITS]}-{numbers[-1] + 1 if numbers else 1}"
        folder = self.root / run_id
        folder.mkdir(exist_ok=True)  # left by a process killed before it wrote run.json
        if (folder / "samples.jsonl").exists():
            raise StoreError(f"{folder} has samples but no run.json; move it away")
        lock = _lock(folder)
        header = new_header(run_id)
        jsonl.replace(folder / "run.json", _to_json(header))
        return RunFolder(self, folder, header, "new", [], lock)

    def _numbers(self, config_hash: str) -> list[int]:
        pattern = re.compile(re.escape(config_hash[:HASH_DIGITS]) + r"-([1-9]\d*)")
        names = (pattern.fullmatch(p.parent.name) for p in self.root.glob("*/run.json"))
        return sorted(int(match[1]) for match in names if match)

    def _folder(self, config_hash: str, number: int) -> Path:
        return self.root / f"{config_hash[:HASH_DIGITS]}-{number}"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = FileLock(self.root / ".lock", timeout=_LOCK_SECONDS)
        try:
            lock.acquire()
        except Timeout as error:
            raise StoreError(f"{self.root} has been locked by another process for {_LOCK_SECONDS} s") from error
        try:
            yield
        finally:
            lock.release()

    def put_row(self, row: RunRow) -> None:
        """Adds the run's line to runs.jsonl, in the place of an earlier one of the same run."""
        path = self.root / "runs.jsonl"
        new = row.model_dump(mode="json")
        with self._locked():
            jsonl.repair(path)
            rows = jsonl.read(path).rows
            if any(old.get("run_id") == row.run_id for old in rows):
                jsonl.rewrite(path, [new if old.get("run_id") == row.run_id else old for old in rows])
            else:
                jsonl.append(path, new)

    def rows(self) -> list[RunRow]:
        """Returns the finished runs, in the order they were first finished."""
        path = self.root / "runs.jsonl"
        return [_parse(RunRow, row, f"{path}:{i}") for i, row in enumerate(jsonl.read(path).rows, 1)]


class RunFolder:
    """One run's folder, locked for this process until closed; `state` says what was found there.

    new: nothing; resumed: `samples` are done; finished: `samples` are all, and nothing can be written.
    `done` holds the ids of the samples on record.
    `repaired` says in a sentence what had to be repaired on opening. `unscored` are samples that had an answer whose
    scoring failed: they are not on record until they are scored again.
    """

    def __init__(
        self,
        store: RunStore,
        path: Path,
        header: RunHeader,
        state: Literal["new", "resumed", "finished"],
        samples: list[SampleRecord],
        lock: FileLock | None,
        repaired: str | None = None,
        unscored: Sequence[SampleRecord] = (),
    ) -> None:
        self.store = store
        self.path = path
        self.header = header
        self.state = state
        self.samples = samples
        self.done = {record.sample_id for record in samples}
        self.repaired = repaired
        self.unscored = unscored
        self._lock = lock

    def append(self, record: SampleRecord) -> None:
        """Records one sample; it is on disk when this returns. Raises StoreError if it already is there."""
        self._writable()
        if record.sample_id in self.done:
            raise StoreError(f"{self.path}: sample {record.sample_id!r} is already recorded")
        path = self.path / "samples.jsonl"
        try:
            jsonl.append(path, record.model_dump(mode="json"))
        except OSError as error:
            raise StoreError(f"cannot write {path}: {error.strerror or error}") from error
        self.samples.append(record)
        self.done.add(record.sample_id)

    def reread(self) -> None:
        """Takes what is on disk for what is done: Ctrl-C may have come between writing a sample and noting it."""
        path = self.path / "samples.jsonl"
        if path.exists():
            jsonl.repair(path)
            self.samples = _read_samples(path)
            self.done = {record.sample_id for record in self.samples}

    def update(self, header: RunHeader) -> None:
        """Writes run.json anew, all or nothing; a header with `finished_at` also gets its line in runs.jsonl."""
        self._writable()
        try:
            if header.finished_at is not None:  # first: run.json alone decides whether the run is finished
                self.store.put_row(run_row(header))
            jsonl.replace(self.path / "run.json", _to_json(header))
        except OSError as error:
            raise StoreError(f"cannot write {self.path / 'run.json'}: {error.strerror or error}") from error
        self.header = header

    def _writable(self) -> None:
        if self._lock is None:
            raise StoreError(f"run {self.path} is not open for writing")

    def close(self) -> None:
        """Lets other processes work on the run."""
        if self._lock is not None:
            (self.path / ".pid").unlink(missing_ok=True)
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _reopen(store: RunStore, folder: Path, header: RunHeader) -> RunFolder:
    path = folder / "samples.jsonl"
    if header.status == "success":
        samples = _read_samples(path)
        if not _lost(header, samples):
            return RunFolder(store, folder, header, "finished", samples, None)
    lock = _lock(folder)
    try:
        header = _read_header(folder)
        repaired = jsonl.repair(path)
        samples = _read_samples(path)
        scored = [record for record in samples if record.status == "ok"]
        unscored = [record for record in samples if record.status == "error" and record.answer is not None]
        if len(scored) < len(samples):
            jsonl.rewrite(path, (record.model_dump(mode="json") for record in scored))
    except BaseException:
        lock.release()
        raise
    return RunFolder(store, folder, header, "resumed", scored, lock, repaired, unscored)


def _lost(header: RunHeader, samples: Sequence[SampleRecord]) -> int:
    """How many samples a finished run counted that its file does not have any more."""
    return max(0, header.summary.n - len(samples)) if header.finished_at and header.summary else 0


def _lock(folder: Path) -> FileLock:
    lock = FileLock(folder / ".lock", timeout=0)
    pid = folder / ".pid"
    try:
        lock.acquire()
    except Timeout as error:
        who = f"process {pid.read_text(encoding='ascii').strip()}" if pid.exists() else "another process"
        raise StoreError(f"run {folder} is being worked on by {who}; wait until that ends") from error
    pid.write_text(f"{os.getpid()}\n", encoding="ascii")
    return lock


def _to_json(header: RunHeader) -> str:
    return json.dumps(header.model_dump(mode="json"), indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _read_header(folder: Path) -> RunHeader:
    path = folder / "run.json"
    try:
        row = jsonl.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise StoreError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise StoreError(f"{path} is not JSON ({error}); move the folder away to start anew") from error
    version = row.get("schema_version") if isinstance(row, dict) else None
    if version != SCHEMA_VERSION:
        raise StoreError(f"{path} has schema version {version!r}; this velox-eval reads {SCHEMA_VERSION}")
    return _parse(RunHeader, row, str(path))


def _read_samples(path: Path) -> list[SampleRecord]:
    records = [_parse(SampleRecord, row, f"{path}:{i}") for i, row in enumerate(jsonl.read(path).rows, 1)]
    lines: dict[str, int] = {}
    for number, record in enumerate(records, 1):
        if record.sample_id in lines:
            first = lines[record.sample_id]
            raise StoreError(f"{path}:{number}: sample {record.sample_id!r} is already on line {first}")
        lines[record.sample_id] = number
    return sorted(records, key=lambda record: record.index)


def _parse(model: type[M], row: object, where: str) -> M:
    try:
        return model.model_validate(row)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "record"
        raise StoreError(f"{where}: {field}: {first['msg']}") from error
