"""The result as one Markdown page."""

from __future__ import annotations

from velox_eval.mechanism import tables
from velox_eval.mechanism.arms import BUDGETS, LEFT_OUT
from velox_eval.mechanism.document import Mechanism
from velox_eval.mechanism.measures import MEASURES
from velox_eval.mechanism.recall import BLOCK, RETURNS, SINK_ROWS, STAYS
from velox_eval.mechanism.regimes import (
    BLOCK as BLOCK_ROWS,
)
from velox_eval.mechanism.regimes import (
    DIM,
    EARLY_SHARE,
    EXTRA,
    NOISE,
    POINTER,
    PROBE_NOISE,
    PROBES,
    QUERY,
    REGIMES,
    SINKS,
    STRONG,
    THRESHOLD,
    WEAK,
)
from velox_eval.mechanism.study import DOCUMENT_SEEDS, LENGTHS, SENSITIVITY
from velox_eval.runs.text_tables import markdown_table

FIGURE = "mechanism.svg"


def page(found: Mechanism) -> str:
    """Returns the page, with the figure beside it where `FIGURE` is written there too."""
    study = found.study
    lines = [
        "# Mechanism: what each rule keeps, and what of it is recency",
        "",
        *_construction(found),
        "",
        f"![What each arm keeps]({FIGURE})",
        "",
        "## Claims",
        "",
        "From the documents of MorphKV and KVzip in VeloxQuant-MLX. Confirmed: effect and controls hold. Explained by "
        "recency: the effect is there, and a control that knows no relevance has it too. Not confirmed: no effect.",
        "",
        *tables.markdown(tables.claims(found)),
        "",
        "## The documents' figures",
        "",
        f"Retention, mean of {DOCUMENT_SEEDS} data seeds as theirs. Their draws are not published, so equal means are "
        "not expected to the digit; nothing here was fitted to them.",
        "",
        *tables.markdown(tables.figures(found)),
        "",
        "## Arms and regimes",
        "",
        f"Means over {study.seeds} seeds, two lengths and two budgets.",
        "",
        *_legend(found),
        "",
        *tables.markdown(tables.matrix(study)),
        "",
        *tables.markdown(tables.bases(study)),
        "",
        "## Tests",
        "",
        f"Paired over {study.seeds} data seeds, each the mean of its lengths and budgets: two-sided permutations "
        "within seeds, bootstrap intervals, Holm over all rows of the table.",
        "",
        *tables.markdown(tables.tests(found)),
        "",
        *_orders(found),
        "## Eviction in blocks",
        "",
        f"Streams of {SENSITIVITY[0]} rows at budget {SENSITIVITY[1]}, {min(study.seeds, DOCUMENT_SEEDS)} seeds: "
        "the measure when rows go in blocks of that many, and in brackets the share of kept rows that are kept row by "
        "row too.",
        "",
        *tables.markdown(tables.sensitivity(study)),
        "",
    ]
    return "\n".join([*lines, *_real(found)])


def _orders(found: Mechanism) -> list[str]:
    return [
        "## Order of arms",
        "",
        "From highest to lowest, the documents' arms and the controls: > where the step down holds over the seeds "
        "(Holm over all steps of all orders), = where it does not.",
        "",
        *(
            f"- {order.measure} in {order.regime}{' (null control)' if order.null else ''}: {order.words}"
            for order in found.orders
        ),
        "",
    ]


def _construction(found: Mechanism) -> list[str]:
    left_out = "; ".join(f"{name} ({reason})" for name, reason in LEFT_OUT.items())
    versions = ", ".join(f"{name} {version}" for name, version in sorted(found.versions.items()))
    return [
        f"Command: `{found.command}`",
        "",
        f"One head of {DIM} dimensions, {SINKS} sinks, streams of {LENGTHS[0]} and {LENGTHS[1]} rows fed one at a time "
        f"in float16 to the caches that runs use, budgets {BUDGETS[0]} and {BUDGETS[1]}. Keys are normal x {NOISE}; "
        f"a topic's rows have {STRONG:g} on its axis, the late topic's {WEAK:g} on axis B and extra noise x "
        f"{EXTRA:g}, from "
        f"{EARLY_SHARE:.0%} of the stream on. Values are normal. {PROBES} probes: the relevant axis and normal x "
        f"{PROBE_NOISE:g}. A row is relevant in the shifting and stable streams when its projection on the relevant "
        f"axis exceeds {THRESHOLD:g}; in the others when it belongs to the relevant block ({BLOCK_ROWS} rows; "
        f"pointing rows "
        f"have {POINTER:g} on the block's axis). Windows are clipped to budget - sinks - 1.",
        "",
        f"Rules that rank by queries are shown queries of the stream's own: {QUERY:g} on the axis that the step "
        f"attends to, and normal x {NOISE}. Rules that cut once see the whole stream as one prompt and cut at its end; "
        "kvzip:paper's passes are "
        "the stream's own rows once more; qfilters:paper's direction is that of the stream's queries. "
        f"Left out: {left_out}.",
        "",
        *markdown_table(("regime", "construction"), [(name, REGIMES[name].summary) for name in found.study.base]),
        "",
        f"Versions: {versions}." if versions else "",
    ]


def _legend(found: Mechanism) -> list[str]:
    shown = [column for column in tables.MATRIX if column[1] in found.study.base]
    wanted = dict.fromkeys(measure for _, _, measure in shown)
    headings = ", ".join(f"{heading} ({measure} in {regime})" for heading, regime, measure in shown)
    return [*(f"- {measure}: {MEASURES[measure]}" for measure in wanted), f"- columns: {headings}"]


def _real(found: Mechanism) -> list[str]:
    real = found.real
    if real is None:
        return []
    refused = [f"- {one.method} could not run: {one.reason}" for one in real.refused]
    return [
        "## The real model's attention",
        "",
        f"{real.model} reads texts that shift their topic and come back to the first; the full cache's queries and "
        f"keys "
        "say what later tokens attend to. Methods read the text as one prompt, evicting in blocks of "
        f"{BLOCK} rows, and recall is the share of the later tokens' attention to cached rows that falls on rows kept: "
        f"all mass, and without the first {SINK_ROWS} rows; means over layers, heads and texts (in brackets lowest "
        f"and highest text). {STAYS}: cut in the middle of the second topic, later tokens go on with it; {RETURNS}: "
        f"cut at "
        "its end, later tokens are the first topic's. first topic: kept rows from there. in one chunk: evicted at once "
        f"instead of in blocks. Prompts have {real.prompt_tokens[STAYS]:.0f} and "
        f"{real.prompt_tokens[RETURNS]:.0f} tokens on average. Methods have their default settings, windows clipped "
        f"to the budget.",
        "",
        *tables.markdown(tables.recall(real)),
        "",
        *refused,
        *tables.markdown(tables.recall_tests(real)),
        "",
    ]
