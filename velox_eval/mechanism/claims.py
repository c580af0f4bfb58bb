"""What the seed documents claim of MorphKV and KVzip, held against the controls they lacked.

A claim stands on contrasts that must hold for the effect to be there, and on controls that must hold for it to be the
effect that is claimed and not the recency of what is kept. No figure is a threshold: every contrast is a paired test.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from velox_eval.mechanism.evidence import Tested, weigh
from velox_eval.mechanism.regimes import Array
from velox_eval.mechanism.study import TWINS, Study

Verdict = Literal["confirmed", "explained by recency", "not confirmed", "cannot decide"]

SLIDING, RANDOM, TOVA = "sliding_window", "random", "tova"
H2O, HALF, QUERIES = "h2o cumulative", "h2o recent half", "h2o true queries"
W1, W8, W32 = (f"morphkv window={window}" for window in (1, 8, 32))
LATEST, CONTEXT = "kvzip probe=latest", "kvzip probe=context"
FOUND = ("early_block", "middle_block")  # regimes in which every recent row points at what is relevant
RETURNING = ("alternating", "absence")  # regimes in which nothing does for a while


@dataclass(frozen=True)
class Contrast:
    """`arm`'s `measure` in `regime` above the same of `than`, or above another measure or regime where named."""

    arm: str
    measure: str
    regime: str
    than: str = ""  # arm; empty: the same
    than_measure: str = ""
    than_regime: str = ""

    @property
    def other(self) -> tuple[str, str, str]:
        """Arm, regime and measure it is held against."""
        return self.than or self.arm, self.than_regime or self.regime, self.than_measure or self.measure

    @property
    def words(self) -> str:
        """The contrast as one line: `morphkv window=8 > sliding_window: retention in shift`."""
        arm, regime, measure = self.other
        left, right = f"{self.measure} in {self.regime}", f"{measure} in {regime}"
        return f"{self.arm} > {arm}: {left}" if left == right else f"{self.arm}: {left} > {right}"

    def sides(self, study: Study) -> tuple[Array, Array]:
        """Returns both sides, [seeds] each."""
        arm, regime, measure = self.other
        return study.by_seed(self.arm, self.regime, self.measure), study.by_seed(arm, regime, measure)


@dataclass(frozen=True)
class Claim:
    """One claim. `beside` is tested and shown with it, and decides nothing; `left` says what is left, by verdict.

    `denies`: it claims that the effect is not there, so that it stands when some contrast does not hold.
    """

    name: str
    studies: tuple[str, ...]
    says: str
    effect: tuple[Contrast, ...] = ()
    control: tuple[Contrast, ...] = ()
    beside: tuple[Contrast, ...] = ()
    denies: bool = False
    same_rows: tuple[str, str] | None = None  # claimed to keep the same rows on every stream
    all_equal: tuple[str, str] | None = None  # regime and measure in which every arm of the documents is the same
    left: Mapping[str, str] = field(default_factory=dict)

    @property
    def arms(self) -> set[str]:
        """Every arm it needs."""
        return {arm for c in self.contrasts for arm in (c.arm, c.other[0])} | set(self.same_rows or ())

    @property
    def contrasts(self) -> tuple[Contrast, ...]:
        """Every contrast it names."""
        return (*self.effect, *self.control, *self.beside)


@dataclass(frozen=True)
class Judged:
    """A claim with its verdict, what it rests on, and what is left of it."""

    claim: Claim
    verdict: Verdict
    effect: tuple[Tested, ...] = ()
    control: tuple[Tested, ...] = ()
    share: float | None = None  # of streams or arms that are exactly as claimed
    left: str = ""


def _above(arm: str, than: str, measure: str, regime: str = "shift") -> Contrast:
    return Contrast(arm, measure, regime, than=than)


def _chooses(arm: str, regime: str = "shift") -> Contrast:
    """Of the region's rows that it was free to drop, it keeps the relevant ones more than their share."""
    return Contrast(arm, "selectivity", regime, than_measure="chance")


def _nearer(arm: str) -> tuple[Contrast, ...]:
    """The probes' output is less perturbed than with frozen rows, and than with random ones."""
    return tuple(Contrast(control, "perturbation", "shift", than=arm) for control in (H2O, RANDOM))


CLAIMS = (
    Claim(
        "morphkv window=1 is tova",
        ("morphkv",),
        "With a window of one, MorphKV keeps exactly TOVA's rows.",
        same_rows=TWINS[0],
        left={
            "confirmed": "The same rows on every stream.",
            "not confirmed": "The same ranking, and nearly always the same rows. MorphKV protects the newest row, TOVA "
            "does not; where the newest row is itself the lowest they part.",
        },
    ),
    Claim(
        "cumulative scores hold early rows",
        ("morphkv", "kvzip"),
        "Cumulative H2O keeps about none of the rows that are relevant now: early heavy hitters hold their places.",
        effect=(_above(SLIDING, H2O, "retention"), _above(RANDOM, H2O, "retention")),
        control=(
            _above(SLIDING, HALF, "retention"),
            _above(RANDOM, HALF, "unprotected"),
            _above(SLIDING, QUERIES, "retention"),
        ),
        left={
            "confirmed": "The bias is real: it is there with queries that point at axis B, and in the half of H2O that "
            "is free to choose. The zero is more than bias: in that arm a new row has gathered nothing and goes at "
            "once, so it holds the first rows for ever (first_rows 1.0). H2O as published keeps a recent half.",
            "explained by recency": "The zero is that of an arm without recent rows: a new row has gathered nothing "
            "and goes at once. Not every control has the bias too.",
        },
    ),
    Claim(
        "morphkv keeps the late topic",
        ("morphkv",),
        "A window of recent keys keeps axis-B rows at a materially higher rate than cumulative H2O.",
        effect=(_above(W8, H2O, "retention"), _above(W32, H2O, "retention")),
        control=(_above(W8, SLIDING, "retention"), _above(W32, SLIDING, "retention")),
        beside=(_chooses(W8), _chooses(W32), _chooses(W8, "shift_no_axis"), _chooses("morphkv:paper")),
        left={
            "confirmed": "It also beats a sliding window of the same budget.",
            "explained by recency": "Higher than an arm that can take in no new row; a sliding window of the same "
            "budget keeps as much or more. Where selectivity is above chance, the window does pick axis-B rows among "
            "the late ones, by that much; with queries that point at B (morphkv:paper) it picks hardly anything else.",
        },
    ),
    Claim(
        "a wider window averages the noise",
        ("morphkv",),
        "Windows of 8 and 32 surface axis B where a single noisy token does not.",
        effect=(_above(W8, W1, "retention"), _above(W32, W1, "retention")),
        control=(_above(W8, W1, "selectivity"), _above(W32, W1, "selectivity"), _above(W32, SLIDING, "retention")),
        beside=(
            _above(W8, W1, "unprotected"),
            _above(W8, W1, "in_region", "shift_no_axis"),
            *(_above(W8, W1, "held", regime) for regime in FOUND),
        ),
        left={
            "confirmed": "Among the late rows it was free to drop, a wider window picks relevant ones better.",
            "explained by recency": "A wider window takes in more late rows, protected or just noisy: as many more "
            "where there is no axis B (shift_no_axis). It picks no better among them. At budget 32 the window of 32, "
            "clipped to 29, leaves one row to choose. Averaging does help where rows keep pointing at a block.",
            "not confirmed": "Wider is not better throughout.",
        },
    ),
    Claim(
        "morphkv re-targets to what recent rows read",
        ("morphkv",),
        "Where the recent window points at other rows, those are kept.",
        effect=tuple(_above(W8, SLIDING, "held", regime) for regime in FOUND),
        control=tuple(_above(W8, RANDOM, "held", regime) for regime in FOUND),
        beside=tuple(_above(W8, RANDOM, "held", regime) for regime in RETURNING),
        left={
            "confirmed": "The mechanism is real where relevance and recency come apart, as long as something keeps "
            "pointing at the rows. After an absence they are gone.",
        },
    ),
    Claim(
        "morphkv serves topics in turn",
        ("morphkv",),
        "It suits long, multi-topic responses, whose focus shifts.",
        effect=(_above(W8, SLIDING, "held", "alternating"), _above(W8, RANDOM, "held", "alternating")),
        left={
            "confirmed": "Rows of a topic outlive the turns of the others.",
            "not confirmed": "When topics take turns, the window drops the one that is away: above a sliding window, "
            "which holds nothing of it, and below keeping rows at random.",
        },
    ),
    Claim(
        "morphkv: the output is secondary",
        ("morphkv",),
        "The probes' attention output is a noisier, secondary effect that does not uniformly improve.",
        effect=_nearer(W8),
        beside=(Contrast(SLIDING, "perturbation", "shift", than=W8),),
        denies=True,
        left={
            "confirmed": "As they say: it is not nearer to the full cache's output than frozen and random rows are.",
            "not confirmed": "Here it does improve, on frozen and on random rows.",
        },
    ),
    Claim(
        "kvzip probe=latest is tova",
        ("kvzip",),
        "With the newest key as the probe, KVzip keeps exactly TOVA's rows.",
        same_rows=TWINS[1],
        left={"confirmed": "The same rows on every stream."},
    ),
    Claim(
        "kvzip keeps the late cluster",
        ("kvzip",),
        "The context probe keeps axis-B rows at a materially higher rate than cumulative H2O and the latest probe.",
        effect=(_above(CONTEXT, H2O, "retention"), _above(CONTEXT, LATEST, "retention")),
        control=(_above(CONTEXT, SLIDING, "retention"), _chooses(CONTEXT)),
        beside=(_chooses("kvzip:paper"),),
        left={
            "confirmed": "It also beats a sliding window, and picks axis-B rows.",
            "explained by recency": "It keeps the late block as a sliding window of the same budget does, and no more "
            "of axis B than that block has. With queries that point at B (kvzip:paper) it does pick axis B.",
        },
    ),
    Claim(
        "kvzip: the output is secondary",
        ("kvzip",),
        "The probes' attention output is a noisier, secondary effect that does not uniformly improve.",
        effect=_nearer(CONTEXT),
        beside=(Contrast(SLIDING, "perturbation", "shift", than=CONTEXT),),
        denies=True,
        left={
            "confirmed": "As they say: it is not nearer to the full cache's output than frozen and random rows are.",
            "not confirmed": "Here it does improve, on frozen and on random rows. Retention is not the reason: a "
            "sliding window keeps as much of axis B.",
        },
    ),
    Claim(
        "the cluster reinforces itself",
        ("kvzip",),
        "Axis-B rows stay because they attend to one another: the probe gathers the cluster's mutual attention.",
        effect=(
            Contrast(CONTEXT, "in_region", "shift", than_regime="shift_no_axis"),
            _above(CONTEXT, RANDOM, "in_region", "shift_no_noise"),
        ),
        control=(_chooses(CONTEXT),),
        left={
            "not confirmed": "Without axis B the late block stays all the same (shift_no_axis); with axis B and no "
            "extra noise it stays no more than random rows do (shift_no_noise). The noise makes keys long, a long key "
            "attends to itself, and the maximum over probes counts that.",
        },
    ),
    Claim(
        "kvzip holds a block that nothing reads",
        ("kvzip",),
        "What it keeps does not hang on the present topic: a cluster is there when it is read again.",
        effect=(_above(CONTEXT, SLIDING, "held", "absence"), _above(CONTEXT, RANDOM, "held", "absence")),
        left={"confirmed": "A small block of its own outlives a long other topic, which every window rule forgets."},
    ),
    Claim(
        "kvzip serves topics in turn",
        ("kvzip",),
        "One cache serves diverse later topics.",
        effect=(_above(CONTEXT, SLIDING, "held", "alternating"), _above(CONTEXT, RANDOM, "held", "alternating")),
        left={
            "confirmed": "Rows of a topic outlive the turns of the others, more than by chance.",
            "not confirmed": "Among equal topics it keeps a share of each: what keeping rows at random does.",
        },
    ),
    Claim(
        "nothing to gain on one topic",
        ("morphkv", "kvzip"),
        "On one topic (stable, flat) every arm keeps the same: retention 1.0.",
        all_equal=("stable", "retention"),
        left={
            "confirmed": "True of any rule, random included, because every row of the stream is relevant: it shows "
            "that nothing is gained, not that anything works.",
        },
    ),
)


def judge(study: Study) -> tuple[list[Judged], dict[Contrast, Tested]]:
    """Returns every claim whose arms were run, judged, and every test behind them, Holm over all."""
    claims = [claim for claim in CLAIMS if study.has(*claim.arms) and _regimes(claim) <= set(study.base)]
    contrasts = list(dict.fromkeys(contrast for claim in claims for contrast in claim.contrasts))
    tests = weigh({contrast: contrast.sides(study) for contrast in contrasts})
    return [_judged(study, claim, tests) for claim in claims], tests


def _regimes(claim: Claim) -> set[str]:
    named = {claim.all_equal[0]} if claim.all_equal else set()
    return named | {name for c in claim.contrasts for name in (c.regime, c.other[1])}


def _judged(study: Study, claim: Claim, found: Mapping[Contrast, Tested]) -> Judged:
    if claim.same_rows is not None or claim.all_equal is not None:
        share = (
            _same_rows(study, claim.same_rows) if claim.same_rows else _all_equal(study, *claim.all_equal or ("", ""))
        )
        verdict: Verdict = "confirmed" if share == 1.0 else "not confirmed"
        return Judged(claim, verdict, share=share, left=claim.left.get(verdict, ""))
    effect = tuple(found[contrast] for contrast in claim.effect)
    control = tuple(found[contrast] for contrast in claim.control)
    verdict = _denied(effect) if claim.denies else _verdict(effect, control)
    return Judged(claim, verdict, effect, control, left=claim.left.get(verdict, ""))


def _verdict(effect: Sequence[Tested], control: Sequence[Tested]) -> Verdict:
    if any(tested.holds is None for tested in (*effect, *control)):
        return "cannot decide"
    if not all(tested.holds for tested in effect):
        return "not confirmed"
    return "confirmed" if all(tested.holds for tested in control) else "explained by recency"


def _denied(effect: Sequence[Tested]) -> Verdict:
    if any(tested.holds is None for tested in effect):
        return "cannot decide"
    return "not confirmed" if all(tested.holds for tested in effect) else "confirmed"


def _same_rows(study: Study, pair: tuple[str, str]) -> float:
    shares = [float(share.mean()) for share in study.twins[pair].values()]
    return sum(shares) / len(shares)


def _all_equal(study: Study, regime: str, measure: str) -> float:
    """The share of arms whose every seed is exactly 1."""
    arms = [bool((study.by_seed(arm, regime, measure) == 1.0).all()) for arm in study.values]
    return sum(arms) / len(arms)
