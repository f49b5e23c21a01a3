"""Half precision, its loss scale, and where activations wait: exact on any cluster and resume."""

import json
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from pipeline.core.errors import ConfigError
from trainer.config import load_params
from trainer.data import TrainingData, batches, open_checked, to_batch
from trainer.loop.build import compile_model
from trainer.model import GPT
from trainer.runs import record

BF16 = {"mixed_precision": True, "fp16_type": "bfloat16"}
FP16 = {"mixed_precision": True, "fp16_type": "float16"}
CB16 = {"mixed_precision": True, "fp16_type": "cbfloat16_exact"}
DYNAMIC = {"loss_scaling_factor": "dynamic"}


def state(trainer, out: str, step: int) -> dict:
    path = trainer.root / out / "checkpoints" / f"step_{step:07d}" / "state.json"
    return json.loads(path.read_text())


@pytest.mark.parametrize(
    ("model", "optimizer"),
    [(BF16, {}), (FP16, DYNAMIC), (CB16, DYNAMIC)],
    ids=["bfloat16", "float16", "cbfloat16"],
)
def test_bits_are_equal_for_every_num_csx_and_the_resident_target(trainer, model, optimizer):
    trainer.configure(model={**model, "dropout_rate": 0.1}, optimizer=optimizer)
    trainer.train("reference", target="CPU", mode="train_and_eval", num_steps=4, num_csx=1)
    assert not trainer.metrics("reference")[-1].get("skipped")
    # cbfloat16 is emulated operation by operation
    for num_csx in (1, 3) if model is CB16 else (1, 2, 3):
        out = f"csx{num_csx}"
        trainer.train(out, mode="train_and_eval", num_steps=4, num_csx=num_csx)
        assert trainer.bits(out) == trainer.bits("reference")
    single = trainer.configure("single.yaml", model={"dropout_rate": 0.1})
    trainer.train("single", params=single, num_steps=1)
    assert trainer.metrics("single")[0]["loss"] != trainer.metrics("csx1")[0]["loss"]


def test_a_step_that_overflows_is_skipped_and_halves_the_scale(trainer):
    optimizer = {**DYNAMIC, "learning_rate": 0.01}
    trainer.configure(model=FP16, optimizer=optimizer, runconfig={"checkpoint_steps": 1})
    trainer.train("out", num_steps=1)
    (line,) = trainer.metrics("out")
    assert list(line)[-2:] == ["loss_scale", "skipped"]
    assert (line["loss_scale"], line["skipped"], line["grad_norm"]) == (2.0**15, True, None)
    first = trainer.root / "out" / "checkpoints" / "step_0000001" / "weights-00000.safetensors"
    weights = load_file(first)
    for name, initial in GPT(load_params(trainer.params).model, seed=5).named_parameters():
        assert torch.equal(weights[name], initial)
    trainer.train("out", num_steps=8)
    lines = trainer.metrics("out")
    skipped = [line["skipped"] for line in lines]
    scales = [2.0 ** (15 - sum(skipped[:step])) for step in range(9)]
    assert [line["loss_scale"] for line in lines] == scales[:8]
    assert [line["grad_norm"] is None for line in lines] == skipped
    assert 1 < sum(skipped) < 8
    kept = state(trainer, "out", 8)["loss_scale"]
    assert (kept["scale"], kept["skipped"]) == (scales[8], sum(skipped))
    assert kept["finite_run"] == skipped[::-1].index(True)


@pytest.mark.crash
@pytest.mark.parametrize("number", [12, 20, 35])
def test_a_killed_run_resumes_with_the_same_scale(trainer, number):
    trainer.configure(model=FP16, optimizer=DYNAMIC)
    assert trainer.train_forked("whole") == 0
    assert any(line["skipped"] for line in trainer.metrics("whole"))
    assert trainer.train_forked("out", f"*@{number}=kill") == -signal.SIGKILL
    assert trainer.train_forked("out", num_csx=3) == 0
    assert trainer.bits("out") == trainer.bits("whole")
    shown = [[m["loss_scale"] for m in trainer.metrics(out)] for out in ("out", "whole")]
    assert shown[0] == shown[1]
    assert state(trainer, "out", 6)["loss_scale"] == state(trainer, "whole", 6)["loss_scale"]


def test_a_fixed_scale_stays_also_when_every_step_overflows(trainer):
    for factor in (1.0, 2.0**20):
        trainer.configure(model=FP16, optimizer={"loss_scaling_factor": factor})
        trainer.train(f"scale{factor}", num_steps=3)
        lines = trainer.metrics(f"scale{factor}")
        assert [line["loss_scale"] for line in lines] == [factor] * 3
        assert [line["skipped"] for line in lines] == [factor == 2.0**20] * 3
    assert state(trainer, f"scale{2.0**20}", 3)["loss_scale"]["skipped"] == 3


def test_fp32_and_bf16_lines_and_checkpoints_have_no_loss_scale(trainer):
    trainer.configure(model=BF16)
    trainer.train("out", num_steps=2)
    assert all("loss_scale" not in line for line in trainer.metrics("out"))
    assert "loss_scale" not in state(trainer, "out", 2)


@pytest.mark.parametrize("model", [{}, BF16], ids=["float32", "bfloat16"])
def test_activations_and_weight_servers_may_change_on_resume(trainer, model):
    model = {**model, "dropout_rate": 0.1, "num_hidden_layers": 2}
    whole = trainer.configure("keep.yaml", model=model)
    trainer.train("whole", params=whole, mode="train_and_eval")
    for step, rule in ((2, "recompute"), (4, "evict"), (6, "keep")):
        cluster = {"activations": rule, "max_wgt_servers": step, "checkpoint_steps": 2}
        params = trainer.configure(model=model, runconfig=cluster)
        trainer.train("out", params=params, num_steps=step, mode="train")
    assert trainer.bits("out")[0] == trainer.bits("whole")[0]
    assert trainer.bits("out")[3] == trainer.bits("whole")[3]


def test_weights_are_spread_over_the_configured_servers(trainer):
    trainer.configure(runconfig={"max_wgt_servers": 3})
    compiled = compile_model(load_params(trainer.params), "CSX", 2)
    assert len(compiled.memoryx.server_bytes) == 3
    assert all(compiled.memoryx.server_bytes)


@pytest.mark.parametrize(
    ("before", "now", "field"),
    [
        (({}, {}), (BF16, {}), "model.mixed_precision was False, now True"),
        ((BF16, {}), (FP16, {}), "model.fp16_type was 'bfloat16', now 'float16'"),
        ((FP16, {}), (FP16, DYNAMIC), "loss_scaling_factor was 1.0, now 'dynamic'"),
    ],
    ids=["mixed_precision", "fp16_type", "loss_scaling_factor"],
)
def test_another_precision_on_resume_is_refused_by_name(trainer, before, now, field):
    trainer.configure(model=before[0], optimizer=before[1])
    trainer.train("out", num_steps=1)
    trainer.configure(model=now[0], optimizer=now[1])
    with pytest.raises(ConfigError, match=field):
        trainer.train("out")
    if "model" in field:
        with pytest.raises(ConfigError, match=field):
            trainer.train("out", mode="eval")


def test_what_plays_no_part_is_not_in_the_record(trainer):
    dataset = open_checked(trainer.data / "hdf5" / "train", load_params(trainer.params).model)
    data = TrainingData(dataset, seed=5, schedule=((1, 7),))

    def described(**sections: dict) -> dict:
        return record.describe_run(load_params(trainer.configure(**sections)), data, 2)

    plain = described()
    assert plain == described(model={"fp16_type": "bfloat16"})
    assert "loss_scaling_factor" not in plain["optimizer"]
    assert plain == described(runconfig={"activations": "evict", "max_wgt_servers": 4})
    accelerated = described(runconfig={"device": "cuda"})
    assert accelerated == {**plain, "device": "cuda", "fused_optimizer": True}


LLAMA_LIKE = {"position_embedding_type": "rotary", "norm_type": "rmsnorm", "nonlinearity": "swiglu"}
ALIBI = {"position_embedding_type": "alibi"}
GEMMA_LIKE = {
    **LLAMA_LIKE, "nonlinearity": "geglu", "norm_first_sandwich": True,
    "attention_logit_softcapping": 5.0, "attention_inner_dim": 64,
}  # fmt: skip
WINDOWED = {
    **LLAMA_LIKE, "attention_sliding_window_length": 4, "attention_qk_norm_layer": "rmsnorm",
    "embedding_layer_norm": True,
}  # fmt: skip
MIXTURE = {**LLAMA_LIKE, "moe": {"num_experts": 4, "top_k": 2}}
KINDS = {
    "gpt2": {}, "llama": LLAMA_LIKE, "alibi": ALIBI, "gemma": GEMMA_LIKE, "window": WINDOWED,
    "mixture": MIXTURE,
}  # fmt: skip


@pytest.mark.parametrize("rule", ["keep", "recompute", "evict"])
@pytest.mark.parametrize("model", [{}, BF16, FP16], ids=["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_estimated_activations_are_at_least_those_of_a_leaf(trainer, make_rows, model, rule, kind):
    deep = {**model, **kind, "num_hidden_layers": 4, "hidden_size": 32, "filter_size": 128}
    trainer.configure(model=deep, runconfig={"activations": rule})
    params = load_params(trainer.params)
    compiled = compile_model(params, "CSX", 1)
    compiled.train_step(to_batch(make_rows(1, seed=1)), step=1, learning_rate=0.0)
    held = compiled.wafers[0].activations.peak_bytes
    most = 12 if kind is MIXTURE else 10  # of experts, each has some of the tokens
    assert held < batches.activation_bytes(params.model, rule) < most * held


def test_a_mask_of_packed_rows_is_estimated(trainer, make_rows):
    trainer.configure(model={"num_hidden_layers": 4, "hidden_size": 32, "filter_size": 128})
    params = load_params(trainer.params)
    peaks = []
    for packed in (False, True):
        batch = to_batch(make_rows(1, seed=1))
        if packed:
            batch["attention_span"] = torch.arange(15, -1, -1)[None]
            batch["position_ids"] = torch.arange(16)[None]
        compiled = compile_model(params, "CSX", 1)
        compiled.train_step(batch, step=1, learning_rate=0.0)
        peaks.append(compiled.wafers[0].activations.peak_bytes)
    estimates = [batches.activation_bytes(params.model, packed=packed) for packed in (False, True)]
    assert estimates[1] - estimates[0] >= peaks[1] - peaks[0] > 0


def test_the_chosen_leaf_grows_with_less_to_keep(trainer):
    need = batches.activation_bytes(load_params(trainer.params).model)
    auto = {"batch_size": 120, "micro_batch_size": "auto"}

    def chosen(model: dict, **cluster: object) -> int:
        cluster = {"wafer_memory": 3 * need, "num_csx": 4, **cluster}
        path: Path = trainer.configure(train_input=auto, model=model, runconfig=cluster)
        params = load_params(path)
        return batches.micro_batch_size(params, params.train_input)

    deep = {"num_hidden_layers": 2}
    assert chosen({}) == 3
    assert chosen(BF16) == 6
    assert chosen(deep) < chosen(deep, activations="recompute")
    assert chosen(deep, activations="recompute") <= chosen(deep, activations="evict")
