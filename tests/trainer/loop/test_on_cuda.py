"""`train` on a real GPU: weights streamed to it (CSX) and weights that stay there (GPU)."""

import pytest
import torch

from trainer.generation.loaded import find_checkpoint, load_model

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU: make gpu")
BFLOAT16 = {"mixed_precision": True, "fp16_type": "bfloat16"}
WIDE = {"hidden_size": 128, "num_heads": 2, "filter_size": 512, "num_hidden_layers": 2}
MODELS = [
    pytest.param({}, id="fp32"),
    pytest.param(BFLOAT16, id="bf16"),
    pytest.param({**BFLOAT16, **WIDE}, id="bf16-heads-of-64"),
]


def configure(trainer, target: str, model: dict, **run) -> None:
    where = {"device": "cuda"} if target == "CSX" else {}
    base = {"seed": 5, "checkpoint_steps": 2, "eval_frequency": 3}
    trainer.configure(
        model={**trainer_model(), **model},
        runconfig={**base, **where, **run},
    )


def trainer_model() -> dict:
    from tests.trainer.conftest import PARAMS

    return PARAMS["model"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("target", ["CSX", "GPU"])
def test_the_same_bits_again_and_for_any_number_of_systems(trainer, target, model):
    configure(trainer, target, model)
    systems = (1, 1, 2, 3) if target == "CSX" else (1, 1)
    found = []
    for number, num_csx in enumerate(systems):
        out = f"out{number}"
        assert trainer.train(out, target=target, num_csx=num_csx, mode="train_and_eval") == 0
        found.append(trainer.bits(out))
    assert all(bits == found[0] for bits in found)


@pytest.mark.parametrize("target", ["CSX", "GPU"])
def test_a_stopped_run_is_resumed_exactly(trainer, target):
    configure(trainer, target, BFLOAT16)
    systems = {"target": target, "num_csx": 1}
    assert trainer.train("whole", **systems) == 0
    assert trainer.train("out", **systems, num_steps=3) == 0
    assert trainer.train("out", **systems) == 0
    assert trainer.bits("out") == trainer.bits("whole")


@pytest.mark.parametrize("target", ["CSX", "GPU"])
def test_losses_are_those_of_a_cpu_but_for_rounding(trainer, target):
    configure(trainer, target, {})
    trainer.train("there", target=target, num_csx=1)
    trainer.configure()
    trainer.train("here", target="CPU", num_csx=1)
    for left, right in zip(trainer.metrics("there"), trainer.metrics("here"), strict=True):
        assert left["loss"] == pytest.approx(right["loss"], rel=1e-4)
        assert left["grad_norm"] == pytest.approx(right["grad_norm"], rel=1e-3)


def test_a_trained_model_says_the_same_on_either_device(trainer):
    configure(trainer, "CSX", {})
    trainer.train("out", num_csx=1)
    saved = find_checkpoint(trainer.root / "out")
    ids = torch.arange(16)[None]
    with torch.no_grad():
        here = load_model(saved).model.logits(ids)
        there = load_model(saved, "cuda").model.logits(ids.cuda())
    assert torch.allclose(here, there.cpu(), rtol=1e-4, atol=1e-4)
