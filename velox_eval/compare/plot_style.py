"""How a method looks in every plot: colour and marker by method, dashes by variant; distinct without colour too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from velox_eval.compare.comparison import Arm
from velox_eval.compare.plot_labels import short

# Okabe and Ito's colours and two of Tol's, told apart with every kind of colour vision; yellow, too pale, is left out.
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#6b6b1f")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">")  # one more than colours: pairs repeat after 72 methods
BASELINE = "#16191d"
_SOLID, _DASHED, _DOTTED = "-", (0, (4, 1.6)), (0, (1, 1.2))


class Look(NamedTuple):
    """Colour, marker and dashes of a method's line."""

    colour: str
    marker: str
    dashes: str | tuple[int, tuple[float, float]]


def line_name(arm: Arm) -> str:
    """Returns the name of the line that the arm is a point of: its method and what else tells it from others."""
    settings = [f"{key}={value}" for key, value in arm.shown_params.items()]
    return short(" ".join([arm.method.removesuffix(":adapted"), *settings]))


def looks(labels: Iterable[str]) -> Mapping[str, Look]:
    """Returns the look of every label; variants and settings of one method share its colour and marker.

    Paper variants are solid, adapted ones dashed, the installed package's own dotted.
    """
    ordered = sorted(set(labels))
    methods = sorted({_method(label) for label in ordered} - {"full"})
    place = {method: index for index, method in enumerate(methods)}
    found = {}
    for label in ordered:
        method = _method(label)
        if method == "full":
            found[label] = Look(BASELINE, "*", _SOLID)
            continue
        index = place[method]
        dashes = _SOLID if ":" in label else _DOTTED if "/" in label else _DASHED
        found[label] = Look(PALETTE[index % len(PALETTE)], MARKERS[index % len(MARKERS)], dashes)
    return found


def _method(label: str) -> str:
    return label.split(" ")[0].split("/")[-1].split(":")[0]
