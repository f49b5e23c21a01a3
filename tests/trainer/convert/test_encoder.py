"""BERT and RoBERTa: `transformers` is the judge of logits, from files both ways."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from pipeline.core.errors import ConfigError
from tests.trainer.convert.models import ids, make, state_of, with_weights
from trainer.config import ModelConfig, load_params
from trainer.config.sections import MaskTokens
from trainer.convert import from_hf, targets, to_hf, wrap_tensors
from trainer.convert.families import family_of
from trainer.convert.gguf_file import check_family
from trainer.convert.weights import to_model_zoo
from trainer.model import GPT

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    transformers = pytest.importorskip(
        "transformers", reason="the reference for exports: pip install transformers"
    )

TOLERANCE = 1e-4


KINDS = {"bert": "BertForMaskedLM", "roberta": "RobertaForMaskedLM"}


def rows(config: ModelConfig) -> torch.Tensor:
    """Token ids (2, S), without token 1, which is padding in RoBERTa."""
    drawn = ids(config)
    return drawn.masked_fill(drawn == 1, 2)


def our_logits(model: GPT) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(rows(model.config))


def load(directory: Path, family: str):
    """The model that transformers loads; nothing missing or unused."""
    model, report = transformers.AutoModelForMaskedLM.from_pretrained(
        directory, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert type(model).__name__ == KINDS[family]
    return model.eval()


@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("bert", {}),
        ("bert", {"share_embedding_weights": False}),
        ("bert", {"nonlinearity": "relu", "layer_norm_epsilon": 1e-12}),
        ("bert", {"use_ffn_bias": False}),
        (
            "bert",
            {"attention_type": "dot_product", "embeddings_scale": 3.0, "output_logits_scale": 0.5},
        ),
        ("roberta", {}),
        ("roberta", {"share_embedding_weights": False, "use_ffn_bias": False}),
    ],
    ids=["plain", "untied", "relu", "few biases", "factors", "roberta", "roberta untied"],
)
def test_logits_of_an_export_are_ours(family, changes, tmp_path):
    model, config = make(family, **changes)
    tensors, hf_config = to_hf(state_of(model), config, family)
    targets.write_hf(tmp_path, tensors, hf_config, 10**9, None)
    with torch.no_grad():
        difference = load(tmp_path, family)(rows(config)).logits - our_logits(model)
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(our_logits(model).abs().max()) > 1


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize(
    ("family", "kind"), [*KINDS.items(), ("bert", "BertForPreTraining")], ids=lambda value: value
)
def test_logits_of_an_import_are_theirs(family, kind, tied, tmp_path):
    """Segment embeddings, which ours has not, included."""
    _, config = make(family, share_embedding_weights=tied)
    made, _ = make(family, share_embedding_weights=tied)
    _, hf_config = to_hf(state_of(made), config, family)
    torch.manual_seed(4)
    theirs = getattr(transformers, kind)(transformers.AutoConfig.for_model(**hf_config)).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    theirs.save_pretrained(tmp_path)
    tensors = wrap_tensors(load_file(tmp_path / "model.safetensors"))
    state, back, dropped = from_hf(tensors, json.loads((tmp_path / "config.json").read_text()))
    with torch.no_grad():
        out = theirs(rows(config))
        expected = out.prediction_logits if kind == "BertForPreTraining" else out.logits
        difference = expected - our_logits(with_weights(back, state))
    assert not dropped
    assert back.max_position_embeddings == config.max_position_embeddings
    assert float(difference.abs().max()) <= TOLERANCE
    assert float(expected.abs().max()) > 0.5


@pytest.mark.parametrize("family", KINDS)
def test_there_and_back_gives_equal_bits(family, tmp_path):
    model, config = make(family)
    tensors, hf_config = to_hf(state_of(model), config, family)
    save_file({name: t.read().clone() for name, t in tensors.items()}, tmp_path / "x")
    state, back, _ = from_hf(wrap_tensors(load_file(tmp_path / "x")), hf_config)
    for name, parameter in model.named_parameters():
        assert torch.equal(state[name].read(), parameter)
    assert back == config.model_copy(update={"embedding_dropout_rate": None})


def test_an_encoder_is_a_bert_unless_it_is_asked_for_otherwise():
    _, config = make("bert")
    assert family_of(config).name == "bert"
    _, hf_config = to_hf(state_of(make("bert")[0]), config, "roberta")
    assert hf_config["model_type"] == "roberta"
    assert hf_config["max_position_embeddings"] == config.max_position_embeddings + 2
    with pytest.raises(ConfigError, match="nonlinearity is relu; roberta needs gelu"):
        family_of(make("bert", nonlinearity="relu")[1], "roberta")
    with pytest.raises(ConfigError, match="pad_token_id is 0; only 1 of roberta is supported"):
        from_hf({}, {**hf_config, "pad_token_id": 0})


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
