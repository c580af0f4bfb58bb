"""The door to matplotlib: whether it is there, a figure without global state, and a file of it."""

from __future__ import annotations

import importlib.util
import io
from pathlib import Path
from typing import Any

from velox_eval.errors import ConfigError

INK = "#1f3b57"
FORMATS = ("svg", "png")
DPI = 150
# Text stays text, so that it can be searched and read aloud; equal figures give equal bytes.
_SVG = {"svg.fonttype": "none", "svg.hashsalt": "velox-eval"}


def require_matplotlib() -> None:
    """Raises ConfigError when matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError('drawing needs matplotlib: pip install "velox-eval[report]"')


def new_figure(width: float, height: float, *, dpi: int = DPI, **options: Any) -> Any:
    """Returns an empty matplotlib Figure of that size in inches, made without pyplot. Raises ConfigError without it."""
    require_matplotlib()
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, **options)
    FigureCanvasAgg(figure)
    return figure


def save(figure: Any, path: Path | str) -> None:
    """Writes `figure` to `path`, as SVG or PNG by its ending. Raises ConfigError for another, or where it cannot."""
    target = Path(path)
    kind = target.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ConfigError(f"cannot draw {target}: the name must end in .svg or .png")
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
