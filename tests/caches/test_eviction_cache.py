"""The cache inside real mlx-lm models: attention sees what it should, positions are true, bytes are counted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from tests.methods.streams import Stream, feed, kept, new_cache, stream
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import MethodSession, cache_use, make_caches
from velox_eval.errors import ConfigError, MethodError, ModelError
from velox_eval.methods import resolve
from velox_eval.mlx import mx
from velox_eval.mlx_lm import KVCache

ROW = 2 * 8 * 4 * 2  # bytes of one tiny-llama row in one layer: 2 heads, 8 dims, float32, key and value


def run_chunks(model: Any, caches: list[Any], tokens: list[int], chunks: list[int]) -> np.ndarray:
    """Logits [T, V] of the tokens fed in chunks."""
    logits, fed = [], 0
    for chunk in chunks:
        logits.append(model(mx.array([tokens[fed : fed + chunk]]), cache=caches)[0])
        mx.eval(logits[-1], [cache.state for cache in caches])
        fed += chunk
    return np.concatenate([np.array(part) for part in logits])


def with_mask(mask: np.ndarray) -> KVCache:
    """A plain mlx-lm cache that hands the model this boolean mask."""
    cache = KVCache()
    cache.make_mask = lambda *_args, **_kwargs: mx.array(mask)
    return cache


@pytest.mark.parametrize("chunks", [[5, 5, 1, 1], [12], [1] * 12, [3, 9], [7, 2, 3]])
def test_a_step_attends_to_what_was_kept_before_it_plus_its_own_tokens(tiny_llama: Any, chunks: list[int]) -> None:
    """Eviction takes effect for the next step: logits equal a full cache under the explicit mask (U1)."""
    tokens, budget = list(range(40, 52)), 6
    mask, fed = np.zeros((12, 12), bool), 0
    for chunk in chunks:
        for position in range(fed, fed + chunk):
            mask[position, max(0, fed - budget) : position + 1] = True
        fed += chunk
    expected = run_chunks(tiny_llama, [with_mask(mask), with_mask(mask)], tokens, [12])
    got = run_chunks(tiny_llama, make_caches(tiny_llama, "sliding_window", budget=budget), tokens, chunks)
    np.testing.assert_allclose(got, expected, atol=1e-4)


def test_offset_counts_tokens_seen_and_keys_carry_their_true_position(tiny_llama: Any) -> None:
    """U2: after eviction the next RoPE offset is the token count, not the row count."""
    caches = make_caches(tiny_llama, "tova", budget=4, n_sink=1)
    run_chunks(tiny_llama, caches, list(range(60, 68)), [1] * 8)
    cache = caches[0]
    assert cache.offset == 8
    assert cache.size() == 4
    attention, norm = tiny_llama.layers[0].self_attn, tiny_llama.layers[0].input_layernorm
    hidden = norm(tiny_llama.model.embed_tokens(mx.array([list(range(60, 68))])))
    keys = attention.k_proj(hidden).reshape(1, 8, 2, 8).transpose(0, 2, 1, 3)
    truth, positions = np.array(attention.rope(keys)), np.array(cache.kept_positions())
    for head, slot in zip(*np.nonzero(positions[0] >= 0), strict=True):
        held = np.array(cache.slots.keys)[0, head, slot]
        np.testing.assert_allclose(held, truth[0, head, positions[0, head, slot]], atol=1e-5)


def test_mlx_lm_batching_and_quantising_never_swap_it(tiny_model_dir: Any) -> None:
    """U3: refused loudly in a batch, left alone by kv_bits."""
    import mlx_lm

    model, tokenizer = mlx_lm.load(str(tiny_model_dir))
    for name in ("merge", "to_quantized", "bits"):
        assert not hasattr(make_caches(model, "morphkv")[0], name)
    caches = make_caches(model, "morphkv", budget=16)
    model.make_cache = lambda *_args, **_kwargs: caches
    with pytest.raises(
        ValueError, match=r"EvictionCache.*velox_eval\.engine\.engine\.Engine.*does not yet support batching"
    ):
        mlx_lm.batch_generate(model, tokenizer, [tokenizer.encode("one prompt")], max_tokens=4)
    mlx_lm.generate(model, tokenizer, "a prompt of some length", max_tokens=30, kv_bits=8, quantized_kv_start=0)
    assert all(type(cache) is EvictionCache and cache.size() == 16 for cache in caches)
    assert caches[0].evicted_rows[0] > 0


def test_works_through_mlx_lm_generate_as_through_our_engine(tiny_model_dir: Any) -> None:
    """The plain door: the same tokens as the engine's."""
    import mlx_lm

    from velox_eval.engine.engine import Engine
    from velox_eval.engine.models import load_model
    from velox_eval.engine.requests import Generate, Generation

    loaded = load_model(str(tiny_model_dir))
    caches = make_caches(loaded.model, "morphkv", budget=20)
    prompt = "Some forty tokens of text to write on from"
    text = mlx_lm.generate(
        loaded.model, loaded.tokenizer, prompt, max_tokens=25, prompt_cache=caches, prefill_step_size=16
    )
    engine = Engine(loaded, resolve("morphkv", budget=20), prefill_step=16)
    (answer,) = engine.generate([Generate("a", prompt, 25)])
    assert isinstance(answer, Generation)
    assert answer.text == text


def test_bytes_are_rows_held_and_buffers_apart(tiny_llama: Any) -> None:
    """U5: ten tokens hold 1,280 bytes a layer; the buffer that grows by 256 slots is another number."""
    caches = make_caches(tiny_llama, "full")
    run_chunks(tiny_llama, caches, list(range(10)), [10])
    assert caches[0].kept_bytes == 1280
    assert caches[0].allocated_bytes == 32768
    use = cache_use(caches, 0)
    assert (use.end_cache_bytes, use.allocated_cache_bytes) == (2 * 1280, 2 * 32768)
    assert use.kept_fraction == 1.0
    assert not use.method_fired


def test_the_peak_includes_rows_in_transit(tiny_llama: Any) -> None:
    """U7: limit 8, chunks of 5: 5, 10, 13, 13 rows during the steps, 5, 8, 8, 8 after them."""
    caches = make_caches(tiny_llama, "sliding_window", budget=8)
    after, during = [], []
    for start in range(0, 20, 5):
        caches[0].peak_rows = [0]
        run_chunks(tiny_llama, caches, list(range(start, start + 5)), [5])
        during.append(caches[0].peak_rows[0])
        after.append(caches[0].size())
    assert during == [5, 10, 13, 13]
    assert after == [5, 8, 8, 8]
    use = cache_use(caches[:1], 0)
    assert use.peak_cache_bytes == 13 * ROW == 1664
    assert use.end_cache_bytes == 1024
    assert use.full_cache_bytes == 20 * ROW
    assert (use.kept_tokens, use.tokens_seen, use.evicted_tokens) == ((8,), 20, 12)
    assert use.allocated_cache_bytes == 13 * ROW


def test_the_kept_fraction_is_measured() -> None:
    """U10: two removals of half each leave a quarter, whatever the settings say."""
    data = stream(0, 1, 1, 100, 4)
    first = new_cache("sliding_window", {}, 50)
    feed(first, data, [100])
    assert first.slots is not None
    rows = Stream(np.array(first.slots.keys), np.array(first.slots.values), data.queries)
    second = new_cache("sliding_window", {}, 25)
    feed(second, rows, [50])
    second.tokens_seen = first.tokens_seen  # the second stage works on what the first one left
    assert cache_use([second], 0).kept_fraction == 0.25


def test_early_share_is_the_first_tenth() -> None:
    data = stream(0, 1, 2, 100, 4)
    cache = new_cache("tova", {"n_sink": 5}, 20)
    feed(cache, data, [50] + [1] * 50)
    early = (kept(cache) < 10).sum() / kept(cache).size
    assert cache_use([cache], 0).early_share == pytest.approx(early)
    assert early >= 5 / 20


def test_only_plain_caches_are_replaced(tiny_llama: Any) -> None:
    """U6: windowed and state-space layers keep their own cache and are listed; nothing to replace is an error."""
    from mlx_lm.models.cache import ArraysCache, RotatingKVCache

    class Hybrid:
        def __init__(self, caches: list[Any]) -> None:
            self.make_cache = lambda: list(caches)

    mixed = MethodSession(
        Hybrid([KVCache(), RotatingKVCache(16), ArraysCache(2)]), resolve("sliding_window", budget=8), budget=8
    )
    assert mixed.layers == [0]
    assert [type(cache).__name__ for cache in mixed.caches] == ["EvictionCache", "RotatingKVCache", "ArraysCache"]
    assert mixed.other_layers == {"1": "RotatingKVCache", "2": "ArraysCache"}
    data = stream(0, 1, 2, 40, 4)
    feed(mixed.caches[0], data, [40])
    assert mixed.caches[0].size() == 8
    with pytest.raises(ModelError, match="RotatingKVCache"):
        make_caches(Hybrid([RotatingKVCache(16)]), "sliding_window", budget=8)


def test_a_windowed_model_is_evicted_in_its_full_layers_only() -> None:
    """A real hybrid: llama with sliding-window layers runs, and its windowed layers stay windowed."""
    model = make_tiny_llama(layer_types=["full_attention", "sliding_attention"], sliding_window=16)
    caches = make_caches(model, "sliding_window", budget=8)
    logits = run_chunks(model, caches, list(range(40)), [20] + [1] * 20)
    assert np.isfinite(logits).all()
    assert caches[0].size() == 8
    assert type(caches[1]).__name__ == "RotatingKVCache"


def test_misuse_is_refused_in_a_sentence(tiny_llama: Any) -> None:
    data = stream(0, 2, 1, 12, 4)
    short, long = new_cache("tova", {}, 8), new_cache("tova", {}, 8)
    with pytest.raises(MethodError, match="empty"):
        short.kept_positions()
    feed(short, data.one(0), [3])
    feed(long, data.one(0), [6])
    batch = EvictionCache.stack([short, long])
    with pytest.raises(MethodError, match="one at a time"):
        feed(batch, data, [2])
    with pytest.raises(MethodError, match="2 sequences but 1"):
        feed(batch, data.one(0), [1])
    with pytest.raises(MethodError, match="prefill"):
        batch.state = []
    with pytest.raises(MethodError, match="window of 4 tokens"):
        batch.make_mask(1, window_size=4)
    assert not batch.is_trimmable()
    with pytest.raises(ConfigError, match="budget=3"):
        make_caches(tiny_llama, "tova", budget=3)


def test_a_chunk_may_follow_decoding() -> None:
    """A second turn: rows go back into temporal order, and the rule goes on from there."""
    data = stream(9, 1, 2, 60, 8)
    cache = new_cache("morphkv", {"window": 3, "n_sink": 1}, 10)
    feed(cache, data, [20] + [1] * 15)
    before = kept(cache)
    ((got, _),) = feed(cache, data, [25], start=35)
    for head in range(2):
        np.testing.assert_array_equal(got[0, head, :10], data.keys[0, head, before[0, head]])
        np.testing.assert_array_equal(got[0, head, 10:], data.keys[0, head, 35:])
    assert cache.size() == 10
    assert (kept(cache)[..., -3:] == np.arange(57, 60)).all()
