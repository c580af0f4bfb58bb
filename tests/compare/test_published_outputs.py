"""What published scores support: the MorphKV authors' LongBench-Write outputs, compared as runs of ours would be."""

from __future__ import annotations

import json

import pytest

from velox_eval.compare import compare
from velox_eval.judges.base import DIMENSIONS
from velox_eval.metrics.longwriter import length_score, official_words, quality_scores
from velox_eval.records.config import text_sha256
from velox_eval.records.score import Score

FILES = {"full": "hopf_False_type_max_fused", "snapkv": "type_snapkv", "morphkv": "type_sum_fused_win_fix"}


@pytest.fixture
def published(shared_dir, run, record):
    """The authors' answers and their judge's points as a run; `score` is s_l or s_q."""

    def make(method, score):
        folder = shared_dir / "data" / "longwriter_morphkv_outputs" / "llama3.1-8b-instruct"
        [path] = folder.glob(f"*{FILES[method]}*_judge.jsonl")
        records = []
        for index, line in enumerate(path.read_text(encoding="utf-8").splitlines()):
            row = json.loads(line)
            written = official_words(row["response"])
            length = length_score(row["length"], written)
            scores = {"s_l": Score(num=length), **quality_scores({name: row["scores"][name] for name in DIMENSIONS})}
            # The files hold the prompts in different orders.
            fields = {
                "sample_id": text_sha256(row["prompt"]),
                "response": row["response"],
                "stratum": row["type"],
                "scores": scores,
                "accuracy": length / 100,
            }
            records.append(record(index, 0.0, **fields))
        return run(records, method, None if method == "full" else 64)

    return lambda method, score: (lambda section: next(arm for arm in section.arms if not arm.baseline))(
        compare([make("full", score), make(method, score)], score=score).sections[0]
    )


def test_the_same_answers_judged_twice_are_judge_noise(published):
    """Full cache and SnapKV wrote the same 60 texts; their judge gave 66.46 and 67.71."""
    arm = published("snapkv", "s_q")
    assert arm.score.value == pytest.approx(67.71, abs=0.005)
    assert arm.difference.value == pytest.approx(67.71 - 66.46, abs=0.01)
    assert arm.difference.verdict == "judge_noise"
    assert (arm.difference.n_identical, arm.difference.n_pairs) == (60, 60)
    assert arm.difference.n_identical_other_score > 20
    assert published("snapkv", "s_l").difference.verdict == "same_answers"


def test_a_published_gain_of_two_points_is_not_shown_by_60_prompts(published):
    """MorphKV's S_l is 2.2 points above the full cache's: the spread over prompts is several times that."""
    arm = published("morphkv", "s_l")
    assert arm.score.value == pytest.approx(76.02, abs=0.005)
    assert arm.difference.value == pytest.approx(76.02 - 73.78, abs=0.01)
    assert arm.difference.verdict == "no_difference"
    assert arm.difference.low < 0 < arm.difference.high
    assert arm.difference.detectable > 2.24
