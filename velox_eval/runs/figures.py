"""The door to matplotlib: whether it is there, a figure without global state, and a file of it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

from velox_eval.errors import ConfigError
from velox_eval.extras import required
from velox_eval.records.output import check_file

INK, PALE, ALARM = "#1f3b57", "#9fb4c7", "#b5482a"
FORMATS = ("svg", "png")
DPI = 150
# Text stays text, so that it can be searched and read aloud; equal figures give equal bytes.
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "velox-eval"}


def require_matplotlib() -> None:
    """Raises ConfigError when matplotlib is not installed, or broken."""
    for module in ("matplotlib", "matplotlib.backends.backend_agg", "matplotlib.figure"):
        required(module, "report", "drawing")


def new_figure(width: float, height: float, *, dpi: int = DPI, **options: Any) -> Any:
    """Returns an empty matplotlib Figure of that size in inches, made without pyplot. Raises ConfigError without it."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, **options)
    FigureCanvasAgg(figure)
    return figure


def shades() -> Any:
    """Returns the colour map of shares, 0 to 1: white to INK."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("shares", ["#ffffff", "#8fb3d1", INK])


def check_figure_path(path: Path) -> None:
    """Raises ConfigError where no figure can be written to `path`: another ending, no such folder."""
    if _kind(path) not in FORMATS:
        raise ConfigError(f"cannot draw {path}: the name must end in .svg or .png")
    check_file(path)


def _kind(path: Path) -> str:
    return path.suffix.removeprefix(".").lower()


def save(figure: Any, path: Path | str) -> None:
    """Writes `figure` to `path`, as SVG or PNG by its ending. Raises ConfigError for another, or where it cannot."""
    target = Path(path)
    check_figure_path(target)
    kind = _kind(target)
    content = as_svg(figure).encode() if kind == "svg" else _png(figure)
    try:
        target.write_bytes(content)
    except OSError as error:
        raise ConfigError(f"cannot write {target}: {error.strerror or error}") from error


def as_svg(figure: Any) -> str:
    """Returns the figure as an SVG document, the same for the same figure."""
    import matplotlib

    stream = io.StringIO()
    with matplotlib.rc_context(_SVG):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    return stream.getvalue()


def _png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png", dpi="figure", metadata={"Software": None})
    return stream.getvalue()
