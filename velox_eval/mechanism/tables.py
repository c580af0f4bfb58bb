"""The tables of a mechanism study as plain cells, for the terminal and for Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from velox_eval.mechanism.document import Mechanism
from velox_eval.mechanism.evidence import Tested
from velox_eval.mechanism.real import SENSITIVE, RealStudy
from velox_eval.mechanism.recall import ORACLE, RETURNS, STAYS
from velox_eval.mechanism.regimes import REGIMES
from velox_eval.mechanism.study import BLOCKS, Study
from velox_eval.runs import text_tables

MATRIX = (  # heading, regime, measure
    ("shift", "shift", "retention"),
    ("unprotected", "shift", "unprotected"),
    ("late rows", "shift", "in_region"),
    ("no axis: late rows", "shift_no_axis", "in_region"),
    ("no noise", "shift_no_noise", "retention"),
    ("stable", "stable", "retention"),
    ("early", "early_block", "held"),
    ("middle", "middle_block", "held"),
    ("alternating", "alternating", "held"),
    ("absence", "absence", "held"),
    ("perturbation", "shift", "perturbation"),
)
SENSITIVE_REGIMES = (("shift", "retention"), ("middle_block", "held"), ("alternating", "held"))


@dataclass(frozen=True)
class Table:
    """A heading, column names and rows of text; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def matrix(study: Study) -> Table:
    """Returns arms by regimes: means over lengths, budgets and all seeds."""
    columns = [column for column in MATRIX if column[1] in study.base]
    rows = [
        (
            arm,
            "once" if arm in study.once else "always",
            *(number(study.mean(arm, regime, measure)) for _, regime, measure in columns),
        )
        for arm in study.values
    ]
    return Table("What each arm keeps", ("arm", "cuts", *(column[0] for column in columns)), tuple(rows))


def bases(study: Study) -> Table:
    """Returns the share of relevant rows by regime: what a rule that keeps rows blindly would reach."""
    rows = [
        (name, *(number(float(np.mean([study.base[name][n][w].mean() for n in study.base[name]]))) for w in _RATES))
        for name in study.base
    ]
    return Table("Base rates", ("regime", *_RATES), tuple(rows))


_RATES = ("stream", "region")


def figures(found: Mechanism) -> Table:
    """Returns the documents' figures beside ours."""
    rows = [
        (
            one.published.study,
            one.published.arm,
            one.published.regime,
            one.published.said,
            number(one.mean),
            number(one.off),
            " / ".join(number(cell) for cell in one.cells),
        )
        for one in found.figures
    ]
    return Table(
        "The documents' figures",
        ("document", "arm", "regime", "figure", "ours, mean", "off by", "ours by (length, budget)"),
        tuple(rows),
    )


def claims(found: Mechanism) -> Table:
    """Returns every claim with its verdict and what is left of it."""
    rows = []
    for judged in found.claims:
        share = "" if judged.share is None else f" ({judged.share:.0%} as claimed)"
        rows.append((judged.claim.says, judged.verdict + share, judged.left))
    return Table("Claims", ("claim", "verdict", "what is left"), tuple(rows))


def tests(found: Mechanism) -> Table:
    """Returns every paired test."""
    return Table(
        "Tests",
        ("contrast", "first", "second", "difference (95% interval)", "Holm p", "holds"),
        tuple((contrast.words, *_tested(tested)) for contrast, tested in found.tests.items()),
    )


def sensitivity(study: Study) -> Table:
    """Returns what eviction in blocks changes: the measure row by row, then by block with the overlap of kept rows."""
    found = {(one.arm, one.regime, one.block): one for one in study.sensitivity}
    chosen = [(regime, measure) for regime, measure in SENSITIVE_REGIMES if regime in study.base]
    rows = []
    for arm in dict.fromkeys(one.arm for one in study.sensitivity):
        cells = [arm]
        for regime, measure in chosen:
            for block in BLOCKS:
                one = found[arm, regime, block]
                cells.append(f"{number(getattr(one, measure))} ({number(one.overlap)})")
        rows.append(tuple(cells))
    names = [f"{regime}, {block or 'whole'}" for regime, _ in chosen for block in BLOCKS]
    return Table("Eviction in blocks", ("arm", *names), tuple(rows))


def recall(real: RealStudy) -> Table:
    """Returns every method's recall on the real model, by moment, best first where the topic returns."""
    methods = real.methods()
    methods.sort(key=lambda m: (m != ORACLE, -float(real.values(m, RETURNS, "beyond_sinks").mean())))
    rows = []
    for method in methods:
        cells = [method]
        for kind in (STAYS, RETURNS):
            cells.append(number(float(real.values(method, kind, "mass").mean())))
            beyond = real.values(method, kind, "beyond_sinks")
            cells.append(
                f"{number(float(beyond.mean()))} ({number(float(beyond.min()))} to {number(float(beyond.max()))})"
            )
        cells.append(number(float(real.values(method, RETURNS, "first_topic").mean())))
        whole = real.values(method, RETURNS, "beyond_sinks", None) if method in SENSITIVE else np.array([])
        cells.append(number(float(whole.mean())) if len(whole) else "")
        cells.append(f"{float(real.values(method, RETURNS, 'rows').mean()):.0f}")
        rows.append(tuple(cells))
    return Table(
        f"Recall of later attention, {real.model}, budget {real.budget}",
        (
            "method",
            f"{STAYS}: all mass",
            f"{STAYS}: beyond sinks",
            f"{RETURNS}: all mass",
            f"{RETURNS}: beyond sinks",
            "first topic",
            "in one chunk",
            "rows",
        ),
        tuple(rows),
    )


def recall_tests(real: RealStudy) -> Table:
    """Returns the paired tests over texts."""
    rows = [(f"{above} > {than}", *_tested(tested)) for (above, than), tested in real.tests.items()]
    return Table(
        f"Tests over texts, beyond sinks, where the topic {RETURNS}",
        ("contrast", "first", "second", "difference (95% interval)", "Holm p", "holds"),
        tuple(rows),
    )


def _tested(tested: Tested) -> tuple[str, ...]:
    interval = "" if tested.low is None else f" ({_signed(tested.low)} to {_signed(tested.high)})"
    holds = "cannot decide" if tested.holds is None else "yes" if tested.holds else "no"
    p = "< 0.001" if tested.adjusted < 0.001 else text_tables.number(tested.adjusted)
    return (number(tested.first), number(tested.second), _signed(tested.difference) + interval, p, holds)


def _signed(value: float | None) -> str:
    return text_tables.number(value, 2, sign=True)


def number(value: float | None) -> str:
    """Returns a number as text; "-" for None."""
    return text_tables.number(value, 2)


def markdown(table: Table) -> list[str]:
    """Returns the table as Markdown lines, without its title."""
    return text_tables.markdown_table(table.columns, table.rows)


def separating() -> Sequence[str]:
    """Returns the names of the regimes in which relevance and recency come apart."""
    return [name for name, regime in REGIMES.items() if regime.separates]
