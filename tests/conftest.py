"""Shared fixtures: a tiny random llama (as a module and as an mlx-lm directory) and the real model."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from velox_eval.blas import load_fast_blas

load_fast_blas()  # before any test module brings mlx in, or everything runs on the reference BLAS

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in a shell's background jobs, and so in all we start
    signal.signal(signal.SIGINT, signal.default_int_handler)

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test reaches a hub

ROOT = Path(__file__).resolve().parent.parent

TINY = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "intermediate_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "rms_norm_eps": 1e-5,
    "vocab_size": 300,
    "max_position_embeddings": 4096,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "bos_token_id": 256,
    "eos_token_id": 257,
}


def make_tiny_llama(seed: int = 0, scale: float = 4.0, **overrides: Any) -> Any:
    """Returns a random llama in float32: 2 layers, 4 query heads, 2 KV heads, head dim 8 (128 bytes a row a layer).

    `scale` widens the query and key weights so that attention is far from uniform and eviction shows.
    """
    from mlx.utils import tree_map
    from mlx_lm.models import llama

    from velox_eval.mlx import mx

    mx.random.seed(seed)
    model = llama.Model(llama.ModelArgs.from_dict({**TINY, **overrides}))
    model.update(tree_map(lambda p: mx.random.normal(p.shape) * 0.15, model.parameters()))
    for layer in model.layers:
        for name in ("q_proj", "k_proj"):
            projection = layer.self_attn[name]
            projection.weight = projection.weight * scale
    mx.eval(model.parameters())
    return model


@pytest.fixture(scope="session")
def tiny_llama() -> Any:
    """The default tiny llama."""
    return make_tiny_llama()


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama as an mlx-lm directory with a byte-level tokenizer (256 bytes, bos, eos, padding words)."""
    from mlx.utils import tree_flatten

    from velox_eval.mlx import mx

    folder = tmp_path_factory.mktemp("tiny-llama")
    (folder / "config.json").write_text(json.dumps({**TINY, "architectures": ["LlamaForCausalLM"]}))
    mx.save_safetensors(str(folder / "model.safetensors"), dict(tree_flatten(make_tiny_llama().parameters())))
    _write_byte_tokenizer(folder)
    return folder


def _write_byte_tokenizer(folder: Path) -> None:
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocab, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = ["<s>", "</s>", *(f"<extra{i}>" for i in range(42))]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    tokenizer.save(str(folder / "tokenizer.json"))
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}assistant:"
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<s>",
        "eos_token": "</s>",
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "model_max_length": TINY["max_position_embeddings"],
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


@pytest.fixture(scope="session")
def shared_dir() -> Path:
    """Third-party benchmark files for local checks, beside the repository; never part of it."""
    path = Path(os.environ.get("VELOX_EVAL_SHARED", ROOT.parent / "shared"))
    if not path.is_dir():
        pytest.skip(f"no third-party data at {path}")
    return path


@pytest.fixture(scope="session")
def real_model() -> Any:
    """SmolLM2-135M, loaded once a session."""
    from velox_eval.engine.models import load_model

    return load_model("smollm2-135m")
