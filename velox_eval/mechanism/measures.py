"""What is measured of the rows a method kept, per stream."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from velox_eval.mechanism.feeding import SCALE, Kept
from velox_eval.mechanism.regimes import SINKS, Array, Streams

MEASURES: Mapping[str, str] = {
    "retention": "kept rows that are relevant, over kept rows (the documents' measure)",
    "held": "relevant rows kept, over what the budget could hold of them beside the sinks",
    "unprotected": "retention among kept rows outside sinks and protected recent rows",
    "in_region": "kept rows from the region that relevance lies in, over kept rows",
    "selectivity": "relevant rows over rows, of the region, kept and not protected",
    "chance": "relevant rows over rows, of the region, not protected: selectivity of a rule blind to relevance",
    "first_rows": "kept rows among the first rows of the stream, as many as the budget, over kept rows",
    "perturbation": "1 - cosine of the probes' attention output against the full cache's, mean over probes",
}


def measured(kept: Kept, data: Streams, budget: int) -> dict[str, Array]:
    """Returns each of MEASURES as [S] float64; nan where there are no such rows."""
    rows = np.arange(data.length)
    held = np.zeros(data.relevant.shape, bool)
    np.put_along_axis(held, kept.positions, True, axis=1)
    free = (rows >= SINKS) & (rows < data.length - kept.protected)
    wanted = data.relevant & (rows >= SINKS)
    room = np.minimum(wanted.sum(axis=1), budget - SINKS)
    return {
        "retention": _share(held & data.relevant, held),
        "held": np.minimum((held & wanted).sum(axis=1) / np.maximum(room, 1), 1.0),
        "unprotected": _share(held & free & data.relevant, held & free),
        "in_region": _share(held & data.region, held),
        "selectivity": _share(held & free & data.region & data.relevant, held & free & data.region),
        "chance": _share(free & data.region & data.relevant, free & data.region),
        "first_rows": _share(held & (rows < budget), held),
        "perturbation": _perturbation(kept, data),
    }


def base_rates(data: Streams) -> dict[str, Array]:
    """Returns the share of relevant rows in the whole stream and in the region, each [S]."""
    everything = np.ones_like(data.relevant)
    return {"stream": _share(data.relevant, everything), "region": _share(data.relevant & data.region, data.region)}


def _share(part: Array, whole: Array) -> Array:
    count = whole.sum(axis=1)
    share: Array = np.where(count > 0, part.sum(axis=1) / np.maximum(count, 1), np.nan)
    return share


def _perturbation(kept: Kept, data: Streams) -> Array:
    full = attention_output(data.probes, data.keys.astype(np.float32), data.values.astype(np.float32))
    ours = attention_output(data.probes, kept.keys, kept.values)
    norms = np.linalg.norm(full, axis=-1) * np.linalg.norm(ours, axis=-1)
    perturbation: Array = (1.0 - (full * ours).sum(axis=-1) / norms).mean(axis=-1)
    return perturbation


def attention_output(queries: Array, keys: Array, values: Array) -> Array:
    """Returns the softmax attention output [S, P, D] of queries [S, P, D] over rows [S, n, D]."""
    logits = queries @ keys.swapaxes(1, 2) * SCALE
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    output: Array = weights @ values / weights.sum(axis=-1, keepdims=True)
    return output
