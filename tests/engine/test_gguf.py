"""GGUF files become mlx-lm directories that compute what the file says, or are refused in a sentence."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest
from gguf_files import tiny_arrays, write_tiny, write_with_tensor_type

from velox_eval.engine.gguf import convert_gguf
from velox_eval.engine.model_store import KNOWN_MODELS
from velox_eval.errors import ModelError
from velox_eval.mlx import mx


@pytest.fixture(scope="module")
def real_gguf() -> Path:
    """SmolLM2-135M as its wheel holds it."""
    model = KNOWN_MODELS["smollm2-135m"]
    return Path(str(distribution(model.distribution).locate_file(model.file)))


@pytest.fixture(scope="module")
def converted(real_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("converted") / "model"
    convert_gguf(real_gguf, out)
    return out


@pytest.fixture(scope="module")
def reference(real_gguf: Path, shared_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same file through the independent converter beside the repository."""
    script = shared_dir / "examples" / "gguf_to_mlx.py"
    if not script.is_file():
        pytest.skip(f"no reference converter at {script}")
    out = tmp_path_factory.mktemp("reference")
    subprocess.run([sys.executable, str(script), str(real_gguf), str(out)], check=True, timeout=120)
    return out


def tokenizer_of(folder: Path) -> Any:
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json"))


def random_texts(count: int) -> list[str]:
    rng = random.Random(11)
    alphabet = "abc XYZ 0123456789 \n\t.,!?'\"-_é ß 漢字 ка 🙂 \u200d\u00a0<|im_start|>"
    return ["".join(rng.choice(alphabet) for _ in range(rng.randint(1, 60))) for _ in range(count)]


def test_real_tensors_equal_the_reference(converted: Path, reference: Path) -> None:
    ours: Any = mx.load(str(converted / "model.safetensors"))
    theirs: Any = mx.load(str(reference / "model.safetensors"))
    assert len(ours) == 694
    assert ours.keys() == theirs.keys()
    for name in ours:
        assert ours[name].dtype == theirs[name].dtype, name
        assert mx.array_equal(ours[name], theirs[name]), name


def test_real_config_equals_the_reference(converted: Path, reference: Path) -> None:
    assert json.loads((converted / "config.json").read_text()) == json.loads((reference / "config.json").read_text())


def test_real_tokenizer_equals_the_reference_and_round_trips(converted: Path, reference: Path) -> None:
    ours, theirs = tokenizer_of(converted), tokenizer_of(reference)
    texts = random_texts(400)
    assert len(set(texts)) > 390
    for text in texts:
        encoded = ours.encode(text)
        assert encoded.ids == theirs.encode(text).ids
        assert ours.decode(encoded.ids, skip_special_tokens=False) == text


def test_no_half_precision_is_written(converted: Path) -> None:
    arrays: Any = mx.load(str(converted / "model.safetensors"))
    assert {str(array.dtype) for array in arrays.values()} == {"mlx.core.uint32", "mlx.core.float32"}


@pytest.mark.model
def test_real_model_answers_as_recorded(real_model: Any) -> None:
    from mlx_lm import generate

    def answer(question: str, tokens: int) -> str:
        prompt = real_model.tokenizer.apply_chat_template(
            [{"role": "user", "content": question}], add_generation_prompt=True
        )
        return generate(real_model.model, real_model.tokenizer, prompt, max_tokens=tokens)

    assert answer("What is the capital of France?", 16) == "The capital of France is Paris."


def test_smallest_metadata_converts_and_runs(tmp_path: Path) -> None:
    from mlx_lm import load

    out = tmp_path / "out"
    convert_gguf(write_tiny(tmp_path / "tiny.gguf"), out)  # no token ids, types, context length, template or rope base
    model, tokenizer = load(str(out))
    ids = tokenizer.encode("the 42 ways")
    assert tokenizer.decode(ids) == "the 42 ways"
    assert model(mx.array([ids])).shape == (1, len(ids), 261)
    config = json.loads((out / "config.json").read_text())
    assert "max_position_embeddings" not in config
    assert "quantization" not in config
    assert config["tie_word_embeddings"] is True


@pytest.mark.parametrize("role", ["bos", "eos", "unknown", "padding"])
def test_each_role_is_optional(tmp_path: Path, role: str) -> None:
    roles = {"bos": ("bos_token", "<s>"), "eos": ("eos_token", "</s>"), "unknown": ("unk_token", "<s>")}
    roles["padding"] = ("pad_token", "</s>")
    ids = {"<s>": 256, "</s>": 257}
    given = {f"tokenizer__ggml__{r}_token_id": mx.array(ids[t], dtype=mx.uint32) for r, (_, t) in roles.items()}
    del given[f"tokenizer__ggml__{role}_token_id"]
    convert_gguf(write_tiny(tmp_path / "tiny.gguf", **given), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert {key: config[key] for key, _ in roles.values() if key in config} == {
        key: token for r, (key, token) in roles.items() if r != role
    }


def test_query_and_key_rows_come_back_to_half_split_order(tmp_path: Path) -> None:
    """The converted model computes what the untouched rows compute with interleaved rotary pairs."""
    from mlx_lm.utils import load_model

    convert_gguf(write_tiny(tmp_path / "tiny.gguf"), tmp_path / "out")
    converted_model, config = load_model(tmp_path / "out")

    raw: Any = mx.load(str(tmp_path / "out" / "model.safetensors"))
    source = tiny_arrays()
    for layer in range(2):
        for part in ("q", "k"):
            raw[f"model.layers.{layer}.self_attn.{part}_proj.weight"] = source[f"blk.{layer}.attn_{part}.weight"]
    interleaved = tmp_path / "interleaved"
    interleaved.mkdir()
    mx.save_safetensors(str(interleaved / "model.safetensors"), raw)
    (interleaved / "config.json").write_text(json.dumps({**config, "rope_traditional": True}))
    reference_model, _ = load_model(interleaved)

    tokens = mx.array([[5, 77, 130, 9, 256, 200]])
    ours, theirs = converted_model(tokens), reference_model(tokens)
    assert mx.allclose(ours, theirs, atol=1e-4)
    wrong, _ = load_model(interleaved, model_config={"rope_traditional": False})
    assert not mx.allclose(ours, wrong(tokens), atol=1e-2)


def test_beginning_token_is_added_once(tmp_path: Path) -> None:
    from mlx_lm import load

    given = {
        "tokenizer__ggml__bos_token_id": mx.array(256, dtype=mx.uint32),
        "tokenizer__ggml__add_bos_token": mx.array(True),
    }
    convert_gguf(write_tiny(tmp_path / "tiny.gguf", **given), tmp_path / "out")
    _, tokenizer = load(str(tmp_path / "out"))
    ids = tokenizer.encode("the")
    assert ids[0] == 256
    assert ids.count(256) == 1


def test_untied_output_and_turn_end_are_kept(tmp_path: Path) -> None:
    arrays = tiny_arrays()
    arrays["output.weight"] = arrays["token_embd.weight"] * 2
    given = {
        "tokenizer__ggml__eos_token_id": mx.array(257, dtype=mx.uint32),
        "tokenizer__ggml__eot_token_id": mx.array(256, dtype=mx.uint32),
        "llama__context_length": mx.array(512, dtype=mx.uint32),
    }
    convert_gguf(write_tiny(tmp_path / "tiny.gguf", arrays, **given), tmp_path / "out")
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["tie_word_embeddings"] is False
    assert config["eos_token_id"] == [257, 256]
    assert config["max_position_embeddings"] == 512


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"general__architecture": "qwen2"}, "architecture 'qwen2'"),
        ({"tokenizer__ggml__model": "llama"}, "vocabulary 'llama'"),
        ({"tokenizer__ggml__pre": "llama-bpe"}, "pre-tokenizer 'llama-bpe'"),
        ({"tokenizer__ggml__pre": None}, "names no pre-tokenizer"),
        ({"llama__rope__scaling__type": "yarn"}, "rotary scaling 'yarn'"),
        ({"general__architecture": None}, "general.architecture"),
        ({"llama__embedding_length": None}, "llama.embedding_length"),
        ({"tokenizer__ggml__merges": None}, "tokenizer.ggml.merges"),
    ],
)
def test_what_is_not_supported_is_named(tmp_path: Path, changes: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError) as caught:
        convert_gguf(write_tiny(tmp_path / "tiny.gguf", **changes), tmp_path / "out")
    assert named in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rope_freqs.weight", "blk.0.attn_q.bias", "blk.0.ffn_gate_exps.weight"])
def test_tensors_without_a_place_are_named(tmp_path: Path, name: str) -> None:
    arrays = tiny_arrays() | {name: mx.ones(8)}
    with pytest.raises(ModelError, match=name.replace(".", r"\.")):
        convert_gguf(write_tiny(tmp_path / "tiny.gguf", arrays), tmp_path / "out")


def test_files_mlx_cannot_read_give_one_line(tmp_path: Path) -> None:
    whole = write_tiny(tmp_path / "whole.gguf").read_bytes()
    files = {"empty": b"", "text": b"not a model", "cut": whole[: len(whole) // 2]}
    for name, content in files.items():
        path = tmp_path / f"{name}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError, match=f"{name}.gguf: mlx cannot read this GGUF") as caught:
            convert_gguf(path, tmp_path / "out")
        assert "\n" not in str(caught.value)
    q5_0, block_bytes = 6, 22
    odd = write_with_tensor_type(tmp_path / "odd.gguf", q5_0, bytes(block_bytes))
    with pytest.raises(ModelError, match=r"odd\.gguf: mlx cannot read this GGUF"):
        convert_gguf(odd, tmp_path / "out")
    with pytest.raises(ModelError, match="no such GGUF file"):
        convert_gguf(tmp_path / "absent.gguf", tmp_path / "out")
    assert not (tmp_path / "out").exists()
