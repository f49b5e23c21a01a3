"""An encoder trains as a decoder does: equal bits on any number of systems and after a kill; its
loss is that of the hidden tokens; what has no meaning for it is refused."""

import json
import signal
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.convert import targets, wrap_tensors
from trainer.data import open_training, to_batch
from trainer.evaluation.loss import LossOptions, evaluate_checkpoint
from trainer.generation.loaded import find_checkpoint, load_model
from trainer.model import GPT

MODEL = {"bidirectional": True, "norm_first": False, "embedding_layer_norm": True,
         "mlm_head": True, "use_bias_in_output": True}  # fmt: skip
HIDDEN = {"data_transforms": [{"name": "mask_tokens", "mask_token_id": 60}]}


@pytest.fixture
def encoder(trainer):
    trainer.configure(train_input=HIDDEN, eval_input=HIDDEN, model=MODEL)
    return trainer


def test_any_number_of_systems_and_a_kill_give_equal_bits(encoder):
    assert encoder.train("one", num_csx=1, mode="train_and_eval") == 0
    assert encoder.train("four", num_csx=4, mode="train_and_eval") == 0
    assert encoder.train_forked("killed", "*@30=kill", mode="train_and_eval") == -signal.SIGKILL
    assert encoder.train("killed", mode="train_and_eval") == 0
    assert encoder.bits("one") == encoder.bits("four") == encoder.bits("killed")
    recorded = json.loads((encoder.root / "one" / "run.json").read_text())
    assert recorded["masking"]["mask_token_id"] == 60


def test_evaluate_gives_the_loss_of_the_hidden_tokens(encoder):
    encoder.train("out", mode="train_and_eval")
    measured = evaluate_checkpoint(LossOptions(path=encoder.root / "out", data=encoder.data), print)
    last = json.loads((encoder.root / "out" / "eval.jsonl").read_text().splitlines()[-1])
    assert measured.evaluation.n_counted == last["n_counted"]
    assert measured.evaluation.loss == pytest.approx(last["loss"], rel=1e-6)
    # The same by hand: the logits of the rows with hidden tokens, at those alone.
    params = load_params(encoder.params)
    section = params.train_input.model_copy(
        update={"data_dir": encoder.data / "hdf5" / "validation"}
    )
    source = open_training(section, params.model)
    rows = source.datasets[0].read(torch.arange(source.rows).numpy())
    batch = to_batch(source.masking.of_evaluation(rows, torch.arange(source.rows).numpy()))
    chosen = batch["attention_mask"] == 1
    assert torch.equal(batch["labels"], to_batch(rows)["input_ids"])
    logits = load_model(find_checkpoint(encoder.root / "out")).model.logits(batch["input_ids"])
    expected = F.cross_entropy(logits[chosen], batch["labels"][chosen])
    assert measured.evaluation.loss == pytest.approx(float(expected), rel=1e-5)
    assert measured.evaluation.n_counted == int(chosen.sum())


def test_another_share_is_another_run(encoder):
    encoder.train("out", num_steps=2)
    more = {"data_transforms": [{**HIDDEN["data_transforms"][0], "masked_lm_prob": 0.3}]}
    encoder.configure(train_input=more, eval_input=more, model=MODEL)
    with pytest.raises(ConfigError, match=r"masking.masked_lm_prob was 0.15, now 0.3"):
        encoder.train("out")


def test_what_continues_texts_is_refused(encoder):
    encoder.train("out", num_steps=2)
    with pytest.raises(ConfigError, match=r"an encoder .*cannot continue texts"):
        encoder.train("out", mode="infer")
    place = encoder.root / "out"
    wish = LossOptions(path=place, data=encoder.data, reference_tokenizer=Path("gpt2"))
    with pytest.raises(ConfigError, match="over hidden tokens here and there"):
        evaluate_checkpoint(wish, print)


def test_an_encoder_of_unknown_training_needs_a_mask_token(encoder):
    """As one that was converted, whose checkpoint has no rule."""
    model = load_params(encoder.params).model
    weights = wrap_tensors(dict(GPT(model, 3).named_parameters()))
    targets.write_wafermill(encoder.root / "converted", weights, model)
    wish = LossOptions(path=encoder.root / "converted", data=encoder.data)
    with pytest.raises(ConfigError, match=r"mask_token is '\[MASK\]', but .* has no tokenizer"):
        evaluate_checkpoint(wish, print)
