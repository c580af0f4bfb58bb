"""One token's attention: mlx's own result, and logits that change nothing about what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.conftest import make_tiny_llama
from tests.methods.matrix import EVICTING, Case
from velox_eval.caches import attention_tap as tap_module
from velox_eval.caches.attention import fits, one_token
from velox_eval.caches.base import EvictionCache
from velox_eval.caches.session import MethodSession
from velox_eval.methods import resolve
from velox_eval.mlx import mx

# Qfilters and random look at no attention; squeeze ranks as h2o does, after passes of its own.
LENT = [
    case
    for case in EVICTING
    if not case.grows and case.layer.count == 1 and case.method.split(":")[0] not in ("qfilters", "squeeze", "random")
]


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("masked", [False, True])
def test_equals_the_attention_of_mlx(group: int, masked: bool) -> None:
    mx.random.seed(group)
    queries = mx.random.normal((2, 2 * group, 1, 16))
    keys, values = mx.random.normal((2, 2, 9, 16)), mx.random.normal((2, 2, 9, 8))
    probe = mx.random.normal((2, 2, 1, 16))
    mask = mx.array([[True] * 9, [True] * 6 + [False] * 3])[:, None, None] if masked else None
    theirs = mx.fast.scaled_dot_product_attention(queries, keys, values, scale=0.3, mask=mask)
    ours, (logits, weights) = one_token(queries, keys, values, 0.3, mask, probe)
    np.testing.assert_allclose(np.array(ours), np.array(theirs), atol=1e-5)
    own = np.array(queries).reshape(2, 2, group, 16) @ np.array(keys).swapaxes(-1, -2) * 0.3
    np.testing.assert_allclose(np.array(logits[:, :, :group]), own, atol=1e-5)
    counted = own if mask is None else np.where(np.array(mask), own, -np.inf)
    shares = np.exp(counted - counted.max(axis=-1, keepdims=True))
    np.testing.assert_allclose(np.array(weights), shares / shares.sum(axis=-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(np.array(logits[:, :, -1:]), np.array(probe @ keys.swapaxes(-1, -2)) / 4, atol=1e-5)


def test_a_probe_changes_no_bit_of_the_attention() -> None:
    queries, keys = mx.random.normal((3, 6, 1, 16)), mx.random.normal((3, 2, 40, 16))
    alone, _ = one_token(queries, keys, keys, 0.25, None, None)
    beside, _ = one_token(queries, keys, keys, 0.25, None, keys[:, :, -1:])
    assert mx.array_equal(alone, beside)


def test_leaves_what_it_cannot_do_to_mlx() -> None:
    one, two = mx.zeros((1, 2, 1, 8)), mx.zeros((1, 2, 2, 8))
    keys = mx.zeros((1, 2, 5, 8))
    assert fits(one, keys, keys, None, {"sinks": None})
    assert not fits(two, keys, keys, None, {})
    assert not fits(one, keys, keys, mx.zeros((1, 1, 1, 5)), {})  # added, not a choice
    assert not fits(one, keys, keys, None, {"sinks": mx.zeros(2)})
    assert not fits(one.astype(mx.bfloat16), keys, keys, None, {})
    assert not fits(one, (keys, keys), (keys, keys), None, {})  # a quantised cache


@pytest.mark.parametrize("case", LENT, ids=lambda case: case.id)
def test_methods_keep_the_same_rows_with_the_logits_as_without(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ragged batch of two, forty steps, with every logit computed once and, beside it, by attention and method."""
    with_logits = _kept_through_the_model(case)
    monkeypatch.setattr(tap_module, "fits", lambda *_: False)
    assert with_logits == _kept_through_the_model(case)


def _kept_through_the_model(case: Case) -> list[list[list[int]]]:
    """Kept positions of two sequences under the method, a list a layer and step."""
    model = make_tiny_llama(seed=3)
    parts, kept = [], []
    for length in (30, 19):
        method = resolve(case.method, case.params, budget=case.budget)
        session = MethodSession(model, method, budget=case.budget, tapped=True, encode=lambda text: [5] * len(text))
        with session, session.reading():
            model(mx.array([[(7 * at) % 250 for at in range(length)]]), cache=session.caches)
            session.after_prefill([(7 * at) % 250 for at in range(length)])
        parts.append(session)
    caches: list[Any] = [EvictionCache.stack(list(pair)) for pair in zip(*(s.caches for s in parts), strict=True)]
    with parts[0]:
        for step in range(40):
            mx.eval(model(mx.array([[step], [step + 90]]), cache=caches))
            kept += [sorted(np.array(cache.kept_positions()).reshape(-1).tolist()) for cache in caches]
    return [kept]
