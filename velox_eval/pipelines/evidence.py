"""Measured rows: what stored runs showed of a method beside the full cache, one flat line each.

`results/reference/measured.jsonl` holds those that come with velox-eval, so that advice needs no runs of one's own:

    velox-eval sweep measured --results RESULTS
    python -m velox_eval.pipelines.evidence RESULTS -o results/reference/measured.jsonl
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import Field, ValidationError

from velox_eval.compare import compare, load_runs
from velox_eval.compare.comparison import Arm, Section, Verdict
from velox_eval.compare.decide import is_results_folder
from velox_eval.errors import ConfigError, StoreError
from velox_eval.records.config import Frozen, ParamValue, canonical_json
from velox_eval.records.output import check_file, write_text
from velox_eval.records.schema import RunHeader, SampleRecord
from velox_eval.records.store import StoredRun
from velox_eval.runs.labels import budget_label
from velox_eval.runs.plan import DEFAULT_RESULTS

BASELINE = "full"
_PACKAGE = Path(__file__).resolve().parents[1]
_FILE = "measured.jsonl"


class Measured(Frozen):
    """One method at one budget beside the full cache, on the same samples of one task."""

    bundled: bool = Field(default=False, description="Whether it came with velox-eval.")
    run_id: str = Field(description="The run.")
    baseline_run_id: str = Field(description="The full cache's run.")
    title: str = Field(description="Task, data and model in words.")
    task: str = Field(description="Task.")
    model: str = Field(description="Model, as asked.")
    model_sha256: str = Field(description="SHA-256 of its content.")
    device: str = Field(description="Device it ran on.")
    conditions: dict[str, str] = Field(description="What was equal for both, by name.")
    method: str = Field(description="name[:variant].")
    budget: int | None = Field(description="Rows per layer and KV head; null with keep.")
    keep: float | None = Field(description="Share kept; null with budget.")
    params: dict[str, ParamValue] = Field(description="Every parameter of the method.")
    score: str = Field(description="Name of the compared score.")
    higher_is_better: bool = Field(description="Whether more of it is better.")
    full_value: float | None = Field(description="The full cache's score.")
    value: float | None = Field(description="The method's score.")
    loss: float = Field(description="How much worse than full it is, in units of the score; below 0: better.")
    loss_low: float | None = Field(description="Lower end of its 95% interval; null without spread.")
    loss_high: float | None = Field(description="Upper end.")
    pairs: int = Field(ge=0, description="Samples that count on both sides.")
    p: float | None = Field(description="Permutation p after Holm over the methods of one budget.")
    verdict: Verdict = Field(description="What the test supports.")
    detectable: float | None = Field(description="Smallest true difference that so many samples would show.")
    prompt_tokens: int = Field(ge=0, description="Median over samples.")
    answer_tokens: int = Field(ge=0, description="Median over samples.")
    peak_of_full: float | None = Field(description="Rows held at the largest over the full cache's, over samples.")
    peak_cache_bytes: int | None = Field(description="Key and value bytes at the largest.")
    allocated_cache_bytes: int | None = Field(description="The buffers' capacity at the largest.")
    batch: int | None = Field(description="Most sequences that decoded together.")
    decode_tokens_per_second: float | None = Field(description="All sequences together.")
    decode_ratio: float | None = Field(description="Decode speed over full's at the same batch; null at another.")
    finished_at: str | None = Field(description="UTC.")

    @property
    def label(self) -> str:
        """Method and budget: `morphkv@128`, `kvzip@25%`."""
        return self.method.removesuffix(":adapted") + budget_label(self.budget, self.keep)


def measured_rows(runs: Sequence[StoredRun]) -> list[Measured]:
    """Returns a row for every arm that has a full cache's run beside it; none where there is no such pair.

    Answers of other programs say nothing of bytes and are left out. Runs that differ in what must be equal are never
    set side by side (velox_eval/compare).
    """
    ours = [run for run in runs if run.header.responses is None and run.header.finished_at is not None]
    if not any(run.header.config.method == BASELINE for run in ours) or len(ours) < 2:
        return []
    by_id = {run.header.run_id: run for run in ours}
    rows = []
    for section in compare(ours, BASELINE, split=True).sections:
        base = next((arm for arm in section.arms if arm.baseline), None)
        for arm in section.arms:
            row = _row(section, arm, base, by_id) if base is not None and not arm.baseline else None
            if row is not None:
                rows.append(row)
    return rows


def _row(section: Section, arm: Arm, base: Arm, by_id: dict[str, StoredRun]) -> Measured | None:
    difference, run = arm.difference, by_id[arm.run_id]
    if difference is None or difference.value is None:
        return None
    header, ends = run.header, (difference.low, difference.high)
    sign = -1.0 if section.higher_is_better else 1.0
    known = sorted(sign * end for end in ends if end is not None)
    prompts, answers = _lengths(run.samples)
    return Measured(
        run_id=arm.run_id,
        baseline_run_id=base.run_id,
        title=section.title,
        task=section.task,
        model=section.model,
        model_sha256=header.identity.model_sha256,
        device=header.identity.device,
        conditions=section.conditions,
        method=arm.method,
        budget=arm.budget,
        keep=arm.keep,
        params=arm.params,
        score=section.score,
        higher_is_better=section.higher_is_better,
        full_value=base.score.value,
        value=arm.score.value,
        loss=sign * difference.value + 0.0,
        loss_low=known[0] if len(known) == 2 else None,
        loss_high=known[1] if len(known) == 2 else None,
        pairs=difference.n_pairs,
        p=difference.p_adjusted,
        verdict=difference.verdict,
        detectable=difference.detectable,
        prompt_tokens=prompts,
        answer_tokens=answers,
        peak_of_full=arm.cost.peak_of_full,
        peak_cache_bytes=arm.cost.peak_cache_bytes,
        allocated_cache_bytes=arm.cost.allocated_cache_bytes,
        batch=arm.cost.batch,
        decode_tokens_per_second=arm.cost.decode_tokens_per_second,
        decode_ratio=arm.cost.decode_ratio,
        finished_at=_when(header),
    )


def _when(header: RunHeader) -> str | None:
    return header.finished_at.isoformat() if header.finished_at is not None else None


def _lengths(samples: Iterable[SampleRecord]) -> tuple[int, int]:
    """Median tokens of prompts, and of answers or of the text that was fed in their place."""
    prompts, answers = [], []
    for sample in samples:
        if sample.prompt_tokens is not None:
            prompts.append(sample.prompt_tokens)
        if sample.teacher_forced is not None:
            answers.append(len(sample.teacher_forced.tokens))
        elif sample.generated_tokens is not None:
            answers.append(sample.generated_tokens)
    return tuple(int(statistics.median(found)) if found else 0 for found in (prompts, answers))  # type: ignore[return-value]


def reference_file() -> Path | None:
    """Returns the file of measured rows that comes with velox-eval, inside the wheel or beside the package."""
    for folder in (_PACKAGE / "_reference", _PACKAGE.parent / "results" / "reference"):
        if (folder / _FILE).is_file():
            return folder / _FILE
    return None


def read_measured(path: Path) -> list[Measured]:
    """Returns the rows of a file, marked as bundled. Raises StoreError naming file, line and field."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
    for number, line in enumerate(lines, start=1):
        try:
            rows.append(Measured.model_validate_json(line).model_copy(update={"bundled": True}))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the line"
            raise StoreError(f"{path}, line {number}: {where}: {first['msg']}") from error
    return rows


def gather(results: Path | None, *, bundled: bool = True) -> list[Measured]:
    """Returns the rows of the runs in `results` (where it is a folder of runs) and those that are bundled.

    Of a run that is in both the stored one counts. Raises ConfigError for a folder that is none; the default one does
    not have to be there.
    """
    if results not in (None, DEFAULT_RESULTS) and not Path(results).is_dir():
        raise ConfigError(f"--results {results}: there is no such folder")
    rows = measured_rows(load_runs([results])) if results is not None and is_results_folder(results) else []
    file = reference_file() if bundled else None
    known = {(row.run_id, row.baseline_run_id) for row in rows}
    if file is not None:
        rows += [row for row in read_measured(file) if (row.run_id, row.baseline_run_id) not in known]
    return rows


def main(
    runs: Annotated[list[str], typer.Argument(help="Folders of runs.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="File of measured rows to write.")],
) -> None:
    """Write a measured row for every arm of the runs that has a full cache's run beside it."""
    check_file(output)
    rows = [row for folder in runs for row in measured_rows(load_runs([folder]))]
    if not rows:
        raise ConfigError(f"no run of {BASELINE} beside another in {', '.join(runs)}")
    text = "".join(canonical_json(row.model_dump(mode="json", exclude={"bundled"})) + "\n" for row in rows)
    write_text(output, text)


if __name__ == "__main__":
    typer.run(main)
