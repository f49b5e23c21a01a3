"""An encoder with a decoder trains as others do: equal bits on any number of systems and after a
kill; its loss is that of the spans that were cut out; what has no meaning for it is refused."""

import json
import signal

import pytest
import torch
import torch.nn.functional as F
import yaml

from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.convert import targets, wrap_tensors
from trainer.data import TrainingData, open_training, to_batch
from trainer.data.batches import activation_bytes
from trainer.evaluation.loss import LossOptions, evaluate_checkpoint
from trainer.generation.loaded import find_checkpoint, load_model
from trainer.loop.build import compile_model
from trainer.model import GPT
from trainer.plan.run import on_meta, streamed_bytes
from trainer.report.write import write_card

# Of rows of 16 tokens of 61: 2 are cut out in one span, and 4 sentinels are behind the vocabulary.
MODEL = {"bidirectional": True, "decoder_num_hidden_layers": 2, "vocab_size": 65,
         "max_position_embeddings": 16, "tgt_max_position_embeddings": 4,
         "position_embedding_type": "relative", "norm_type": "rmsnorm"}  # fmt: skip
SPANS = {"data_transforms": [{"name": "corrupt_spans", "extra_ids": 4}]}


@pytest.fixture
def t5(trainer):
    trainer.configure(train_input=SPANS, eval_input=SPANS, model=MODEL)
    return trainer


def test_any_number_of_systems_and_a_kill_give_equal_bits(t5):
    assert t5.train("one", num_csx=1, mode="train_and_eval") == 0
    assert t5.train("three", num_csx=3, mode="train_and_eval") == 0
    assert t5.train("four", num_csx=4, mode="train_and_eval") == 0
    assert t5.train_forked("killed", "*@30=kill", mode="train_and_eval") == -signal.SIGKILL
    assert t5.train("killed", mode="train_and_eval") == 0
    assert t5.bits("one") == t5.bits("three") == t5.bits("four") == t5.bits("killed")
    recorded = json.loads((t5.root / "one" / "run.json").read_text())
    assert recorded["masking"]["sentinel_ids"] == [64]


def test_it_learns(t5):
    t5.train("out", num_steps=40)
    losses = [line["loss"] for line in t5.metrics("out")]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


@pytest.mark.parametrize("activations", ["recompute", "evict"])
def test_where_activations_wait_changes_no_bit(t5, activations):
    t5.train("kept", num_steps=3)
    t5.configure(train_input=SPANS, eval_input=SPANS, model=MODEL,
                 runconfig={"activations": activations})  # fmt: skip
    t5.train("other", num_steps=3)
    assert t5.bits("kept")[0] == t5.bits("other")[0]


@pytest.mark.parametrize("half", ["bfloat16", "float16"])
def test_half_precision_is_near_and_has_equal_bits(t5, half):
    t5.train("full", num_steps=3)
    optimizer = {"loss_scaling_factor": "dynamic"} if half == "float16" else {}
    t5.configure(train_input=SPANS, eval_input=SPANS, optimizer=optimizer | {"learning_rate": 0.0},
                 model=MODEL | {"mixed_precision": True, "fp16_type": half})  # fmt: skip
    t5.train("one", num_csx=1, num_steps=3)
    t5.train("three", num_csx=3, num_steps=3)
    assert t5.bits("one") == t5.bits("three")
    full, one = (t5.metrics(name)[0]["loss"] for name in ("full", "one"))
    assert one == pytest.approx(full, rel=1e-2)
    assert one != full


def test_its_matrices_can_be_sparse(t5):
    params = yaml.safe_load(t5.params.read_text())
    params["sparsity"] = {"algorithm": "static", "sparsity": 0.5}
    t5.params.write_text(yaml.safe_dump(params))
    t5.train("one", num_csx=1, num_steps=3)
    t5.train("three", num_csx=3, num_steps=3)
    assert t5.bits("one") == t5.bits("three")
    inside = 256 * (4 + 2 * 8) + 2 * 16 * 32 * 3  # attention, of which a decoder block has two
    assert f"{inside // 2:,} of {inside:,} weights of sparse matrices are pruned" in " ".join(
        t5.said
    )


@pytest.mark.parametrize("rule", ["keep", "recompute", "evict"])
@pytest.mark.parametrize("half", [None, "bfloat16", "float16"])
def test_what_a_leaf_keeps_and_what_travels_for_it_is_estimated(t5, rule, half):
    deep = {"num_hidden_layers": 3, "decoder_num_hidden_layers": 4, "hidden_size": 32,
            "filter_size": 128}  # fmt: skip
    precision = {} if half is None else {"mixed_precision": True, "fp16_type": half}
    t5.configure(train_input=SPANS, eval_input=SPANS, model={**MODEL, **deep, **precision},
                 runconfig={"activations": rule})  # fmt: skip
    params = load_params(t5.params)
    source = open_training(params.train_input, params.model, t5.data / "hdf5" / "train")
    batch = TrainingData(source, seed=1, schedule=((1, 1),)).batch(1)
    compiled = compile_model(params, "CSX", 1)
    compiled.train_step(batch, step=1, learning_rate=0.0)
    held = compiled.wafers[0].activations.peak_bytes
    assert held < activation_bytes(params.model, rule) < 10 * held
    down, up = streamed_bytes(params, on_meta(params))
    traffic = compiled.transport.traffic
    assert traffic.gradient_bytes == up
    assert up < traffic.weight_bytes <= down  # backward needs no embedding table and no bias


def test_evaluate_gives_the_loss_of_the_spans(t5):
    t5.train("out", mode="train_and_eval")
    measured = evaluate_checkpoint(LossOptions(path=t5.root / "out", data=t5.data), print)
    last = json.loads((t5.root / "out" / "eval.jsonl").read_text().splitlines()[-1])
    assert measured.evaluation.n_counted == last["n_counted"]
    assert measured.evaluation.loss == pytest.approx(last["loss"], rel=1e-6)
    # The same by hand: the logits of what the decoder reads, at what counts.
    params = load_params(t5.params)
    place = {"data_dir": t5.data / "hdf5" / "validation"}
    source = open_training(params.train_input.model_copy(update=place), params.model)
    numbers = torch.arange(source.rows).numpy()
    batch = to_batch(source.masking.of_evaluation(source.read(numbers), numbers))
    model = load_model(find_checkpoint(t5.root / "out")).model
    logits = model.logits(batch["input_ids"], decoder_input_ids_BT=batch["decoder_input_ids"])
    counted = batch["attention_mask"] == 1
    expected = F.cross_entropy(logits[counted], batch["labels"][counted])
    assert measured.evaluation.loss == pytest.approx(float(expected), rel=1e-5)
    assert measured.evaluation.n_counted == int(counted.sum())


def test_its_card_says_what_it_is(t5):
    t5.train("out", num_steps=2)
    card = write_card(t5.root / "out").read_text()
    assert "pipeline_tag: text2text-generation" in card
    assert "tells spans cut out of a text" in card
    assert "| blocks | 1, 2 of the decoder |" in card
    assert f"{2 * 7 * (16 + 4)} tokens" in card


def test_other_spans_are_another_run(t5):
    t5.train("out", num_steps=2)
    more = {"data_transforms": [{**SPANS["data_transforms"][0], "mean_noise_span_length": 2.0}]}
    t5.configure(train_input=more, eval_input=more, model=MODEL)
    with pytest.raises(ConfigError, match=r"masking.mean_noise_span_length was 3.0, now 2.0"):
        t5.train("out")


def test_what_continues_texts_is_refused(t5):
    t5.train("out", num_steps=2)
    with pytest.raises(ConfigError, match=r"an encoder and a decoder .*cannot continue texts"):
        t5.train("out", mode="infer")


def test_one_of_unknown_training_has_the_default_rule(t5):
    """As one that was converted, whose checkpoint has no rule."""
    model = load_params(t5.params).model
    weights = wrap_tensors(dict(GPT(model, 3).named_parameters()))
    targets.write_wafermill(t5.root / "converted", weights, model)
    wish = LossOptions(path=t5.root / "converted", data=t5.data)
    with pytest.raises(ConfigError, match=r"model.vocab_size is 65, but .* vocabulary of 61"):
        evaluate_checkpoint(wish, print)
