"""lm-eval's own command line with our model in it, and our records of what it evaluated.

Releases of lm-eval up to 0.4.13 find no models of other packages; this imports ours first. While it runs, four names
of lm-eval's are replaced: its evaluation (outside and inside), so that costs and runs are recorded, its response
cache, whose keys hold the request alone, so that each configuration of ours has a file of its own, and its look-up of
tasks, so that a name it does not have is one line.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import lm_eval.api.model
import lm_eval.evaluator
from lm_eval.__main__ import HarnessCLI
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.utils import setup_logging

from velox_eval.engine.models import KNOWN_MODELS
from velox_eval.errors import ConfigError
from velox_eval.lm_eval_backend.model import VeloxLM
from velox_eval.lm_eval_backend.recording import add_costs, record_task
from velox_eval.records.output import check_folder
from velox_eval.records.store import RunStore
from velox_eval.runs.observer import Observer
from velox_eval.runs.recorder import RunResult
from velox_eval.tasks.lm_eval_loading import LOAD_ERRORS, tokenizer_folder

PROGRAM = "velox-eval lm-eval"


def launch(arguments: Sequence[str], *, results: Path, observer: Observer | None = None) -> list[RunResult]:
    """Runs lm-eval's command line and returns the runs it left under `results`; the model is `velox` unless named.

    Raises VeloxEvalError for what our model refuses; lm-eval itself may end the process (SystemExit).
    """
    runs: list[RunResult] = []
    index: dict[str, Any] = {}

    def record(lm: VeloxLM, tasks: dict[str, Any], found: Any) -> None:
        add_costs(lm, tasks, (found or {}).get("samples") or {})
        command = [PROGRAM, *arguments]
        for name, task in tasks.items():
            source: Literal["official", "data"] = "official" if _is_its_own(index.get(name)) else "data"
            run = record_task(lm, task, source=source, results=results, command=command, observer=observer)
            if run is not None:
                runs.append(run)

    setup_logging()
    parser = HarnessCLI()
    with (
        _preparing() as begin,
        _replaced(lm_eval, "simple_evaluate", _telling_tasks(index)),
        _replaced(lm_eval.evaluator, "evaluate", _recording(begin, record)),
        _own_caches(),
        _replaced(EvaluatorConfig, "process_tasks", _plainly(results)),
    ):
        with _command_line(arguments):
            chosen = parser.parse_args()
        _fill_in(chosen)
        parser.execute(chosen)
    return runs


@contextlib.contextmanager
def _preparing() -> Iterator[Callable[[], None]]:
    """Gives what to call when the evaluation begins; what lm-eval raises before is about what was asked: one line."""
    from datasets.exceptions import DatasetsError

    begun = False

    def begin() -> None:
        nonlocal begun
        begun = True

    try:
        yield begin
    except ModuleNotFoundError as error:
        raise ConfigError(f"lm-eval needs the package {error.name!r} for this: pip install {error.name}") from error
    except (*LOAD_ERRORS, DatasetsError) as error:
        if begun:
            raise
        lines = str(error).strip().splitlines() or [""]
        raise ConfigError(f"lm-eval cannot begin ({type(error).__name__}: {lines[0]})") from error


def _plainly(results: Path) -> Callable[[Any], Any]:
    """Returns what makes the look-up of tasks say in one line which are not there.

    What could not be written at the end is refused here too, where the configuration is whole and nothing has begun:
    lm-eval itself only warns of it then.
    """

    def change(find: Any) -> Any:
        def found(config: EvaluatorConfig, *given: Any, **how: Any) -> Any:
            RunStore(results).check()
            if config.output_path:
                path = Path(config.output_path)
                check_folder(path.parent if path.suffix == ".json" else path)
            try:
                return find(config, *given, **how)
            except ValueError as error:
                raise ConfigError(
                    f"lm-eval: {error} ({PROGRAM} ls tasks lists them; --include_path adds yours)"
                ) from error

        return found

    return change


def _is_its_own(entry: Any) -> bool:
    """Whether a task's definition is part of lm-eval."""
    path = getattr(entry, "yaml_path", None)
    return path is not None and Path(path).resolve().is_relative_to(Path(lm_eval.__file__).resolve().parent)


def _telling_tasks(index: dict[str, Any]) -> Callable[[Any], Any]:
    """Returns what makes an evaluation tell which tasks it knows, and where they are defined."""

    def change(evaluate: Any) -> Any:
        def told(*given: Any, **how: Any) -> Any:
            index.update(getattr(how.get("task_manager"), "task_index", {}))
            return evaluate(*given, **how)

        return told

    return change


@contextlib.contextmanager
def _command_line(arguments: Sequence[str]) -> Iterator[None]:
    """lm-eval reads its arguments from the process."""
    before = sys.argv
    sys.argv = [PROGRAM, *arguments]
    try:
        yield
    finally:
        sys.argv = before


def _fill_in(chosen: argparse.Namespace) -> None:
    """Names our model where none is named, and gives tasks the folder of a model that only we know by name."""
    if getattr(chosen, "command", None) != "run" or getattr(chosen, "config", None) is not None:
        return
    if chosen.limit is not None and not 0 < chosen.limit < math.inf:
        raise ConfigError(f"--limit {chosen.limit:g} must be above 0: documents of each task, or a share of them")
    if chosen.model is None:
        chosen.model = "velox"
    known = (chosen.model_args or {}).get("pretrained")
    if chosen.model == "velox" and known in KNOWN_MODELS and "tokenizer" not in (chosen.metadata or {}):
        chosen.metadata = {**(chosen.metadata or {}), "tokenizer": tokenizer_folder(known)}


@contextlib.contextmanager
def _replaced(module: Any, name: str, change: Callable[[Any], Any]) -> Iterator[None]:
    before = getattr(module, name)
    setattr(module, name, change(before))
    try:
        yield
    finally:
        setattr(module, name, before)


def _recording(
    begin: Callable[[], None], record: Callable[[VeloxLM, dict[str, Any], Any], None]
) -> Callable[[Any], Any]:
    """Returns what makes an evaluation one that is recorded, if the model is ours, and tells of its beginning."""

    def change(evaluate: Any) -> Any:
        def recorded(lm: Any, task_dict: Any, **how: Any) -> Any:
            begin()
            found = evaluate(lm=lm, task_dict=task_dict, **how)
            ours = lm.lm if isinstance(lm, lm_eval.api.model.CachingLM) else lm
            if isinstance(ours, VeloxLM):
                record(ours, task_dict["tasks"], found)
            return found

        return recorded

    return change


@contextlib.contextmanager
def _own_caches() -> Iterator[None]:
    """Gives every configuration of our model a response cache of its own beside the path that was asked for."""

    def change(plain: Any) -> Any:
        class OwnCache(plain):  # type: ignore[misc]
            def __init__(self, lm: Any, cache_db: str) -> None:
                if isinstance(lm, VeloxLM):
                    path = Path(cache_db)
                    cache_db = str(path.with_name(f"{path.stem}_{lm.fingerprint[:12]}{path.suffix}"))
                super().__init__(lm, cache_db)

        return OwnCache

    with _replaced(lm_eval.api.model, "CachingLM", change):
        yield
