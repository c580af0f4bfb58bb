"""From stored runs to verdicts: what may be compared, what the samples can tell, what is counted."""

from __future__ import annotations

import math

import numpy as np
import pytest

from velox_eval.compare import Comparison, compare, load_runs
from velox_eval.errors import ConfigError, StoreError
from velox_eval.metrics.uncertainty import proportion_interval
from velox_eval.records.score import Score

QUICK = {"resamples": 999}


def only_arm(comparison, label="morphkv@64"):
    [section] = comparison.sections
    return next(arm for arm in section.arms if arm.label == label)


def verdict(first, second, **options):
    return only_arm(compare([second, first], **QUICK, **options)).difference


def test_full_against_itself_is_the_same(run):
    scores = [float(i % 3 > 0) for i in range(12)]
    comparison = compare([run(scores), run(scores, number=2)], repeats=True, **QUICK)
    baseline, again = comparison.sections[0].arms
    assert baseline.baseline
    assert again.label != baseline.label
    assert (again.difference.verdict, again.difference.value) == ("same_answers", 0.0)
    assert (again.difference.n_identical, again.difference.n_pairs) == (12, 12)
    assert again.difference.against == baseline.label


def test_a_known_shift_is_called_better_or_worse(run):
    rng = np.random.default_rng(0)
    base = rng.normal(10, 1, 30)
    full, better = run(list(base)), run(list(base + rng.normal(1, 0.5, 30)), "morphkv", 64)
    up = verdict(better, full)
    assert (up.verdict, up.reason) == ("better", "")
    assert up.low > 0
    assert up.p_adjusted < 0.01
    down = verdict(
        run([r.scores["accuracy"].num for r in better.samples], "morphkv", 64, higher=False),
        run(list(base), higher=False),
    )
    assert down.verdict == "worse"
    assert down.value == pytest.approx(up.value)


def test_no_difference_says_what_would_have_shown(run):
    rng = np.random.default_rng(1)
    base = rng.normal(0, 1, 40)
    found = verdict(run(list(base + rng.normal(0, 1, 40)), "morphkv", 64), run(list(base)))
    assert found.verdict == "no_difference"
    assert found.low < 0 < found.high
    assert found.detectable == pytest.approx((2.02 + 0.85) / math.sqrt(40), rel=0.3)


def test_a_margin_makes_no_difference_a_finding(run):
    rng = np.random.default_rng(2)
    base = rng.normal(10, 1, 40)
    full, near = run(list(base)), run(list(base + rng.normal(0, 0.1, 40)), "morphkv", 64)
    assert verdict(near, full).verdict == "no_difference"
    assert verdict(near, full, margin=0.2).verdict == "not_worse"
    assert verdict(near, full, margin=0.001).verdict == "no_difference"
    slightly = run(list(base - 0.1 + rng.normal(0, 0.1, 40)), "morphkv", 64)
    found = verdict(slightly, full, margin=0.5)
    assert (found.verdict, found.within_margin) == ("worse", True)


def test_too_few_samples_cannot_decide(run):
    four = verdict(run([1.0] * 4, "morphkv", 64), run([0.0] * 4))
    assert (four.verdict, four.needed_pairs) == ("cannot_decide", 6)
    assert verdict(run([1.0] * 6, "morphkv", 64), run([0.0] * 6)).verdict == "better"


def test_more_methods_need_more_samples(run):
    """Six samples decide between two; with four methods at one budget Holm leaves them nothing to say."""
    others = [run([1.0] * 6, method, 64) for method in ("tova", "h2o", "knorm")]
    arm = only_arm(compare([run([0.0] * 6), run([1.0] * 6, "morphkv", 64), *others], **QUICK))
    assert (arm.difference.verdict, arm.difference.family) == ("cannot_decide", 4)
    assert arm.difference.needed_pairs == 8
    apart = [run([1.0] * 6, method, 128) for method in ("tova", "h2o", "knorm")]
    arm = only_arm(compare([run([0.0] * 6), run([1.0] * 6, "morphkv", 64), *apart], **QUICK))
    assert (arm.difference.verdict, arm.difference.family) == ("better", 1)  # other budgets are other families


def test_the_same_answers_with_other_scores_are_judge_noise(run, record):
    noisy = [record(i, float(i % 4), response=f"text {i}") for i in range(20)]
    steady = [record(i, float((i + 1) % 4), response=f"text {i}") for i in range(20)]
    found = only_arm(compare([run(steady), run(noisy, "snapkv", 64)], **QUICK), "snapkv@64").difference
    assert found.verdict == "judge_noise"
    assert (found.n_identical, found.n_identical_other_score) == (20, 20)
    partly = [*noisy[:5], *(record(i, 1.0, response=f"other {i}") for i in range(5, 20))]
    found = only_arm(compare([run(steady), run(partly, "snapkv", 64)], **QUICK), "snapkv@64").difference
    assert found.verdict not in ("judge_noise", "same_answers")
    assert (found.n_identical, found.n_identical_other_score) == (5, 5)


DIFFERENT = {
    "task_version": 2,
    "data": {"data_sha256": "f" * 64},
    "requests": {"requests_sha256": "f" * 64},
    "model": {"model_sha256": "f" * 64, "model": "other"},
    "prefill_step": 512,
    "temperature": 0.5,
    "judge": "openai:x@1",
    "device": "gpu",
    "route": "float16",
    "source": "official",
    "versions": {"versions": {"mlx": "0.33.0"}},
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_other_conditions_are_refused_by_name_and_value(run, name):
    value = DIFFERENT[name]
    changes = value if isinstance(value, dict) else {name: value}
    full, other = run([1.0] * 8), run([0.0] * 8, "morphkv", 64, **changes)
    with pytest.raises(ConfigError) as error:
        compare([full, other])
    assert f"{name} is " in str(error.value)
    assert full.header.run_id in str(error.value)
    assert other.header.run_id in str(error.value)
    assert "--allow" in str(error.value)
    allowed = compare([full, other], allow=["top_p", name] if name == "temperature" else [name], **QUICK)
    [section] = allowed.sections
    assert name in section.mixed
    assert name not in section.conditions
    assert len(section.mixed[name]) == 2
    assert only_arm(allowed).difference.verdict == "worse"


def test_both_values_of_a_condition_are_named(run):
    with pytest.raises(ConfigError, match=r"prefill_step is 256 and 512; --allow prefill_step"):
        compare([run([1.0] * 8), run([1.0] * 8, "morphkv", 64, prefill_step=512)])


def test_another_task_cannot_be_allowed(run):
    with pytest.raises(ConfigError, match="condition to allow 'task'"):
        compare([run([1.0])], allow=["task"])
    with pytest.raises(ConfigError, match="did you mean 'prefill_step'"):
        compare([run([1.0])], allow=["prefill_steps"])


def test_models_and_seeds_are_tables_of_their_own(run):
    """The greedy full cache draws nothing, so one run of it serves every seed."""
    other = {"model": "big", "model_sha256": "b" * 64}
    runs = [
        run([1.0] * 8),
        *(run([0.0] * 8, "random", 64, seed=seed) for seed in (1, 2)),
        run([1.0] * 8, **other),
        run([0.0] * 8, "random", 64, seed=1, **other),
    ]
    comparison = compare(runs, **QUICK)
    assert [(s.model, s.seed, len(s.arms)) for s in comparison.sections] == [
        ("tiny", 1, 2),
        ("tiny", 2, 2),
        ("big", 1, 2),
    ]
    assert all(s.arms[0].baseline and s.arms[1].difference.verdict == "worse" for s in comparison.sections)


def test_a_folders_strangers_are_left_out_with_the_reason(run):
    runs = [run([1.0] * 8), run([0.0] * 8, "morphkv", 64), run([0.0] * 8, "tova", 64, prefill_step=512)]
    with pytest.raises(ConfigError, match="prefill_step"):
        compare(runs)
    comparison = compare(runs, split=True, **QUICK)
    assert [arm.label for arm in comparison.arms()] == ["full", "morphkv@64"]
    [left] = comparison.left_out
    assert left.label == "tova@64"
    assert "prefill_step is 256 and 512" in left.reason
    runs += [run([0.0] * 8, "h2o", 64, prefill_step=512)]
    for left in compare(runs, split=True, **QUICK).left_out:
        assert f"with run {left.run_id} ({left.label})" in left.reason  # itself, not another of its group
    with pytest.raises(ConfigError, match="prefill_step is 256 and 512"):  # nothing would be left to compare
        compare([runs[0], runs[2]], split=True)


def test_a_missing_baseline_is_named(run):
    with pytest.raises(ConfigError, match=r"no run of the baseline 'full'.*choose --baseline from morphkv@64"):
        compare([run([1.0] * 8, "morphkv", 64)])
    [section] = compare([run([1.0] * 8, "morphkv", 64)], baseline="none", **QUICK).sections
    assert section.arms[0].difference is None


def test_a_baseline_with_budgets_meets_its_equals(run):
    runs = [run([0.0] * 8, "streaming_llm", budget) for budget in (64, 128)]
    runs += [run([1.0] * 8, "morphkv", budget) for budget in (64, 128)]
    found = compare(runs, baseline="streaming_llm", **QUICK).arms()
    assert [(arm.label, arm.difference.against) for arm in found if arm.difference] == [
        ("morphkv@64", "streaming_llm@64"),
        ("morphkv@128", "streaming_llm@128"),
    ]
    one = compare(runs, baseline="streaming_llm@128", **QUICK).arms()
    assert {arm.difference.against for arm in one if arm.difference} == {"streaming_llm@128"}
    both = [run([0.0] * 8, "streaming_llm", 64, settings={"n_sink": n}) for n in (2, 4)]
    with pytest.raises(ConfigError, match="could be compared with"):
        compare([*both, runs[2]], baseline="streaming_llm")


def test_parameters_are_shown_where_they_differ(run):
    runs = [run([1.0] * 8), run([0.0] * 8, "tova", 64)]
    runs += [run([0.0] * 8, "morphkv", 64, settings={"window": window}) for window in (8, 16)]
    labels = [arm.label for arm in compare(runs, **QUICK).arms()]
    assert labels == ["full", "morphkv@64 window=16", "morphkv@64 window=8", "tova@64"]


def test_of_several_runs_of_an_arm_the_newest_counts(run):
    old, new = run([0.0] * 8, "morphkv", 64), run([1.0] * 8, "morphkv", 64, number=2)
    comparison = compare([run([1.0] * 8), old, new], **QUICK)
    assert only_arm(comparison).run_id == new.header.run_id
    assert [(left.run_id, new.header.run_id in left.reason) for left in comparison.left_out] == [
        (old.header.run_id, True)
    ]


def test_unfinished_runs_are_listed_and_left_out(run):
    half = run([1.0] * 4, "morphkv", 64, finished=False, status="cancelled")
    comparison = compare([run([1.0] * 8), run([1.0] * 8, "tova", 64), half], **QUICK)
    assert [arm.label for arm in comparison.arms()] == ["full", "tova@64"]
    assert "unfinished (cancelled): 4 of 4 samples" in comparison.left_out[0].reason
    taken = compare([run([1.0] * 8), half], unfinished=True, **QUICK)
    arm = only_arm(taken)
    assert (arm.finished, arm.difference.n_pairs, arm.difference.n_dropped) == (False, 4, 4)
    assert "unfinished" in arm.notes[0]


def test_failed_samples_count_as_missed(run, record):
    """80 right of 100, ten of the others failed: 0.8 over all, 0.889 over the scored."""
    base = [1.0] * 90 + [0.0] * 10
    crashing = [1.0] * 80 + [0.0] * 10 + [None] * 10
    arm = only_arm(compare([run(base), run(crashing, "morphkv", 64, status="error")], **QUICK))
    assert (arm.counts.ok, arm.counts.error) == (90, 10)
    assert (arm.accuracy, arm.accuracy_scored) == (pytest.approx(0.8), pytest.approx(80 / 90))
    assert arm.score.value == pytest.approx(0.8)
    assert (arm.difference.n_pairs, arm.difference.value) == (100, pytest.approx(-0.1))
    assert arm.difference.verdict == "worse"
    assert "ended in error" in arm.notes[0]


def test_a_failed_sample_missed_what_the_other_side_was_asked(run):
    base = [Score(num=3, den=12)] * 8
    found = verdict(run([None, *base[1:]], "morphkv", 64, status="error"), run(base))
    assert found.value == pytest.approx(21 / 96 - 24 / 96)


def test_where_lower_is_better_a_failure_is_never_an_advantage(run):
    base, less = [2.0] * 12, [1.0] * 10 + [None] * 2
    found = only_arm(compare([run(base, higher=False), run(less, "morphkv", 64, higher=False)], **QUICK))
    assert (found.difference.verdict, found.difference.n_pairs) == ("cannot_decide", 10)
    assert "2 failed samples" in found.difference.reason
    assert any("2 failed samples" in note for note in found.notes)


def test_unscored_samples_leave_both_sides(run, record):
    base = [record(i, 1.0) for i in range(8)]
    unclear = [record(i, 1.0) for i in range(7)]
    unclear.append(record(7, 0.0, scores={}, accuracy=None, unscored={"accuracy": "no verdict"}))
    arm = only_arm(compare([run(base), run(unclear, "morphkv", 64)], **QUICK))
    assert (arm.counts.unscored, arm.score.value, arm.score.n) == (1, 1.0, 7)
    assert (arm.difference.n_pairs, arm.difference.n_dropped) == (7, 1)


def test_a_type_without_samples_is_null_with_n_0(run):
    runs = [run([1.0] * 4 + [0.0] * 4, strata=["0-4k"] * 4 + ["8k+"] * 4)]
    runs.append(run([1.0] * 4, "morphkv", 64, strata=["0-4k"] * 4, finished=False))
    arm = only_arm(compare(runs, unfinished=True, **QUICK))
    assert (arm.by_stratum["8k+"].value, arm.by_stratum["8k+"].n) == (None, 0)
    assert arm.by_stratum["0-4k"].value == 1.0
    assert "NaN" not in compare(runs, unfinished=True, **QUICK).model_dump_json()


def test_shares_that_noise_explains_are_not_told_apart(run, record):
    """p = 0.20 of 300: standard error 0.0231, half-width 0.0453; 0.22 of 300 other samples is no difference."""
    assert proportion_interval(0.2, 300).standard_error == pytest.approx(0.0231, abs=5e-5)
    ours = [record(i, float(i < 66), sample_id=f"other{i}") for i in range(300)]
    theirs = [float(i < 60) for i in range(300)]
    other = {"data_sha256": "c" * 64, "requests_sha256": "c" * 64}
    arm = only_arm(compare([run(theirs), run(ours, "morphkv", 64, **other)], allow=["data", "requests"], **QUICK))
    assert (arm.difference.verdict, arm.difference.paired) == ("no_difference", False)
    assert arm.difference.value == pytest.approx(0.02)
    assert (arm.difference.high - arm.difference.low) / 2 == pytest.approx(1.96 * 0.0332, rel=0.1)
    assert (arm.score.high - arm.score.low) / 2 == pytest.approx(0.0465, rel=0.1)


def test_pairs_see_what_two_shares_do_not(run):
    """The same 0.20 and 0.22 on the same 300 samples: six that only the method gets right, none the other way."""
    found = verdict(run([float(i < 66) for i in range(300)], "morphkv", 64), run([float(i < 60) for i in range(300)]))
    assert (found.verdict, found.p) == ("better", 2 / 2**6)


def test_scores_of_another_name(run, record):
    for name, expected in (("mean_kl_own_answer", "better"), ("top1_agreement", "worse")):
        sides = [[record(i, value, score_name=name) for i in range(8)] for value in (2.0, 1.0)]
        full, other = run(sides[0]), run(sides[1], "morphkv", 64)
        assert verdict(other, full, score=name).verdict == expected
    with pytest.raises(ConfigError, match="score of task quiz 'acuracy'; did you mean 'accuracy'"):
        compare([run([1.0] * 8), run([1.0] * 8, "morphkv", 64)], score="acuracy")
    found = verdict(run([1.0] * 8, "morphkv", 64), run([0.0] * 8), score="percent")
    assert (found.verdict, found.value) == ("not_compared", None)


def test_bytes_are_logical_over_logical(run, record):
    """10 rows in buffers of 256: 1,280 bytes held, 32,768 allocated; the share is of rows, not of buffers."""
    sizes = {"peak_cache_bytes": 1280, "allocated_cache_bytes": 32768, "full_cache_bytes": 2560}
    cost = only_arm(compare([run([1.0] * 3), run([record(i, 1.0, **sizes) for i in range(3)], "morphkv", 64)])).cost
    assert (cost.peak_cache_bytes, cost.allocated_cache_bytes, cost.peak_of_full) == (1280, 32768, 0.5)
    assert (cost.kept_tokens, cost.kept_fraction, cost.early_share) == (5.0, 0.5, pytest.approx(0.2))


def test_speeds_compare_at_equal_batch_only(run):
    runs = [run([1.0] * 8, speed=50), run([1.0] * 8, "morphkv", 64, speed=100), run([1.0] * 8, "tova", 64, batch=4)]
    full, morphkv, tova = compare(runs, **QUICK).arms()
    assert (morphkv.cost.decode_ratio, morphkv.cost.prefill_ratio) == (2.0, 1.0)
    assert (tova.cost.batch, tova.cost.batch_equal, tova.cost.decode_ratio) == (4, False, None)
    assert tova.cost.decode_tokens_per_second == 100
    assert full.cost.batch_equal


def test_speeds_at_equal_memory_are_a_table_of_their_own(run):
    limit = {"performance": {"batch_size": "auto", "memory_limit": 1_000_000}}
    runs = [
        run([1.0] * 8, speed=50, batch=2, **limit),
        run([1.0] * 8, "morphkv", 64, speed=150, batch=8, **limit),
        run([1.0] * 8, "morphkv", 64, speed=10, batch=1, number=2),  # newer, without a limit
        run([1.0] * 8, "tova", 64, performance={"memory_limit": 5}),
    ]
    [section] = compare(runs, **QUICK).sections
    assert [(row.label, row.batch, row.decode_ratio) for row in section.equal_memory] == [
        ("morphkv@64", 8, 3.0),
        ("full", 2, 1.0),
    ]


def test_repetition_compares_at_equal_length(run, record):
    """A long answer that begins to loop after the other has ended repeats nothing within the other's length."""
    short = " ".join(f"word{i}" for i in range(50))
    looping = short + " go on" * 100
    runs = [run([record(i, 1.0, response=short) for i in range(6)])]
    runs.append(run([record(i, 1.0, response=looping) for i in range(6)], "morphkv", 64))
    arm = only_arm(compare(runs, **QUICK))
    assert arm.repetition_rate > 0.5
    assert (arm.repetition.value, arm.repetition.baseline, arm.repetition.words) == (0, 0, 50)


def test_a_method_that_never_fired_is_marked(run, record):
    quiet = [record(i, 1.0, method_fired=False) for i in range(6)]
    arm = only_arm(compare([run([1.0] * 6), run(quiet, "morphkv", 64)], **QUICK))
    assert arm.counts.not_fired == 6
    assert "nothing was evicted" in arm.notes[0]


@pytest.mark.parametrize(
    ("options", "words"), [({"alpha": 0.0}, "alpha=0"), ({"margin": -1.0}, "margin=-1"), ({"power": 1.0}, "power=1")]
)
def test_settings_that_cannot_work_are_refused(run, options, words):
    with pytest.raises(ConfigError, match=words):
        compare([run([1.0] * 8)], **options)


def test_a_comparison_is_json_and_the_same_every_time(run):
    rng = np.random.default_rng(3)
    runs = [run(list(rng.normal(0, 1, 20))), run(list(rng.normal(0, 1, 20)), "morphkv", 64)]
    text = compare(runs).model_dump_json()
    assert compare(runs).model_dump_json() == text
    assert Comparison.model_validate_json(text) == compare(runs)


def test_runs_are_found_by_folder_id_and_results_folder(run, stored, tmp_path):
    paths = [stored(run([1.0] * 8), tmp_path), stored(run([0.0] * 8, "morphkv", 64), tmp_path)]
    both = load_runs([tmp_path])
    assert sorted(each.header.run_id for each in both) == sorted(path.name for path in paths)
    assert [each.header.run_id for each in load_runs([paths[1], paths[1].name], tmp_path)] == [paths[1].name]
    assert compare(both, **QUICK).arms()[1].difference.verdict == "worse"
    with pytest.raises(StoreError, match="no run 'nothing'"):
        load_runs(["nothing"], tmp_path)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="empty holds no run"):
        load_runs([tmp_path / "empty"])
    with pytest.raises(StoreError, match="no run was given"):
        load_runs([])


def test_null_comparisons_raise_few_false_alarms(run):
    """200 comparisons of five equal methods on eight samples each, from runs to verdicts."""
    rng = np.random.default_rng(4)
    methods = ("morphkv", "tova", "h2o", "knorm", "random")
    alarms = 0
    for _ in range(200):
        skill = rng.uniform(0.2, 0.8, 9)
        base, *others = ([Score(num=float(k), den=12) for k in rng.binomial(12, skill)] for _ in range(6))
        runs = [run(base), *(run(side, method, 64) for side, method in zip(others, methods, strict=True))]
        alarms += any(
            arm.difference.verdict in ("better", "worse")
            for arm in compare(runs, resamples=499).arms()
            if arm.difference
        )
    assert alarms <= 16  # 10 expected at most
