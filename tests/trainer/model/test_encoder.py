"""An encoder is the blocks of the decoder with another mask, place of norms and head.

What it computes is compared with transformers in tests/trainer/convert/test_encoder.py.
"""

import pytest
import torch
from pydantic import ValidationError

from pipeline.core.errors import ConfigError
from trainer.config import ModelConfig, load_params
from trainer.config.model_parameters import parameter_count, shapes
from trainer.model import GPT

BERT = {
    "vocab_size": 61, "max_position_embeddings": 16, "hidden_size": 16, "num_hidden_layers": 2,
    "num_heads": 2, "filter_size": 32, "bidirectional": True, "norm_first": False,
    "embedding_layer_norm": True, "mlm_head": True, "use_bias_in_output": True,
}  # fmt: skip
PRE_NORM = BERT | {"norm_first": True, "mlm_head": False, "position_embedding_type": "rotary"}


def config(values=BERT, **changes) -> ModelConfig:
    return ModelConfig.model_validate({**values, **changes})


def ids(rows: int = 1) -> torch.Tensor:
    return torch.randint(0, 61, (rows, 16), generator=torch.Generator().manual_seed(2))


def test_parameters_are_those_of_the_formulas():
    model = GPT(config(), 1)
    found = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    assert found == shapes(config())
    assert list(found) == list(shapes(config()))
    assert sum(p.numel() for p in model.parameters()) == parameter_count(config())
    assert found["head_dense.weight"] == (16, 16)


@pytest.mark.parametrize("values", [BERT, PRE_NORM], ids=["bert", "norms first"])
def test_every_token_sees_every_other(values):
    model = GPT(config(values), 1).eval()
    plain = ids()
    with torch.no_grad():
        for place in (0, 7, 15):
            changed = plain.clone()
            changed[0, place] = (changed[0, place] + 1) % 61
            difference = (model.logits(changed) - model.logits(plain)).abs().amax(-1)[0]
            assert (difference > 0).all()


def test_packed_documents_see_all_of_themselves_and_nothing_else():
    model = GPT(config(), 1).eval()
    lengths = (6, 7, 3)  # the last columns are pads
    span, position = torch.zeros(1, 16, dtype=torch.long), torch.zeros(1, 16, dtype=torch.long)
    for first, n in ((0, 6), (6, 7)):
        span[0, first : first + n] = torch.arange(n - 1, -1, -1)
        position[0, first : first + n] = torch.arange(n)
    packed = {"position_ids_BS": position, "attention_span_BS": span}
    plain = ids()
    with torch.no_grad():
        whole = model.logits(plain, **packed)
        for place, inside in ((1, slice(0, 6)), (12, slice(6, 13))):
            changed = plain.clone()
            changed[0, place] = (changed[0, place] + 1) % 61
            moved = (model.logits(changed, **packed) - whole).abs().amax(-1)[0] > 0
            assert moved[inside].all()
            assert int(moved.sum()) == lengths[0 if place == 1 else 1]
        alone = model.logits(plain[:, 6:13])
    assert torch.allclose(alone, whole[:, 6:13], atol=1e-6)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"mlm_head": False}, "norm_first: false needs mlm_head: true"),
        ({"norm_first": True}, "norm_first: true needs mlm_head: false"),
        ({"bidirectional": False}, "mlm_head: true needs bidirectional: true"),
        ({"nonlinearity": "swiglu"}, "mlm_head: true needs a plain nonlinearity, not swiglu"),
        ({"parallel_block": True}, "norm_first: false needs norm_first_sandwich: false and"),
        ({"position_embedding_type": "alibi"}, "needs other positions than alibi"),
        ({"attention_sliding_window_length": 4}, "attention_sliding_window_length: null"),
        ({"mup_base_hidden_size": 8}, "needs mup_base_hidden_size: null"),
    ],
)
def test_what_an_encoder_cannot_have_is_refused(changes, expected):
    with pytest.raises(ValidationError, match=expected):
        config(**changes)


@pytest.mark.parametrize("encoder", [True, False])
def test_an_encoder_and_hidden_tokens_need_each_other(encoder):
    values = {"train_input": {"batch_size": 8}, "model": BERT, "optimizer": {"learning_rate": 0.1}}
    if not encoder:
        values["model"] = {key: BERT[key] for key in list(BERT)[:6]}
        values["train_input"]["data_transforms"] = [{"name": "mask_tokens"}]
    expected = "a token sees the next one" if encoder else "mask_tokens is for encoders"
    with pytest.raises(ConfigError, match=f"train_input.data_transforms: .*{expected}"):
        load_params(values)
