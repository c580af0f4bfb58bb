"""Texts whose topic shifts and comes back, written for this, in which real attention is recorded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from velox_eval.tasks.definition import task_files
from velox_eval.tasks.sources import content_sha256, read_rows


@dataclass(frozen=True)
class ShiftingText:
    """A text in three parts: a topic, another topic, and the first one again."""

    name: str
    first: str
    second: str
    back: str


def shifting_texts(path: Path | None = None) -> tuple[list[ShiftingText], str]:
    """Returns the texts of a JSONL file (default: the bundled ones) and the SHA-256 of their content.

    Raises DataError naming file, line and field.
    """
    rows = read_rows(path or task_files() / "mechanism" / "texts.jsonl", get="reinstall velox-eval")
    texts = [ShiftingText(row.text("id"), row.text("first"), row.text("second"), row.text("back")) for row in rows]
    return texts, content_sha256(vars(text) for text in texts)
