"""One mechanism study from request to files."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path

from velox_eval.engine.models import LoadedModel
from velox_eval.mechanism.arms import DOCUMENT_ARMS, STUDIES, study_arms
from velox_eval.mechanism.checks import run_checks
from velox_eval.mechanism.claims import judge
from velox_eval.mechanism.document import Mechanism, document
from velox_eval.mechanism.figure import draw
from velox_eval.mechanism.order import orders
from velox_eval.mechanism.page import FIGURE, page
from velox_eval.mechanism.published import beside
from velox_eval.mechanism.real import DEFAULT_BUDGET, real_labels, run_real
from velox_eval.mechanism.study import DEFAULT_SEEDS, run_study
from velox_eval.records.output import check_folder, make_folder, write_text
from velox_eval.runs.figures import require_matplotlib

ALL = "all"
RESULTS, PAGE = "results.json", "mechanism.md"


def run_mechanism(
    which: str = ALL,
    *,
    methods: str = "documents",
    seeds: int = DEFAULT_SEEDS,
    loaded: LoadedModel | None = None,
    budget: int = DEFAULT_BUDGET,
    command: Sequence[str] = (),
    told: Callable[[str], None] = lambda _next: None,
) -> Mechanism:
    """Returns what the studies find: `which` is morphkv, kvzip or all; `methods` documents, all or names with commas.

    With a model, also what its attention says, at `budget` rows. `told` hears what is next. Raises ConfigError for
    settings that cannot work.
    """
    studies = STUDIES if which == ALL else (which,)
    study = run_study(study_arms(studies, methods), seeds=seeds, told=told)
    claims, tests = judge(study)
    real = None
    if loaded is not None:
        real = run_real(loaded, real_labels(studies, methods), budget=budget, told=told)
    return Mechanism(
        studies=studies,
        command=shlex.join(command),
        study=study,
        figures=beside(study),
        claims=[judged for judged in claims if set(judged.claim.studies) & set(studies)],
        tests=tests,
        checks=run_checks(study),
        orders=orders(study, [arm.label for arm in DOCUMENT_ARMS]),
        real=real,
        versions={name: version(name) for name in ("mlx", "mlx-lm", "numpy", "velox-eval")},
    )


def check_output(folder: Path) -> None:
    """Raises ConfigError where the files could not be written, before anything is run."""
    require_matplotlib()
    check_folder(folder)


def write(found: Mechanism, folder: Path) -> list[Path]:
    """Writes results.json, the page and its figure; returns where. Raises ConfigError where that fails."""
    require_matplotlib()
    make_folder(folder)
    paths = [folder / RESULTS, folder / PAGE, folder / FIGURE]
    write_text(paths[0], json.dumps(document(found), indent=1, allow_nan=False) + "\n")
    write_text(paths[1], page(found))
    draw(found, paths[2])
    return paths
