"""T5: `transformers` is the judge of logits, from files both ways."""

import itertools
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import ConfigError
from pipeline.tokenizers.definition import TokenizerDefinition
from tests.trainer.convert.models import BASE, NO_BIASES, state_of, with_weights
from tests.trainer.convert.models import ids as encoder_ids
from trainer.config import ModelConfig, load_params
from trainer.config.sections import CorruptSpans
from trainer.convert import from_hf, targets, to_hf, wrap_tensors
from trainer.convert.families import family_of, from_hf_config
from trainer.convert.gguf_file import check_family
from trainer.convert.weights import to_model_zoo
from trainer.generation.loaded import LoadedModel
from trainer.generation.text import Sampling, tell_spans
from trainer.model import GPT
from trainer.model.positions import relative_buckets
from trainer.runs.checkpoint import Checkpoint

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip(
        "transformers", reason="the reference for exports: pip install transformers"
    )

TOLERANCE = 1e-4
T5 = {
    **BASE, **NO_BIASES, "bidirectional": True, "decoder_num_hidden_layers": 3,
    "tgt_max_position_embeddings": 5, "position_embedding_type": "relative",
    "relative_attention_num_buckets": 8, "relative_attention_max_distance": 12,
    "norm_type": "rmsnorm", "nonlinearity": "relu", "attention_type": "dot_product",
}  # fmt: skip
V1_1 = {"nonlinearity": "geglu_new", "share_embedding_weights": False}
FORMS = {
    "v1.0": {}, "v1.1": V1_1, "heads of another width": {"attention_inner_dim": 32},
    "gelu": {"nonlinearity": "gelu", "layer_norm_epsilon": 1e-3},
    "silu": {"nonlinearity": "swiglu"},
}  # fmt: skip


def make(**changes) -> tuple[GPT, ModelConfig]:
    """A model whose weights and norms are all random."""
    torch.set_num_threads(1)
    config = ModelConfig.model_validate({**T5, **changes})
    model, generator = GPT(config, seed=1).eval(), torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
        model.token_embedding.weight.mul_(4)
    return model, config


def told(config: ModelConfig) -> torch.Tensor:
    generator = torch.Generator().manual_seed(5)
    return torch.randint(0, config.vocab_size, (2, 9), generator=generator)


def logits(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(encoder_ids(model.config), decoder_input_ids_BT=told(model.config))


def their_logits(model, config: ModelConfig) -> torch.Tensor:
    read = encoder_ids(config)
    with torch.no_grad():
        return model(
            input_ids=read, attention_mask=torch.ones_like(read), decoder_input_ids=told(config)
        ).logits


def load(directory: Path):
    """The model that transformers loads; nothing missing or unused."""
    model, report = transformers.AutoModelForSeq2SeqLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == "T5ForConditionalGeneration"
    return model.eval()


@pytest.mark.parametrize("form", ["v1.0", "v1.1"])
def test_spans_that_are_told_are_those_of_transformers(form, tmp_path):
    model, config = make(**FORMS[form])
    targets.write_hf(tmp_path, *to_hf(state_of(model), config), 10**9, None)
    theirs, inputs = load(tmp_path), encoder_ids(config)
    for row in inputs:
        expected = theirs.generate(
            row[None],
            max_new_tokens=12,
            do_sample=False,
            use_cache=False,
            decoder_start_token_id=3,
            eos_token_id=None,
            pad_token_id=3,
        )
        loaded = LoadedModel(model, Checkpoint(tmp_path, 0, {}, {}, ""))
        told = tell_spans(loaded, row.tolist(), 3, Sampling(temperature=0), seed=0)
        assert [3, *itertools.islice(told, 12)] == expected[0].tolist()


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_an_export_are_ours(form, tmp_path):
    model, config = make(**FORMS[form])
    tensors, hf_config = to_hf(state_of(model), config)
    targets.write_hf(tmp_path, tensors, hf_config, 10**9, None)
    difference = their_logits(load(tmp_path), config) - logits(model)
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(logits(model).abs().max()) > 1


@pytest.mark.parametrize("form", FORMS)
def test_logits_of_an_import_are_theirs(form, tmp_path):
    model, config = make(**FORMS[form])
    _, hf_config = to_hf(state_of(model), config)
    torch.manual_seed(4)
    made = transformers.T5Config(**{k: v for k, v in hf_config.items() if k != "torch_dtype"})
    theirs = transformers.T5ForConditionalGeneration(made).eval()
    if form == "v1.1":
        theirs.lm_head.weight = torch.nn.Parameter(torch.empty_like(theirs.shared.weight))
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=1.5 if parameter is theirs.shared.weight else 0.3)
    theirs.save_pretrained(tmp_path)
    tensors = wrap_tensors(load_file(tmp_path / "model.safetensors"))
    state, back, dropped = from_hf(tensors, json.loads((tmp_path / "config.json").read_text()))
    expected = their_logits(theirs, config)
    assert not dropped
    difference = expected - logits(with_weights(back, state))
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(expected.abs().max()) > 0.5


@pytest.mark.parametrize("form", FORMS)
def test_there_and_back_gives_equal_bits(form, tmp_path):
    model, config = make(**FORMS[form])
    tensors, hf_config = to_hf(state_of(model), config)
    save_file({name: t.read().clone() for name, t in tensors.items()}, tmp_path / "x")
    state, back, _ = from_hf(wrap_tensors(load_file(tmp_path / "x")), hf_config)
    for name, parameter in model.named_parameters():
        assert torch.equal(state[name].read(), parameter)
    assert back == config


def test_buckets_are_theirs():
    theirs = transformers.models.t5.modeling_t5.T5Attention._relative_position_bucket
    offsets = torch.arange(-700, 700)
    for buckets, farthest in ((8, 12), (32, 128), (16, 64), (32, 20), (4, 3)):
        for both_ways in (True, False):
            expected = theirs(offsets, both_ways, buckets, farthest)
            found = relative_buckets(offsets, buckets, farthest, both_ways=both_ways)
            assert torch.equal(found, expected)


def test_published_configs_are_read():
    """t5-small's and t5-v1_1-small's config.json, without what changes no logit."""
    small = {"model_type": "t5", "d_ff": 2048, "d_kv": 64, "d_model": 512, "num_heads": 8,
             "num_layers": 6, "vocab_size": 32128, "n_positions": 512, "dropout_rate": 0.1,
             "layer_norm_epsilon": 1e-6, "relative_attention_num_buckets": 32}  # fmt: skip
    config, _ = from_hf_config(small, "config.json")
    assert (config.max_position_embeddings, config.tgt_max_position_embeddings) == (512, 114)
    assert (config.decoder_num_hidden_layers, config.nonlinearity) == (6, "relu")
    assert (config.share_embedding_weights, config.output_logits_scale) == (True, 512**-0.5)
    gated = small | {"num_heads": 6, "d_ff": 1024, "num_decoder_layers": 8,
                     "feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}  # fmt: skip
    config, _ = from_hf_config(gated, "config.json")
    assert (config.attention_inner_dim, config.decoder_num_hidden_layers) == (384, 8)
    assert (config.share_embedding_weights, config.output_logits_scale) == (False, 1.0)
    with pytest.raises(ConfigError, match="feed_forward_proj is 'swish', expected relu"):
        from_hf_config(small | {"feed_forward_proj": "swish"}, "config.json")


def test_the_decoder_begins_with_the_pad_or_the_eos_of_the_tokenizer(tmp_path):
    model, config = make()
    tensors, hf_config = to_hf(state_of(model), config)
    words = {"a": 0, "</s>": 1, "<pad>": 2}
    added = [{"id": 2, "content": "<pad>", "special": True}]
    for start, tokens in ((2, added), (1, [])):
        content = {"added_tokens": tokens, "model": {"type": "BPE", "vocab": words, "merges": []}}
        tokenizer = TokenizerDefinition(
            name="t", json=json.dumps(content), vocab_size=3, eos_token="</s>", eos_id=1
        )
        targets.write_hf(tmp_path / str(start), tensors, hf_config, 10**9, tokenizer)
        for name in ("config.json", "generation_config.json"):
            written = json.loads((tmp_path / str(start) / name).read_text())
            assert (written["decoder_start_token_id"], written["eos_token_id"]) == (start, 1)


def test_the_params_beside_an_import_load(tmp_path):
    _, config = make()
    targets.write_params_yaml(tmp_path, config)
    params = load_params(tmp_path / "params.yaml")
    assert params.model == config
    assert params.train_input.masking == CorruptSpans(name="corrupt_spans")


def test_what_cannot_hold_it_is_refused_by_name():
    model, config = make()
    with pytest.raises(ConfigError, match=r"--tgt-fmt gguf: family t5 cannot be written"):
        check_family(family_of(config).name, config)
    with pytest.raises(ConfigError, match=r"encoders are not converted from and to \.mdl"):
        to_model_zoo(state_of(model), config)
    with pytest.raises(ConfigError, match=r"bert cannot hold this model: model\.\w+ is"):
        family_of(config, "bert")
    for changes, expected in (
        ({"output_logits_scale": 2.0}, r"output_logits_scale is 2.0; t5 needs 1 / sqrt"),
        ({"use_ffn_bias": True}, r"use_ffn_bias is True; t5 needs False"),
        ({"norm_type": "layernorm"}, r"norm_type is layernorm; t5 needs rmsnorm"),
    ):
        with pytest.raises(ConfigError, match=f"t5 cannot hold this model: model.{expected}"):
            family_of(make(**changes)[1], "t5")
