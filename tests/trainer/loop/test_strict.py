"""`train CSX --strict`: our own models break no rule, and what cannot be strict is one line."""

import pytest

from pipeline.core.errors import ConfigError
from trainer.errors import TrainingError
from trainer.model.decoder import LabelLosses

MODELS = {
    "gpt2": {"dropout_rate": 0.1},
    "bfloat16": {"mixed_precision": True, "fp16_type": "bfloat16"},
    "llama": {
        "norm_type": "rmsnorm",
        "nonlinearity": "swiglu",
        "position_embedding_type": "rotary",
    },
    "alibi": {"position_embedding_type": "alibi"},
}


@pytest.mark.parametrize("name", MODELS)
def test_a_strict_run_gives_the_same_bits(trainer, name):
    trainer.configure(model=MODELS[name])
    for out, strict in (("plain", False), ("strict", True)):
        trainer.train(out, mode="train_and_eval", num_steps=3, strict=strict)
    assert trainer.bits("strict") == trainer.bits("plain")


def test_a_model_that_breaks_a_rule_ends_the_run(trainer, monkeypatch):
    plain = LabelLosses.forward

    def branching(self, logits, batch):
        losses = plain(self, logits, batch)
        return losses if losses.sum() > 0 else -losses

    monkeypatch.setattr(LabelLosses, "forward", branching)
    with pytest.raises(TrainingError) as caught:
        trainer.train("out", num_steps=2, strict=True)
    text = str(caught.value)
    assert "test_strict.py:" in text
    assert "[value-fetched: " in text
    assert "\n" not in text


def test_strict_needs_wafers_and_one_batch_size(trainer):
    with pytest.raises(ConfigError, match="--strict is for target CSX, not CPU"):
        trainer.train("out", target="CPU", strict=True)
    steps = [{"from_step": 1, "batch_size": 4}, {"from_step": 3, "batch_size": 6}]
    trainer.configure(train_input={"batch_size": None, "batch_size_schedule": steps})
    with pytest.raises(ConfigError, match=r"goes from 4 to 6.*\[batch-changed: "):
        trainer.train("out", strict=True)
