"""A GGUF export: read by the package `gguf`, loaded by `transformers`, and run by llama.cpp where
that is installed."""

import functools
import json
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import tokenizers
import torch
import transformers

from pipeline import tokenize_texts
from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import TokenizerDefinition, load_definition
from pipeline.tokenizers.engine import open_tokenizer
from tests.trainer.convert.models import MUP, ids, logits, make, state_of
from trainer.convert import gguf_file, to_hf, wrap_tensors
from trainer.convert.conversion import CheckpointConvertOptions, convert_checkpoint
from trainer.convert.targets import write_wafermill

TOLERANCE = 1e-4
SIZE = 400
OF_GPT2 = {"vocab_size": SIZE, "nonlinearity": "gelu_new", "filter_size": 4 * 48}
"""transformers takes no other width of the feed-forward part from a GGUF file of this family."""
OF_LLAMA = {"vocab_size": SIZE}
OF_NEOX = {"vocab_size": SIZE, "nonlinearity": "gelu_new"}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", OF_GPT2),
    "gpt2 muP": ("gpt2", OF_GPT2 | MUP),
    "gpt2 untied": ("gpt2", OF_GPT2 | {"share_embedding_weights": False}),
    "llama": ("llama", OF_LLAMA),
    "llama, interleaved": ("llama", OF_LLAMA | {"rotary_interleaved": True}),
    "gpt_neox": ("gpt_neox", OF_NEOX),
    "gpt_neox, serial": ("gpt_neox", OF_NEOX | {"parallel_block": False}),
}
TEXT = "It's 2026: naïve café—東京! <|endoftext|>\n\n  Let's go."


@functools.cache
def small_tokenizer() -> TokenizerDefinition:
    """Byte-level BPE with GPT-2's pattern and few entries, EOS the last."""
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=SIZE - 1, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT, Path(__file__).read_text()], trainer)
    made.add_special_tokens(["<|endoftext|>"])
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "tokenizer.json"
        made.save(str(path))
        definition = load_definition(str(path), "<|endoftext|>")
    assert definition.vocab_size == SIZE
    return definition


def export(directory: Path, family: str, **changes: Any) -> tuple[Any, Any]:
    """The model and its config, once its export is in the directory."""
    model, config = make(family, **changes)
    tensors, hf_config = to_hf(state_of(model), config, family)
    gguf_file.write_gguf(directory, tensors, hf_config, 7, small_tokenizer())
    return model, config


def fields(path: Path) -> dict[str, Any]:
    reader = gguf.GGUFReader(path)
    return {name: field.contents() for name, field in reader.fields.items()}


def test_what_a_reader_finds(tmp_path: Path) -> None:
    model, config = export(tmp_path, "gpt2", **OF_GPT2)
    found = fields(tmp_path / "model.gguf")
    assert found["general.architecture"] == "gpt2"
    sizes = {
        "context_length": 16, "embedding_length": 48, "block_count": 2, "feed_forward_length": 192,
        "attention.head_count": 4, "vocab_size": SIZE,
    }  # fmt: skip
    assert {key: found[f"gpt2.{key}"] for key in sizes} == sizes
    assert found["gpt2.attention.layer_norm_epsilon"] == pytest.approx(config.layer_norm_epsilon)
    vocabulary = json.loads(small_tokenizer().json)["model"]["vocab"]
    assert found["tokenizer.ggml.tokens"][SIZE - 1] == "<|endoftext|>"
    assert found["tokenizer.ggml.tokens"][:-1] == sorted(vocabulary, key=vocabulary.__getitem__)
    assert len(found["tokenizer.ggml.merges"]) == SIZE - 1 - 256
    assert found["tokenizer.ggml.eos_token_id"] == SIZE - 1
    kinds = found["tokenizer.ggml.token_type"]
    assert (kinds[0], kinds[SIZE - 1]) == (gguf.TokenType.NORMAL, gguf.TokenType.CONTROL)
    assert found["tokenizer.ggml.add_bos_token"] is False

    tensors = {t.name: t for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    weights = dict(model.named_parameters())
    embedding = next(w for w in weights.values() if w.shape == (SIZE, 48))
    assert np.array_equal(tensors["token_embd.weight"].data, embedding.detach().numpy())
    assert tensors["blk.1.ffn_up.weight"].data.shape == (192, 48)
    assert tensors["blk.1.attn_qkv.weight"].data.shape == (144, 48)
    assert "output.weight" not in tensors
    assert all(tensor.data_offset % 32 == 0 for tensor in tensors.values())


@pytest.mark.parametrize("case", [name for name in CASES if "neox" not in name])
def test_logits_in_transformers(case: str, tmp_path: Path) -> None:
    family, changes = CASES[case]
    positions = {"max_position_embeddings": 1024} if family == "gpt2" else {}  # it takes no other
    model, config = export(tmp_path, family, **changes, **positions)
    some = ids(config)[:, :16]
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", attn_implementation="eager"
    ).eval()
    with torch.no_grad():
        difference = (theirs(some).logits - model.logits(some)).abs().max()
    assert float(difference) <= TOLERANCE


PROGRAM = """
import json, sys
import numpy as np
from llama_cpp import Llama
model = Llama(sys.argv[1], logits_all=True, n_ctx=16, verbose=False)
rows = []
for row in json.loads(sys.argv[2]):
    model.reset()
    model.eval(row)
    rows.append(np.array(model.scores[: len(row)]).tolist())
print(json.dumps({"ids": model.tokenize(sys.argv[3].encode(), add_bos=False, special=False),
                  "logits": rows}))
"""


@pytest.mark.parametrize("case", CASES)
def test_logits_and_ids_in_llama_cpp(case: str, tmp_path: Path) -> None:
    """Its kernels multiply in half precision here and there."""
    if find_spec("llama_cpp") is None:
        pytest.skip("needs the package llama-cpp-python")
    family, changes = CASES[case]
    model, config = export(tmp_path, family, **changes)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "model.gguf"),
         json.dumps(ids(config).tolist()), TEXT],
        capture_output=True, text=True, check=False, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    expected = logits(model)
    difference = (torch.tensor(found["logits"]) - expected).abs().max()
    assert float(difference) <= 2e-3 * float(expected.abs().max())
    opened = open_tokenizer(small_tokenizer())
    assert found["ids"] == tokenize_texts([TEXT], opened)[0].as_py()


def test_bf16_stays_and_vectors_become_fp32(tmp_path: Path) -> None:
    model, config = make("llama", **OF_LLAMA)
    half = {name: p.detach().to(torch.bfloat16) for name, p in model.named_parameters()}
    tensors, hf_config = to_hf(wrap_tensors(half), config, "llama")
    gguf_file.write_gguf(tmp_path, tensors, hf_config, 0, None)
    found = {t.name: t.tensor_type.name for t in gguf.GGUFReader(tmp_path / "model.gguf").tensors}
    assert found["blk.0.attn_q.weight"] == "BF16"
    assert found["blk.0.attn_norm.weight"] == "F32"
    assert fields(tmp_path / "model.gguf")["tokenizer.ggml.model"] == "none"


def convert(tmp_path: Path, family: str, **changes: Any) -> tuple[Path, list[str]]:
    """A checkpoint of ours, converted as the command does."""
    model, config = make(family, **changes)
    write_wafermill(tmp_path / "ours", state_of(model), config)
    said: list[str] = []
    options = CheckpointConvertOptions(
        checkpoint=tmp_path / "ours", source="wafermill", target="gguf", out=tmp_path / "out"
    )
    convert_checkpoint(options, said.append)
    return tmp_path / "out", said


def test_a_checkpoint_of_ours(tmp_path: Path) -> None:
    out, said = convert(tmp_path, "gpt2", **OF_GPT2 | {"vocab_size": 50257})
    assert sorted(p.name for p in out.iterdir()) == ["conversion.json", "model.gguf"]
    assert "gpt2; tokenizer: gpt2" in said
    before = (out / "model.gguf").read_bytes()
    again = CheckpointConvertOptions(
        checkpoint=tmp_path / "ours", source="wafermill", target="gguf", out=tmp_path / "again"
    )
    convert_checkpoint(again, said.append)
    assert (tmp_path / "again" / "model.gguf").read_bytes() == before


def test_exact_gelu_is_said(tmp_path: Path) -> None:
    _, said = convert(tmp_path, "gpt2", nonlinearity="gelu")
    assert any(line.startswith("note: llama.cpp approximates gelu") for line in said)


@pytest.mark.parametrize(
    ("family", "changes", "expected"),
    [
        ("gptj", {}, "family gptj cannot be written; expected a model of family gpt2, gpt_neox"),
        ("gpt2", {"nonlinearity": "relu"}, "llama.cpp computes gpt2 with gelu"),
    ],
)
def test_what_llama_cpp_does_not_compute(
    family: str, changes: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=expected):
        convert(tmp_path, family, **changes)
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_llama_cpp_does_not_know(tmp_path: Path) -> None:
    definition = load_definition("gpt2")
    assert gguf_file.is_known_tokenizer(definition)
    changed = json.loads(definition.json)
    changed["pre_tokenizer"]["use_regex"] = False
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(changed))
    assert not gguf_file.is_known_tokenizer(load_definition(str(path), "<|endoftext|>"))


def test_the_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"pip install 'wafermill\[gguf\]'"):
        convert(tmp_path, "gpt2", **OF_GPT2)
