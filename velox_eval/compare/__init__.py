"""Comparing stored runs: who is better, by how much, and whether these samples can tell. Imports no mlx."""

from __future__ import annotations

from velox_eval.compare.comparison import VERDICTS, Comparison
from velox_eval.compare.decide import compare, load_runs

__all__ = ["VERDICTS", "Comparison", "compare", "load_runs"]
