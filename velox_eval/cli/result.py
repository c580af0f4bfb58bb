"""Shows a run: what it measured, where the records are, how the first answer begins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from velox_eval.cli.console import out, plain
from velox_eval.records.sizes import human_bytes
from velox_eval.runs.labels import budget_words
from velox_eval.runs.text_tables import number

if TYPE_CHECKING:
    from velox_eval.records.schema import JudgeSummary, ResponsesInfo, RunHeader, RunSummary, SampleRecord
    from velox_eval.runs.recorder import RunResult

_OPENING_LINES = 5
_OPENING_CHARACTERS = 400


def document(result: RunResult) -> dict[str, Any]:
    """Returns the run's header and summary, with where its records are and what was found there."""
    return {**result.header.model_dump(mode="json"), "path": str(result.path), "state": result.state}


def show_result(result: RunResult) -> None:
    """Prints table, place of the records and opening of the first answer on stdout."""
    from rich.table import Table

    console, header = out(), result.header
    if header.summary is not None:
        origin = header.identity.rescored_from
        again = "" if origin is None else f" (answers of {origin}, scored again)"
        title = f"run {header.run_id}: {header.status}{again}"
        table = Table(show_header=False, title=title, title_justify="left")
        table.add_column(style="bold")
        table.add_column(overflow="fold")
        for name, value in rows(header, header.summary):
            table.add_row(name, plain(value))
        console.print(table)
    console.print(f"records: {result.path / 'samples.jsonl'}", soft_wrap=True)
    first = next((record for record in result.samples if record.response), None)
    if first is not None:
        console.print(f"\nfirst answer ({plain(first.sample_id)}):", style="bold")
        console.print(opening(first), soft_wrap=True)


def rows(header: RunHeader, summary: RunSummary) -> list[tuple[str, str]]:
    """Returns the table's lines."""
    config, data = header.config, header.data
    foreign = header.responses
    limit = budget_words(config.budget, config.keep)
    params = ", ".join(f"{name}={value}" for name, value in header.method.params.items())
    lines = [
        ("method", ", ".join(part for part in (config.method, limit, params) if part)),
        ("task", f"{config.task.name} version {header.identity.task_version}, {data.source} ({data.origin})"),
        ("model", _model(header)),
        *([] if foreign is None else [("answers", _foreign(foreign))]),
        ("samples", _samples(summary, data.samples)),
        (summary.primary, _interval(summary)),
        ("accuracy", _accuracy(summary)),
        ("other scores", _others(summary)),
        ("judge", _judge(header.identity.judge, summary.judging)),
        ("repetition rate", _repetition(summary)),
        *(_costs(summary) if foreign is None else [("costs", "not known: this harness did not write the answers")]),
    ]
    if data.incomplete:
        lines.append(("data", data.incomplete))
    return lines


def _costs(summary: RunSummary) -> list[tuple[str, str]]:
    return [
        ("peak cache", _of_full(summary.peak_cache_bytes, summary.peak_of_full)),
        ("cache at the end", _of_full(summary.end_cache_bytes, summary.end_of_full)),
        ("full cache", _bytes(summary.full_cache_bytes)),
        ("rows kept", _share(summary.kept_fraction)),
        ("speed", _speed(summary)),
        ("evicted", _fired(summary)),
    ]


def opening(record: SampleRecord) -> str:
    """Returns the first lines of an answer, safe for a terminal."""
    text = (record.response or "").strip()
    lines = text[:_OPENING_CHARACTERS].splitlines()[:_OPENING_LINES]
    shown = "\n".join(lines)
    return plain(shown) + (" ..." if len(shown) < len(text) else "")


def _samples(summary: RunSummary, wanted: int) -> str:
    parts = [f"{summary.n}" if summary.n == wanted else f"{summary.n} of {wanted}"]
    for count, what in (
        (summary.n_error, "failed"),
        (summary.n_unscored, "not fully scored"),
        (summary.n_truncated, "cut at a limit"),
        (summary.n_beyond_context, "cut at the model's context"),
        (summary.n_prompt_cut, "with a prompt cut to fit"),
    ):
        if count:
            parts.append(f"{count} {what}")
    return ", ".join(parts)


def _interval(summary: RunSummary) -> str:
    value = number(summary.primary_value)
    if summary.primary_low is None or summary.primary_high is None:
        return value
    return f"{value} (95% interval {summary.primary_low:.3f} to {summary.primary_high:.3f})"


def _accuracy(summary: RunSummary) -> str:
    text = number(summary.accuracy)
    if summary.n_error:
        text += f" over all, {number(summary.accuracy_scored)} over the scored"
    return text


def _model(header: RunHeader) -> str:
    if header.responses is not None:
        return f"{header.model.name} (as claimed; not run here)"
    return f"{header.model.name}, {header.model.device}, {header.model.route}"


def _foreign(responses: ResponsesInfo) -> str:
    """Says whose answers these are."""
    rated = "" if responses.rated_by is None else f", rated by {responses.rated_by} (stored)"
    return f"{responses.rows} rows read from {responses.file}, matched by {responses.matched_by}{rated}"


def _repetition(summary: RunSummary) -> str:
    if summary.late_repetition_rate is None:
        return number(summary.repetition_rate)
    return f"{number(summary.repetition_rate)}, {number(summary.late_repetition_rate)} in the second half"


def _others(summary: RunSummary) -> str:
    known = {name: score.value for name, score in summary.scores.items()} | summary.derived
    return ", ".join(f"{name} {number(value)}" for name, value in known.items() if name != summary.primary) or "-"


def _judge(name: str, asked: JudgeSummary | None) -> str:
    if asked is None:
        return name
    parts = [name]
    if asked.disagreement.value is not None:
        parts.append(f"{asked.disagreement.value:.1%} of its pairs of replies to one question differ")
    if asked.rating_sd is not None:
        parts.append(f"its points by {asked.rating_sd:.2f} (standard deviation)")
    if asked.unreadable:
        parts.append(f"{asked.unreadable} replies not readable")
    return ", ".join(parts)


def _speed(summary: RunSummary) -> str:
    decode, prefill = summary.decode_tokens_per_second, summary.prefill_tokens_per_second
    batches = "/".join(str(size) for size in summary.batch_sizes)
    parts = [] if decode is None else [f"{decode:.1f} tokens/s written" + (f" at batch {batches}" if batches else "")]
    return ", ".join(parts + ([] if prefill is None else [f"{prefill:.0f} tokens/s read"])) or "-"


def _fired(summary: RunSummary) -> str:
    if summary.n_not_fired is None:
        return "never: this method keeps every row"
    fired = summary.n_ok - summary.n_not_fired
    if not fired and summary.n_ok:
        return "NEVER: the budget was not reached, so this is the full cache's result; choose a smaller --budget"
    return f"in {fired} of {summary.n_ok} samples"


def _of_full(count: int | None, share: float | None) -> str:
    return _bytes(count) if share is None else f"{_bytes(count)} at most; over all, {share:.0%} of the full cache"


def _bytes(count: int | None) -> str:
    return "-" if count is None else f"{human_bytes(count)} ({count:,} bytes)"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%} of the tokens seen"
