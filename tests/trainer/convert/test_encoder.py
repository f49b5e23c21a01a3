"""BERT: `transformers` is the judge of logits, from files both ways."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import ConfigError
from tests.trainer.convert.models import ids, logits, make, state_of, with_weights
from trainer.config import load_params
from trainer.config.sections import MaskTokens
from trainer.convert import from_hf, targets, to_hf, wrap_tensors
from trainer.convert.families import family_of
from trainer.convert.gguf_file import check_family
from trainer.convert.weights import to_model_zoo

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip(
        "transformers", reason="the reference for exports: pip install transformers"
    )

TOLERANCE = 1e-4


def load(directory: Path):
    """The model that transformers loads; nothing missing or unused."""
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == "BertForMaskedLM"
    return model.eval()


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"share_embedding_weights": False},
        {"nonlinearity": "relu", "layer_norm_epsilon": 1e-12},
        {"use_ffn_bias": False},
        {"attention_type": "dot_product", "embeddings_scale": 3.0, "output_logits_scale": 0.5},
    ],
    ids=["plain", "untied", "relu", "few biases", "factors"],
)
def test_logits_of_an_export_are_ours(changes, tmp_path):
    model, config = make("bert", **changes)
    tensors, hf_config = to_hf(state_of(model), config)
    targets.write_hf(tmp_path, tensors, hf_config, 10**9, None)
    with torch.no_grad():
        difference = load(tmp_path)(ids(config)).logits - logits(model)
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(logits(model).abs().max()) > 1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("kind", ["BertForMaskedLM", "BertForPreTraining"])
def test_logits_of_an_import_are_theirs(kind, tied, tmp_path):
    """Segment embeddings, which ours has not, included."""
    _, config = make("bert", share_embedding_weights=tied)
    _, hf_config = to_hf(state_of(make("bert", share_embedding_weights=tied)[0]), config)
    torch.manual_seed(4)
    theirs = getattr(transformers, kind)(transformers.AutoConfig.for_model(**hf_config)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path)
    tensors = wrap_tensors(load_file(tmp_path / "model.safetensors"))
    state, back, dropped = from_hf(tensors, json.loads((tmp_path / "config.json").read_text()))
    with torch.no_grad():
        out = theirs(ids(config))
        expected = out.logits if kind == "BertForMaskedLM" else out.prediction_logits
        difference = expected - logits(with_weights(back, state))
    assert not dropped
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(expected.abs().max()) > 0.5


def test_there_and_back_gives_equal_bits(tmp_path):
    model, config = make("bert")
    tensors, hf_config = to_hf(state_of(model), config)
    save_file({name: t.read().clone() for name, t in tensors.items()}, tmp_path / "x")
    state, back, _ = from_hf(wrap_tensors(load_file(tmp_path / "x")), hf_config)
    for name, parameter in model.named_parameters():
        assert torch.equal(state[name].read(), parameter)
    assert back == config.model_copy(update={"embedding_dropout_rate": None})


def test_the_params_beside_an_import_load(tmp_path):
    _, config = make("bert")
    targets.write_params_yaml(tmp_path, config)
    params = load_params(tmp_path / "params.yaml")
    assert params.model == config
    assert params.train_input.masking == MaskTokens(name="mask_tokens")


def test_what_cannot_hold_an_encoder_is_refused_by_name():
    model, config = make("bert")
    with pytest.raises(ConfigError, match=r"--tgt-fmt gguf: family bert cannot be written"):
        check_family(family_of(config).name, config)
    with pytest.raises(ConfigError, match=r"encoders are not converted from and to \.mdl"):
        to_model_zoo(state_of(model), config)
    with pytest.raises(ConfigError, match=r"gpt2 cannot hold this model: model.bidirectional"):
        family_of(config, "gpt2")
    with pytest.raises(ConfigError, match=r"bert cannot hold this model: model\.\w+ is"):
        family_of(make("gpt2")[1], "bert")
    decoder = {"model_type": "bert", "is_decoder": True}
    with pytest.raises(ConfigError, match=r"is_decoder is True; only False of bert"):
        from_hf({}, decoder)
