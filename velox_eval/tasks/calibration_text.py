"""The bundled text that models are calibrated on: prose, dialogue, letters, a table and code, written for this."""

from __future__ import annotations

from velox_eval.tasks.definition import task_files


def calibration_text() -> str:
    """Returns the texts of `tasks/calibration`, one after the other by name; some 3,000 tokens."""
    files = sorted((task_files() / "calibration").glob("*.txt"))
    return "\n".join(path.read_text(encoding="utf-8") for path in files)
