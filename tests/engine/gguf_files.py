"""Small GGUF files for tests: a random llama with a byte-level vocabulary, and a raw writer for odd tensor types."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

from velox_eval.mlx import mx

HIDDEN, HEADS, KV_HEADS, LAYERS, FEED_FORWARD = 32, 4, 2, 2, 48
WORDS = ["<s>", "</s>", "th", "he", "the"]


def byte_alphabet() -> list[str]:
    """The 256 characters that stand for bytes in a byte-level vocabulary."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def tiny_metadata() -> dict[str, Any]:
    """The least metadata the converter asks for."""
    return {
        "general.architecture": "llama",
        "llama.block_count": mx.array(LAYERS, dtype=mx.uint32),
        "llama.embedding_length": mx.array(HIDDEN, dtype=mx.uint32),
        "llama.feed_forward_length": mx.array(FEED_FORWARD, dtype=mx.uint32),
        "llama.attention.head_count": mx.array(HEADS, dtype=mx.uint32),
        "llama.attention.head_count_kv": mx.array(KV_HEADS, dtype=mx.uint32),
        "llama.attention.layer_norm_rms_epsilon": mx.array(1e-5),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": byte_alphabet() + WORDS,
        "tokenizer.ggml.merges": ["t h", "h e", "th e"],
    }


def tiny_arrays(seed: int = 3) -> dict[str, mx.array]:
    """Random weights under llama.cpp's names, query and key rows in llama.cpp's order."""
    mx.random.seed(seed)
    head = HIDDEN // HEADS
    shapes = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HIDDEN, HIDDEN),
        "attn_k": (KV_HEADS * head, HIDDEN),
        "attn_v": (KV_HEADS * head, HIDDEN),
        "attn_output": (HIDDEN, HIDDEN),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (FEED_FORWARD, HIDDEN),
        "ffn_up": (FEED_FORWARD, HIDDEN),
        "ffn_down": (HIDDEN, FEED_FORWARD),
    }
    arrays = {"token_embd.weight": mx.random.normal((256 + len(WORDS), HIDDEN)), "output_norm.weight": mx.ones(HIDDEN)}
    for layer in range(LAYERS):
        for part, shape in shapes.items():
            arrays[f"blk.{layer}.{part}.weight"] = mx.random.normal(shape) * 0.3
    return arrays


def write_tiny(path: Path, arrays: dict[str, mx.array] | None = None, **changes: Any) -> Path:
    """A tiny llama GGUF at `path`; `changes` set metadata (dots as __), None removes a key."""
    metadata = tiny_metadata() | {key.replace("__", "."): value for key, value in changes.items()}
    metadata = {key: value for key, value in metadata.items() if value is not None}
    mx.save_gguf(str(path), tiny_arrays() if arrays is None else arrays, metadata)
    return path


def write_with_tensor_type(path: Path, tensor_type: int, data: bytes) -> Path:
    """A GGUF whose one tensor (32 values) is of `tensor_type`, which mx.save_gguf could not write."""

    def text(value: str) -> bytes:
        return struct.pack("<Q", len(value)) + value.encode()

    name = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, tensor_type, 0)
    head = b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + name + tensor
    path.write_bytes(head + b"\0" * (-len(head) % 32) + data + b"\0" * (-len(data) % 32))
    return path
