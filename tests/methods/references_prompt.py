"""Rules that wait for the prompt's end, written again in NumPy: MorphKV, SnapKV, PyramidKV, KVzip by their papers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .references import Array, Head, Reference, attention, softmax
from .streams import QUESTION


class AtThePromptsEnd(Reference):
    """Holds the prompt whole and cuts it once; afterwards as `cuts_while_decoding` says."""

    def __init__(self, head: Head, params: Mapping[str, Any], budget: int) -> None:
        super().__init__(head, params, budget)
        self.prompt_done = False

    def finish_prompt(self) -> None:
        self.prompt_done = True
        super().finish_prompt()

    def cuts(self, decoding: bool) -> bool:
        return self.prompt_done and self.cuts_while_decoding()

    def cuts_while_decoding(self) -> bool:
        return False

    @property
    def newest(self) -> int:
        return int(self.positions[-1])


class MorphKVPaper(AtThePromptsEnd):
    def cuts_while_decoding(self) -> bool:
        return len(self.positions) >= self.budget + int(self.params.get("interval", 1))

    def worth(self) -> Array:
        window = self.params["window"]
        distant = self.positions < self.newest - window
        keys = self.head.keys[self.positions[distant]].astype(np.float32)
        # The window's queries, the current one left out: [group, window - 1, D].
        queries = self.head.queries[:, self.newest - window + 1 : self.newest].astype(np.float32)
        logits = queries @ keys.T / np.sqrt(np.float32(keys.shape[-1]))
        if self.params.get("group", "max") == "logit_sum":
            weights = softmax(logits.sum(axis=0))
        else:
            weights = softmax(logits).max(axis=0)
        fused = weights.sum(axis=0) if self.params.get("fusion", "max") == "sum" else weights.max(axis=0)
        worth = np.full(len(self.positions), np.inf, np.float32)
        worth[distant] = fused
        return worth


class KVzipPaper(AtThePromptsEnd):
    """The passes feed the chunk's own rows backwards (see streams.end_prompt)."""

    def worth(self) -> Array:
        sinks, chunk = self.params["n_sink"], self.params["chunk"]
        end = len(self.positions) - (QUESTION if self.budget > sinks + QUESTION else 0)
        worth = np.full(len(self.positions), np.inf, np.float32)
        for start in range(sinks, end, chunk):
            part = slice(start, min(start + chunk, end))
            own, queries = self.head.keys[part][::-1], self.head.queries[:, part][:, ::-1]
            keys = np.concatenate([self.head.keys[:sinks], self.head.keys[part], own]).astype(np.float32)
            logits = queries.astype(np.float32) @ keys.T / np.sqrt(np.float32(keys.shape[-1]))
            later = np.triu(np.ones((len(own), len(own)), bool), 1)
            logits[:, :, sinks + len(own) :][:, later] = -np.inf
            worth[part] = softmax(logits)[:, :, sinks : sinks + len(own)].max(axis=(0, 1))
        return worth


class ChunkKVPaper(AtThePromptsEnd):
    """The chunks of all heads of the layer together."""

    def worth(self) -> Array:
        assert self.head.layer is not None
        window, size, count = self.params["window"], self.params["chunk_size"], len(self.positions)
        paid = np.zeros(count, np.float32)
        for keys, group in zip(*self.head.layer, strict=True):
            for queries in group:
                for at in range(count - window, count):
                    logits = queries[at] @ keys[: at + 1].T / np.sqrt(np.float32(keys.shape[-1]))
                    paid[: at + 1] += softmax(logits)
        worth = np.full(count, np.inf, np.float32)
        for at in range(0, count - window, size):
            chunk = slice(at, min(at + size, count - window))
            worth[chunk] = paid[chunk].mean()
        return worth


class SnapKV(Reference):
    """By the keys at the end of what is held; single tokens are kept."""

    def cuts(self, decoding: bool) -> bool:
        return not decoding

    def worth(self) -> Array:
        keys = self.head.keys[self.positions]
        return self.protect(attention(keys[-self.params["obs_window"] :], keys).mean(axis=0), self.params["n_sink"])


class SnapKVPaper(AtThePromptsEnd):
    def worth(self) -> Array:
        window, kernel, count = self.params["window"], self.params["kernel"], len(self.positions)
        pool = np.max if self.params.get("pooling", "max") == "max" else np.mean
        heads = []
        for queries in self.head.queries:
            paid = np.zeros(count, np.float32)
            for at in range(count - window, count):
                paid[: at + 1] += attention(queries[at : at + 1], self.head.keys[: at + 1])[0]
            padded = np.pad(paid[: count - window], kernel // 2)
            heads.append([pool(padded[at : at + kernel]) for at in range(count - window)])
        worth = np.full(count, np.inf, np.float32)
        worth[: count - window] = np.mean(heads, axis=0)
        return worth
