"""The plan's arithmetic against what real runs held, and what it says of models that are more than plain caches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from velox_eval.engine.engine import Engine
from velox_eval.engine.models import LoadedModel, load_model
from velox_eval.engine.requests import Generate, Generation
from velox_eval.engine.skeleton import build_skeleton
from velox_eval.errors import ConfigError, ModelError
from velox_eval.methods import resolve
from velox_eval.mlx import mx
from velox_eval.pipelines.capacity import Planner, Wanted, plan_capacity

METHODS = ["full", "morphkv", "morphkv:paper", "snapkv", "snapkv:paper", "pyramidkv", "pyramidkv:paper"]
METHODS += ["kvzip", "kvzip:paper", "h2o:paper", "streaming_llm", "squeeze:paper"]
GB = 10**9
GEMMA3 = {
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "rms_norm_eps": 1e-6,
    "vocab_size": 256,
    "max_position_embeddings": 2048,
    "sliding_window": 32,
    "sliding_window_pattern": 3,
}


def measured(loaded: LoadedModel, method: str, budget: int, words: int, answer: int, step: int) -> Generation:
    """One answer of exactly `answer` tokens, written alone."""
    engine = Engine(loaded, resolve(method, budget=None if method == "full" else budget), prefill_step=step)
    (found,) = engine.generate([Generate("a", "word " * words, answer)])
    assert isinstance(found, Generation), found
    assert len(found.tokens) == answer, "the model ended early: choose another prompt"
    return found


def check(loaded: LoadedModel, planner: Planner, method: str, budget: int, words: int, answer: int, step: int) -> None:
    """Buffers within 2% of those held; with what the method keeps beside them never less, and close."""
    use = (got := measured(loaded, method, budget, words, answer, step)).cache
    config = resolve(method, budget=None if method == "full" else budget)
    need = planner.need(config, got.prompt_tokens, answer, batch=1, room=GB)
    assert need.allocated_bytes == pytest.approx(use.allocated_cache_bytes, rel=0.02)
    total = use.allocated_cache_bytes + use.peak_total_bytes - use.peak_cache_bytes
    assert need.batch_bytes >= total
    if method != "full":  # whose positions no run counts
        assert need.batch_bytes == pytest.approx(total, rel=0.02)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("budget", "words", "answer"), [(40, 20, 12), (64, 120, 40), (300, 30, 20)])
def test_planned_bytes_are_those_that_a_tiny_model_holds(
    tiny_model_dir: Path, method: str, budget: int, words: int, answer: int
) -> None:
    """Prompts of 100 to 600 tokens, under, at and over the budget."""
    planner = Planner(build_skeleton(str(tiny_model_dir), "cpu"), 64)
    check(load_model(str(tiny_model_dir)), planner, method, budget, words, answer, 64)


@pytest.mark.model
@pytest.mark.parametrize("method", [m for m in METHODS if m not in ("h2o:paper", "squeeze:paper", "snapkv:paper")])
def test_planned_bytes_are_those_that_the_real_model_holds(real_model: LoadedModel, method: str) -> None:
    check(real_model, Planner(build_skeleton("smollm2-135m", "cpu")), method, 128, 300, 24, 256)


def test_no_weights_are_made_or_read(tmp_path: Path) -> None:
    """A model of 70 billion parameters, from its configuration alone."""
    config = {"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672}
    config |= {"num_attention_heads": 64, "num_key_value_heads": 8, "rms_norm_eps": 1e-5, "vocab_size": 128256}
    config |= {"tie_word_embeddings": False, "torch_dtype": "bfloat16", "max_position_embeddings": 131072}
    (tmp_path / "config.json").write_text(json.dumps(config))
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    skeleton = build_skeleton(str(tmp_path / "config.json"), "gpu")
    found = plan_capacity(skeleton, [Wanted("morphkv", 1024)], prompts=[4096], answers=[8192], memory=192 * GB)
    assert mx.get_peak_memory() - before < 2**20
    assert skeleton.parameters == 70_553_706_496
    assert found.row_bytes == 80 * 8 * 128 * 2 * 2  # layers, KV heads, dimensions, key and value, bfloat16
    full, evicted = found.rows
    assert full.allocated_bytes == 12288 * found.row_bytes
    assert full.most == (192 * GB - found.weights_bytes) // full.batch_bytes
    assert evicted.most > 5 * full.most
    assert found.notes == [
        "Not counted: activations, logits, what the array library keeps for reuse. Leave room for them."
    ]


def test_stored_weights_are_the_files_and_else_worked_out(tiny_model_dir: Path, tmp_path: Path) -> None:
    stored = (tiny_model_dir / "model.safetensors").stat().st_size
    local = build_skeleton(str(tiny_model_dir), "gpu")
    assert local.weights_bytes == stored
    assert local.dtype == "float32"  # the files' own
    (tmp_path / "config.json").write_text((tiny_model_dir / "config.json").read_text())
    bare = build_skeleton(str(tmp_path), "gpu")
    assert bare.dtype == "bfloat16"
    assert bare.assumed
    assert bare.weights_bytes == 2 * bare.parameters
    assert build_skeleton(str(tmp_path), "cpu").weights_bytes == 4 * bare.parameters


def test_windowed_layers_are_counted_as_they_are(tmp_path: Path) -> None:
    """What mlx-lm's own windowed caches hold after a real forward pass is what the plan says."""
    (tmp_path / "config.json").write_text(json.dumps(GEMMA3))
    skeleton = build_skeleton(str(tmp_path), "gpu")
    found = plan_capacity(skeleton, [Wanted("morphkv", 64)], prompts=[200], answers=[50], memory=GB, prefill_step=16)
    full, evicted = found.rows
    assert (full.most, evicted.most) == (1, 1)
    assert any("4 RotatingKVCache" in note and "one by one" in note for note in found.notes)
    row = 2 * 16 * 2
    window = full.allocated_bytes - 2 * 256 * row  # the two plain layers, in steps of 256 slots
    assert 4 * 32 * row <= window <= 4 * (32 + 16) * row


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"prompts": [0]}, ConfigError, "prompt=0"),
        ({"batch": 0}, ConfigError, "batch=0"),
        ({"wanted": [Wanted("morphkv", 5)]}, ConfigError, "5"),
        ({"wanted": [Wanted("nothing")]}, ConfigError, "nothing"),
        ({"prefill_step": 0}, ConfigError, "prefill_step=0"),
    ],
)
def test_bad_wishes_are_one_line(tiny_model_dir: Path, changed: Any, error: type[Exception], said: str) -> None:
    asked = {"wanted": [Wanted("morphkv", 64)], "prompts": [100], "answers": [10], **changed}
    with pytest.raises(error, match=said):
        plan_capacity(build_skeleton(str(tiny_model_dir)), **asked)


@pytest.mark.parametrize(
    ("content", "said"),
    [(None, "no config.json"), ("{", "JSON"), ("{}", "model_type"), ('{"model_type": "nope"}', "nope"),
     ('{"model_type": "llama"}', "cannot make"), ('{"model_type": "llama", "model_file": "x.py"}', "never run")],
)  # fmt: skip
def test_what_is_no_configuration_is_refused(tmp_path: Path, content: str | None, said: str) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ModelError, match=said):
        build_skeleton(str(tmp_path))


def test_a_hub_id_that_is_not_here_is_not_fetched() -> None:
    with pytest.raises(ModelError, match="nothing is downloaded"):
        build_skeleton("nobody/no-such-model")
