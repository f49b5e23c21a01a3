"""Exports compute the same logits in `transformers`, and its models the same here."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.convert.models import FAMILIES, MUP, ids, logits, make, state_of, with_weights
from trainer.convert import from_hf, targets, to_hf, wrap_tensors

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip(
        "transformers", reason="the reference for exports: pip install transformers"
    )

TOLERANCE = 1e-4
OF_TRANSFORMERS = [name for name in FAMILIES if name != "btlm"]
VARIANTS = {
    "plain": {},
    "mup": MUP,
    "untied": {"share_embedding_weights": False},
    "tied mup": {"share_embedding_weights": True, **MUP},
    "untied mup": {"share_embedding_weights": False, **MUP},
    "unscaled attention": {"attention_type": "dot_product"},
    "few biases": {"use_ffn_bias": False},
}


def exported(directory: Path, tensors, hf_config, shard_bytes: int = 10**9):
    """The model that transformers loads from an exported directory; nothing missing or unused."""
    targets.write_hf(directory, tensors, hf_config, shard_bytes, None)
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    return model.eval()


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("family", OF_TRANSFORMERS)
def test_logits_of_an_export_are_ours(family: str, variant: str, tmp_path: Path):
    model, config = make(family, **VARIANTS[variant])
    theirs = exported(tmp_path, *to_hf(state_of(model), config, family))
    with torch.no_grad():
        difference = (theirs(ids(config)).logits - logits(model)).abs().max()
    assert float(difference) <= TOLERANCE
    assert float(logits(model).abs().max()) > 1


@pytest.mark.parametrize("family", ["gptj", "gpt_neox", "llama", "qwen3"])
def test_units_rotated_in_the_other_pairs_are_reordered(family: str, tmp_path: Path):
    other = not FAMILIES[family].get("rotary_interleaved", False)
    model, config = make(family, rotary_interleaved=other)
    theirs = exported(tmp_path, *to_hf(state_of(model), config, family))
    with torch.no_grad():
        difference = (theirs(ids(config)).logits - logits(model)).abs().max()
    assert float(difference) <= TOLERANCE


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", OF_TRANSFORMERS)
def test_logits_of_an_import_are_theirs(family: str, tied: bool, tmp_path: Path):
    _, config = make(family, share_embedding_weights=tied)
    _, hf_config = to_hf(state_of(make(family, share_embedding_weights=tied)[0]), config, family)
    torch.manual_seed(4)
    theirs = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**hf_config), attn_implementation="eager"
    ).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path)  # files, whose tensors may have other names than in memory
    tensors = wrap_tensors(load_file(tmp_path / "model.safetensors"))
    state, back, dropped = from_hf(tensors, json.loads((tmp_path / "config.json").read_text()))
    with torch.no_grad():
        difference = theirs(ids(config)).logits - logits(with_weights(back, state))
    assert not dropped
    assert float(difference.abs().max()) <= TOLERANCE


def test_an_export_in_several_files_generates(tmp_path: Path):
    model, config = make("gpt2", **MUP)
    theirs = exported(tmp_path, *to_hf(state_of(model), config), shard_bytes=20_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    start = ids(config)[:1, :3]
    expected = start
    for _ in range(5):
        with torch.no_grad():
            following = model.logits(expected)[:, -1:].argmax(-1)
        expected = torch.cat([expected, following], dim=1)
    made = theirs.generate(start, max_new_tokens=5, do_sample=False, pad_token_id=0)
    assert torch.equal(made, expected)


def test_the_tokenizer_beside_an_export_gives_the_ids_of_gpt2(tmp_path: Path):
    from pipeline.tokenizers.definition import load_definition

    model, config = make("gpt2", vocab_size=50257, num_hidden_layers=1)
    tensors, hf_config = to_hf(state_of(model), config)
    targets.write_hf(tmp_path, tensors, hf_config, 10**9, load_definition("gpt2"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert tokenizer("Hello, world").input_ids == [15496, 11, 995]
    assert tokenizer.eos_token_id == 50256
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    assert loaded.generation_config.eos_token_id == 50256
