"""The page on the price of the proxy: real runs of the tiny model, every method a row, what cannot run says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from velox_eval.pipelines.proxy_cost import cells, labels, page


def test_every_variant_and_the_installed_caches_are_asked() -> None:
    ours = labels(installed=False)
    assert {"morphkv", "morphkv:paper", "kvzip:paper", "random", "sliding_window"} <= set(ours)
    assert "full" not in ours
    assert "veloxquant/morphkv" in labels(installed=True)


def test_the_page_shows_what_the_runs_found(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VELOX_EVAL_CACHE", str(tmp_path / "cache"))
    asked = {"samples": 2, "tokens": 3, "model": str(tiny_model_dir), "results": tmp_path / "results"}
    done = list(cells(["sliding_window", "h2o", "qfilters:paper", "veloxquant/tova"], [80, 96], **asked))
    assert [(cell.label, cell.budget) for cell in done if cell.label.startswith("veloxquant")] == [
        ("veloxquant/tova", 80)
    ]
    text = page(done, "the command")
    for cell in done:
        [row] = [
            line
            for line in text.split(f"## Budget {cell.budget}")[1].split("##")[0].splitlines()
            if line.startswith(f"| {cell.label} |")
        ]
        if cell.label == "qfilters:paper":  # never calibrated
            assert "velox-eval calibrate" in row
        else:
            assert cell.result is not None
            assert cell.result.header.summary is not None
            value = cell.result.header.summary.scores["mean_kl"].value
            assert f"| {value:.3f} (" in row
            assert row.endswith("| 2 of 2 |")
    assert "the command" in text
    assert "NaN" not in text
    again = list(cells(["sliding_window"], [80], **asked))
    assert again[0].result is not None
    assert again[0].result.state == "finished"
