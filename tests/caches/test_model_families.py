"""Real mlx-lm model files with tiny random weights: every kind of layer, tapped or refused by name."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from mlx.utils import tree_map

from velox_eval.caches.session import MethodSession
from velox_eval.errors import MethodError, ModelError
from velox_eval.methods import MethodConfig, resolve
from velox_eval.mlx import mx
from velox_eval.mlx_lm import make_prompt_cache

COMMON = {
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 100,
    "max_position_embeddings": 512,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
}
LATENT = {
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "num_key_value_heads": 4,
    "n_routed_experts": None,
    "first_k_dense_replace": 4,
    "n_shared_experts": None,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "routed_scaling_factor": 1.0,
    "n_group": 1,
    "topk_group": 1,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "norm_topk_prob": True,
    "rope_scaling": None,
    "attention_bias": False,
    "moe_layer_freq": 1,
}
GEMMA = {"query_pre_attn_scalar": 8, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "phi3": {"rope_scaling": None},
    "qwen3_moe": {
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "decoder_sparse_step": 1,
        "moe_intermediate_size": 16,
        "norm_topk_prob": True,
        "mlp_only_layers": [],
    },
    "gemma2": GEMMA,
    "gemma3_text": {
        "query_pre_attn_scalar": 8,
        "sliding_window": 16,
        "sliding_window_pattern": 2,
        "rope_local_base_freq": 10000.0,
    },
    "lfm2": {
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 32,
        "block_ff_dim": 64,
        "block_multiple_of": 8,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "full_attn_idxs": [1, 3],
        "layer_types": None,
    },
    "deepseek_v3": LATENT,
}
REPLACED = {"gemma3_text": [1, 3], "lfm2": [1, 3]}  # the others: every layer
LEFT_ALONE = {"gemma3_text": "RotatingKVCache", "lfm2": "ArraysCache"}
NO_QUERIES = {"gemma2": "cannot be tapped", "deepseek_v3": "latents"}  # its own attention; latents instead of keys
TOKENS = [int(token) for token in np.random.default_rng(0).integers(0, 100, 30)]
PROMPT = 20


SHARING = {
    "final_logit_softcapping": 30.0,
    "num_hidden_layers": 6,
    "num_kv_shared_layers": 2,
    "vocab_size_per_layer_input": 100,
    "sliding_window": 16,
    "rope_local_base_freq": 10000.0,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
    "activation_sparsity_pattern": [0.0] * 6,
    "hidden_size_per_layer_input": 8,
    "altup_num_inputs": 2,
    "altup_coef_clip": 1.0,
    "altup_correct_scale": True,
    "altup_active_idx": 0,
    "laurel_rank": 4,
}


def build(name: str, **overrides: Any) -> Any:
    """A tiny random model of a family."""
    module = importlib.import_module(f"mlx_lm.models.{name}")
    mx.random.seed(0)
    model = module.Model(module.ModelArgs.from_dict({**COMMON, "model_type": name, **FAMILIES[name], **overrides}))
    model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.2, model.parameters()))
    mx.eval(model.parameters())
    return model


def logits(model: Any, caches: list[Any], after_prompt: Any = None) -> list[np.ndarray]:
    """The prompt at once, then token by token."""
    found = [np.array(model(mx.array([TOKENS[:PROMPT]]), cache=caches))]
    if after_prompt is not None:
        after_prompt(TOKENS[:PROMPT])
    return found + [np.array(model(mx.array([[token]]), cache=caches)) for token in TOKENS[PROMPT:]]


def run(model: Any, method: MethodConfig) -> tuple[MethodSession, list[np.ndarray]]:
    """A prompt and ten tokens under a method."""
    MethodSession(model, method, budget=None).check_tap()
    with MethodSession(model, method, budget=method.budget) as session:
        return session, logits(model, session.caches, session.after_prefill)


@pytest.mark.parametrize("name", FAMILIES)
def test_full_answers_as_mlx_lm_does(name: str) -> None:
    model = build(name)
    for ours, plain in zip(run(model, resolve("full"))[1], logits(model, make_prompt_cache(model)), strict=True):
        np.testing.assert_allclose(ours, plain, atol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["sliding_window", "morphkv", "kvzip", "h2o"])
def test_adapted_methods_run_on_every_family(name: str, method: str) -> None:
    """Plain caches are replaced, the others left alone and listed; the budget holds."""
    params = {"morphkv": {"window": 4}, "h2o": {"grace": 2}}.get(method, {})
    session, found = run(build(name), resolve(method, params, budget=12))
    assert session.layers == REPLACED.get(name, [0, 1, 2, 3])
    assert set(session.other_layers.values()) == ({LEFT_ALONE[name]} if name in LEFT_ALONE else set())
    assert all(cache.size() == 12 for cache in session.evicting)
    assert all(np.isfinite(part).all() for part in found)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("method", ["morphkv:paper", "h2o:paper", "snapkv:paper"])
def test_paper_variants_see_queries_or_are_refused_by_name(name: str, method: str) -> None:
    params = {"window": 4} if method != "h2o:paper" else {}
    config = resolve(method, params, budget=12)
    if name in NO_QUERIES:
        with pytest.raises(MethodError, match=NO_QUERIES[name]):
            run(build(name), config)
        return
    session, found = run(build(name), config)
    assert all(cache.evicted_rows[0] > 0 for cache in session.evicting)
    assert all(np.isfinite(part).all() for part in found)


@pytest.mark.parametrize("method", ["full", "morphkv", "morphkv:paper"])
def test_layers_that_share_rows_attend_to_what_their_owner_did(method: str) -> None:
    """gemma3n: four caches for six layers; the last two read the rows of earlier ones."""
    module = importlib.import_module("mlx_lm.models.gemma3n")
    mx.random.seed(0)
    text = {**COMMON, "model_type": "gemma3n", **SHARING}
    model = module.Model(module.ModelArgs(model_type="gemma3n", text_config=text))
    model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.2, model.parameters()))
    config = resolve(method, {} if method == "full" else {"window": 4}, budget=None if method == "full" else 12)
    session, found = run(model, config)
    assert session.layers == [1, 3]
    assert all(np.isfinite(part).all() for part in found)
    if method == "full":
        for ours, plain in zip(found, logits(model, make_prompt_cache(model)), strict=True):
            np.testing.assert_allclose(ours, plain, atol=1e-5)
    else:
        assert all(cache.size() == 12 for cache in session.evicting)


def test_nothing_to_replace_is_an_error() -> None:
    model = build("gemma3_text", sliding_window_pattern=5)
    with pytest.raises(ModelError, match="RotatingKVCache"):
        MethodSession(model, resolve("morphkv"), budget=64)
