"""Finding and loading a task of lm-eval by name, offline where its data is, with every failure in one line."""

from __future__ import annotations

import ast
import contextlib
import difflib
import json
import random
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from velox_eval.errors import ConfigError, DataError
from velox_eval.extras import required
from velox_eval.tasks import LM_EVAL
from velox_eval.tasks.base import TaskOptions
from velox_eval.tasks.lm_eval_task import CHAT, LmEvalTask

_SEEDS = (0, 1234)  # of Python's and NumPy's generators, as lm-eval's command line sets them
_FEWSHOT_SEED = 1234
_YAML = (".yaml", ".yml")
# What tasks and datasets raise for data that is not there, or is not what the task expects.
# What lm-eval, the code of its tasks and their data raise before anything is asked of a model.
LOAD_ERRORS = (OSError, RuntimeError, ValueError, LookupError, TypeError, NameError, ImportError, AssertionError)


def load_lm_eval_task(name: str, options: TaskOptions) -> LmEvalTask:
    """Returns the task `lm_eval/NAME`, its data read (which may need the network, as lm-eval does).

    Raises ConfigError for a name lm-eval does not have, a group, or a task that our runner cannot run; DataError when
    its data cannot be read.
    """
    require_lm_eval()
    _check(name, options)
    wanted, metadata = name.removeprefix(LM_EVAL), _metadata(options)
    with _seeded():
        manager = _manager(options, metadata, wanted)
        if wanted not in manager.all_tasks:
            near = difflib.get_close_matches(wanted, manager.all_tasks, n=3)
            hint = f"; did you mean {' or '.join(near)}?" if near else ""
            raise ConfigError(f"lm-eval has no task {wanted!r}{hint} (velox-eval lm-eval ls tasks lists them)")
        loaded = _load(manager, wanted)
    if len(loaded) != 1:
        names = ", ".join(sorted(loaded)[:8]) + (", ..." if len(loaded) > 8 else "")
        raise ConfigError(f"{wanted!r} is a group of {len(loaded)} tasks of lm-eval; name one of them: {names}")
    [task] = loaded.values()
    _refuse(task, wanted)
    if task.get_config("num_fewshot") is None:
        task.set_config("num_fewshot", 0)
    task.set_fewshot_seed(_FEWSHOT_SEED)
    source = "official" if options.data is None else "data"
    return LmEvalTask(task, options, source=source, release=version("lm-eval"))


def require_lm_eval() -> None:
    """Raises ConfigError, which says how to install it, where lm-eval is missing or broken."""
    required("lm_eval", "lm-eval", "an lm-eval task")


def _check(name: str, options: TaskOptions) -> None:
    for option in ("entries",):
        if getattr(options, option) is not None:
            raise ConfigError(f"task {name} has no option {option!r}")
    if options.data_seed != 0:
        raise ConfigError(f"task {name} has no generated material of ours, so no data_seed; leave it out")
    if options.source not in (None, "official", "data"):
        raise ConfigError(f"source={options.source}: task {name} has official, or --data with a folder of YAML tasks")
    if options.data is not None:
        _check_folder(Path(options.data))


def _check_folder(path: Path) -> None:
    """Raises DataError where there is nothing that lm-eval reads: it would run its own task of that name instead."""
    needed = "--data takes a folder of lm-eval's YAML tasks, or one YAML file"
    if not path.exists():
        raise DataError(f"{path}: no such file or folder; {needed}")
    if path.is_file() and path.suffix not in _YAML:
        raise DataError(f"{path}: is no YAML file; {needed}")
    if path.is_dir() and not any(file.suffix in _YAML for file in path.rglob("*")):
        raise DataError(f"{path}: holds no YAML file; {needed}")


def _metadata(options: TaskOptions) -> dict[str, Any]:
    """What the task is told: the model whose tokenizer sizes its prompts, and the variant's NAME=VALUE parts."""
    metadata: dict[str, Any] = {}
    if options.model is not None:
        metadata |= {"pretrained": options.model, "tokenizer": tokenizer_folder(options.model)}
    for part in filter(None, (options.variant or "").split(";")):
        key, equals, text = part.partition("=")
        if not equals and part != CHAT:
            raise ConfigError(f"variant={part!r}: write {CHAT}, or metadata of the task as NAME=VALUE, joined by ';'")
        if equals:
            try:
                metadata[key.strip()] = ast.literal_eval(text.strip())
            except (ValueError, SyntaxError):
                metadata[key.strip()] = text.strip()
    return metadata


def tokenizer_folder(model: str) -> str:
    """Returns the folder of a model, for tasks that measure texts with its tokenizer.

    Raises ConfigError for one whose tokenizer brings code along: lm-eval would run it.
    """
    from velox_eval.engine.models import find_model

    folder = find_model(model)
    settings = folder / "tokenizer_config.json"
    if settings.is_file() and "auto_map" in json.loads(settings.read_text(encoding="utf-8")):
        raise ConfigError(f"{model}: its tokenizer brings code along, which is never run; use another model")
    return str(folder)


def _manager(options: TaskOptions, metadata: dict[str, Any], wanted: str) -> Any:
    """What knows the task: lm-eval's index of the folder given, where the task is there, else of its own tasks too."""
    from lm_eval.tasks import TaskManager

    if options.data is None:
        return TaskManager(metadata=metadata)
    path = Path(options.data)
    folder = str(path if path.is_dir() else path.parent)
    manager = TaskManager(include_path=folder, include_defaults=False, metadata=metadata)
    return manager if wanted in manager.all_tasks else TaskManager(include_path=folder, metadata=metadata)


def _load(manager: Any, wanted: str) -> dict[str, Any]:
    """What lm-eval makes of a name. Its tasks run code of their own and read data over the network."""
    from datasets.exceptions import DatasetsError

    try:
        return dict(manager.load([wanted])["tasks"])
    except ModuleNotFoundError as error:
        raise ConfigError(f"{LM_EVAL}{wanted} needs the package {error.name!r}: pip install {error.name}") from error
    except (*LOAD_ERRORS, DatasetsError) as error:
        lines = str(error).strip().splitlines() or [""]
        raise DataError(
            f"{LM_EVAL}{wanted} cannot be loaded ({type(error).__name__}: {lines[0]}); a task whose data is on a hub "
            "needs the network once, or a YAML task of yours with --data DIR"
        ) from error


def _refuse(task: Any, name: str) -> None:
    launcher = "run it with velox-eval lm-eval"
    if getattr(task, "UNSAFE_CODE", False):
        raise ConfigError(f"{LM_EVAL}{name} runs code that a model wrote: {launcher} --confirm_run_unsafe_code")
    if getattr(task, "MULTIMODAL", False):
        raise ConfigError(f"{LM_EVAL}{name} asks about pictures or sound, which no model here takes")
    repeats = task.get_config("repeats") or 1
    if repeats > 1:
        raise ConfigError(f"{LM_EVAL}{name} asks {repeats} answers a document, our runner one: {launcher}")


@contextlib.contextmanager
def _seeded() -> Iterator[None]:
    """Has tasks draw what lm-eval's command line has them draw; the generators are as before afterwards."""
    import numpy as np

    before, numpy_before = random.getstate(), np.random.get_state()
    random.seed(_SEEDS[0])
    np.random.seed(_SEEDS[1])
    try:
        yield
    finally:
        random.setstate(before)
        np.random.set_state(numpy_before)
