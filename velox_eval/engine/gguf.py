"""GGUF files as mlx-lm model directories.

mlx reads the tensors of a GGUF but mlx-lm cannot load a model from one. This converter covers the llama
architecture with a byte-level BPE vocabulary; any other file is refused by name, never converted by guess.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from velox_eval.errors import ModelError
from velox_eval.mlx import mx

CONVERTER_VERSION = 1  # raise it whenever the files written change

_GROUP = 32  # Q4_0, Q4_1 and Q8_0 share one scale among 32 values

_MODULES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_MODULES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TENSOR = re.compile(r"(?:blk\.(?P<layer>\d+)\.)?(?P<part>\w+)\.(?P<leaf>weight|scales|biases)")

# How llama.cpp splits text before merging, by the pre-tokenizer's name in the file.
_DIGIT_BY_DIGIT = ("smollm", "starcoder", "refact", "command-r", "codeshell")
_PLAIN_GPT2 = ("gpt-2",)

_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


def convert_gguf(gguf: Path, out: Path) -> None:
    """Write `gguf` as an mlx-lm directory: config.json, model.safetensors, tokenizer.json, tokenizer_config.json.

    Quantised codes stay as they are; scales, biases and all dense tensors become float32 (float16 scales make
    mlx's CPU kernels some thirty times slower). `out` is created. ModelError for another architecture,
    vocabulary or tensor type, for required metadata that is absent and for a file that is no GGUF.
    """
    source = _Source.read(gguf)
    source.check_supported()
    tensors = _Tensors.rename(source)
    config, tokenizer, tokenizer_config = _config(source, tensors), _tokenizer(source), _tokenizer_config(source)
    out.mkdir(parents=True, exist_ok=True)
    mx.save_safetensors(str(out / "model.safetensors"), tensors.arrays, {"format": "mlx"})
    tokenizer.save(str(out / "tokenizer.json"))
    _write_json(out / "tokenizer_config.json", tokenizer_config)
    _write_json(out / "config.json", config)


@dataclass
class _Source:
    """A GGUF's arrays and metadata, with look-ups that name what is missing."""

    path: Path
    arrays: dict[str, mx.array]
    metadata: dict[str, Any]

    @classmethod
    def read(cls, path: Path) -> _Source:
        if not path.is_file():
            raise ModelError(f"{path}: no such GGUF file")
        try:
            loaded: Any = mx.load(str(path), format="gguf", return_metadata=True)
        except (RuntimeError, ValueError) as error:
            raise ModelError(f"{path}: mlx cannot read this GGUF ({_one_line(error)})") from error
        arrays, metadata = loaded
        return cls(path, arrays, metadata)

    def optional(self, key: str, default: Any = None) -> Any:
        """A metadata value as a Python scalar, string or list; `default` if the file lacks it."""
        value = self.metadata.get(key)
        if value is None:
            return default
        if isinstance(value, mx.array):
            return value.item() if value.ndim == 0 or value.size == 1 else value.tolist()
        return value

    def required(self, key: str) -> Any:
        value = self.optional(key)
        if value is None:
            raise ModelError(f"{self.path}: the GGUF lacks the metadata {key}, without which it cannot be converted")
        return value

    def check_supported(self) -> None:
        architecture = self.required("general.architecture")
        if architecture != "llama":
            raise ModelError(
                f"{self.path}: architecture {architecture!r} is not supported (only llama is): "
                "use the model's MLX or Hugging Face directory instead"
            )
        vocabulary = self.required("tokenizer.ggml.model")
        if vocabulary != "gpt2":
            raise ModelError(
                f"{self.path}: vocabulary {vocabulary!r} is not supported (only gpt2, byte-level BPE, is): "
                "use the model's MLX or Hugging Face directory instead"
            )
        known = (*_DIGIT_BY_DIGIT, *_PLAIN_GPT2)
        splitter = self.optional("tokenizer.ggml.pre")
        if splitter not in known:
            named = "names no pre-tokenizer" if splitter is None else f"pre-tokenizer {splitter!r} is not supported"
            raise ModelError(f"{self.path}: {named} (known: {', '.join(known)}), so text could be split wrongly")
        scaling = self.optional("llama.rope.scaling.type", "none")
        if scaling != "none":
            raise ModelError(f"{self.path}: rotary scaling {scaling!r} is not supported (only unscaled models are)")

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads and key-value heads."""
        queries = int(self.required("llama.attention.head_count"))
        return queries, int(self.optional("llama.attention.head_count_kv", queries))


@dataclass
class _Tensors:
    """Arrays under mlx-lm's names, and the bits of every quantised module."""

    arrays: dict[str, mx.array] = field(default_factory=dict)
    bits: dict[str, int] = field(default_factory=dict)

    @classmethod
    def rename(cls, source: _Source) -> _Tensors:
        self = cls()
        queries, keys = source.heads
        for name, array in source.arrays.items():
            match = _TENSOR.fullmatch(name)
            names = _LAYER_MODULES if match and match["layer"] else _MODULES
            if match is None or match["part"] not in names:
                raise ModelError(f"{source.path}: tensor {name!r} has no place in a plain llama model")
            module = names[match["part"]]
            if match["layer"]:
                module = f"model.layers.{match['layer']}.{module}"
            if match["part"] in ("attn_q", "attn_k"):
                array = _to_half_split_rotary(array, queries if match["part"] == "attn_q" else keys)
            if array.dtype != mx.uint32:
                array = array.astype(mx.float32)
            self.arrays[f"{module}.{match['leaf']}"] = array
            if match["leaf"] == "scales":
                codes = source.arrays[name.removesuffix("scales") + "weight"]
                self.bits[module] = codes.shape[-1] * 32 // (array.shape[-1] * _GROUP)
        if "model.embed_tokens.weight" not in self.arrays:
            raise ModelError(f"{source.path}: the GGUF has no token embedding (token_embd.weight)")
        return self

    @property
    def quantization(self) -> dict[str, Any] | None:
        """mlx-lm's quantization settings: the commonest bits, and every module that differs; None if all is dense."""
        if not self.bits:
            return None
        common = Counter(self.bits.values()).most_common(1)[0][0]
        settings: dict[str, Any] = {"group_size": _GROUP, "bits": common, "mode": "affine"}
        settings |= {m: {"group_size": _GROUP, "bits": b} for m, b in sorted(self.bits.items()) if b != common}
        return settings


def _to_half_split_rotary(rows: mx.array, heads: int) -> mx.array:
    """Rows of a query or key projection, from llama.cpp's order (pairs interleaved) to Hugging Face's (halves).

    Quantisation groups run along the columns, so codes, scales and biases all move the same way.
    """
    pairs = rows.shape[0] // heads // 2
    return rows.reshape(heads, pairs, 2, -1).transpose(0, 2, 1, 3).reshape(rows.shape)


def _config(source: _Source, tensors: _Tensors) -> dict[str, Any]:
    queries, keys = source.heads
    hidden = int(source.required("llama.embedding_length"))
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "intermediate_size": int(source.required("llama.feed_forward_length")),
        "num_hidden_layers": int(source.required("llama.block_count")),
        "num_attention_heads": queries,
        "num_key_value_heads": keys,
        "head_dim": int(source.optional("llama.rope.dimension_count", hidden // queries)),
        # The file holds a float32; ten digits give back the number its author wrote (1e-05).
        "rms_norm_eps": round(float(source.required("llama.attention.layer_norm_rms_epsilon")), 10),
        "rope_theta": float(source.optional("llama.rope.freq_base", 10000.0)),
        "vocab_size": tensors.arrays["model.embed_tokens.weight"].shape[0],
        "tie_word_embeddings": "lm_head.weight" not in tensors.arrays,
    }
    if (context := source.optional("llama.context_length")) is not None:
        config["max_position_embeddings"] = int(context)
    if (bos := source.optional("tokenizer.ggml.bos_token_id")) is not None:
        config["bos_token_id"] = int(bos)
    ends = [source.optional(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot")]
    ends = list(dict.fromkeys(int(end) for end in ends if end is not None))
    if ends:
        config["eos_token_id"] = ends[0] if len(ends) == 1 else ends
    if (quantization := tensors.quantization) is not None:
        config["quantization"] = config["quantization_config"] = quantization
    return config


def _tokenizer(source: _Source) -> Any:
    """The vocabulary as a `tokenizers.Tokenizer`."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

    tokens: list[str] = source.required("tokenizer.ggml.tokens")
    merges = [tuple(merge.split(" ")) for merge in source.required("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    split: list[Any] = [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]
    if source.optional("tokenizer.ggml.pre") in _DIGIT_BY_DIGIT:
        split.insert(0, pre_tokenizers.Digits(individual_digits=True))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.decoder = decoders.ByteLevel()
    types = source.optional("tokenizer.ggml.token_type", [])
    # Without types, the tokens that the file names by their role are the special ones.
    special = [t for t, kind in zip(tokens, types, strict=True) if kind == _CONTROL] if types else _roles(source)
    defined = [t for t, kind in zip(tokens, types, strict=False) if kind == _USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in dict.fromkeys(special)])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in defined])
    if source.optional("tokenizer.ggml.add_bos_token", False):
        bos = tokens[source.required("tokenizer.ggml.bos_token_id")]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", pair=f"{bos} $A $B", special_tokens=[(bos, tokenizer.token_to_id(bos))]
        )
    return tokenizer


_ROLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


def _roles(source: _Source) -> list[str]:
    """The tokens that have a role (beginning, end, unknown, padding), as text."""
    tokens = source.required("tokenizer.ggml.tokens")
    ids = [source.optional(f"tokenizer.ggml.{role}_token_id") for role in _ROLES]
    return [tokens[i] for i in ids if i is not None]


def _tokenizer_config(source: _Source) -> dict[str, Any]:
    tokens = source.required("tokenizer.ggml.tokens")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
    }
    for role, key in _ROLES.items():
        if (token := source.optional(f"tokenizer.ggml.{role}_token_id")) is not None:
            config[key] = tokens[token]
    if (context := source.optional("llama.context_length")) is not None:
        config["model_max_length"] = int(context)
    if (template := source.optional("tokenizer.chat_template")) is not None:
        config["chat_template"] = template
    return config


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
