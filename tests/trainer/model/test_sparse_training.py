"""Section `sparsity` in a run: masks in weights, checkpoints and exports; resumed to the bit."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from trainer.cli import app
from trainer.config import load_params
from trainer.convert.conversion import CheckpointConvertOptions as Conversion
from trainer.convert.conversion import convert_checkpoint
from trainer.loop.sparsity import speedup
from trainer.plan import run
from trainer.runs import checkpoint
from wafer_backend.sparse import configure, simulated_speedup
from wafer_backend.sparse.masks import unpack_mask

RIGL = {"algorithm": "rigl", "sparsity": 0.75, "update": {"freq": 2, "stop": 6}}
SET = {"algorithm": "set", "sparsity": 0.5, "update": {"steps": [2, 3, 5]}}
GMP = {
    "algorithm": "gmp",
    "sparsity": {"type": "linear", "init": 0.1, "slope": 0.1},
    "update": {"freq": 2},
    "init_method": "topk",
}
STATIC = {"sparsity": 0.25}
MATRICES = ("attention.qkv", "attention.output", "feed_forward.input", "feed_forward.output")
GROUPS = [
    {**RIGL, "balance_out_groups": 4, "param_filter": "*qkv.weight"},
    {**SET, "param_filter": "*proj_output_dense_layer.weight"},
    {**GMP, "param_filter": "*ffn.0.linear_layer.weight"},
    {**STATIC, "param_filter": "*ffn.1.linear_layer.weight"},
]


def sparse(trainer: Any, sparsity: Any, name: str = "sparse.yaml", **sections: Any) -> Path:
    """A params file of the fixture with a section `sparsity`."""
    path = trainer.configure(name, **sections)
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), "sparsity": sparsity}))
    return path


def saved(trainer: Any, out: str) -> checkpoint.Checkpoint:
    return checkpoint.open_checkpoint(checkpoint.find_newest(trainer.root / out))


def masks(trainer: Any, out: str) -> dict[str, torch.Tensor]:
    """Masks of the newest checkpoint by parameter name, true where a weight is kept."""
    found = saved(trainer, out)
    weights, packed = checkpoint.read_weights(found), checkpoint.read_masks(found)
    return {name: unpack_mask(bits, weights[name].shape) for name, bits in packed.items()}


def assert_masked(trainer: Any, out: str) -> None:
    """Pruned weights and their moments are zeros, all others of them are not."""
    found = saved(trainer, out)
    weights, state = checkpoint.read_weights(found), checkpoint.read_optimizer(found)
    for name, mask in masks(trainer, out).items():
        assert not weights[name][~mask].any()
        assert not state[name]["exp_avg"][~mask].any()
        assert weights[name][mask].all()


@pytest.mark.parametrize("groups", [[RIGL], GROUPS], ids=["rigl", "four"])
def test_a_stopped_run_goes_on_to_the_same_bits(trainer, groups):
    """Between updates of the masks, on other numbers of systems, over a simulated network."""
    params = sparse(trainer, groups)
    trainer.train("whole", params=params, num_csx=1)
    for steps, num_csx, transport in ((3, 3, "inline"), (4, 2, "simulated"), (6, 4, "inline")):
        trainer.train("out", params=params, num_steps=steps, num_csx=num_csx, transport=transport)
    assert trainer.bits("out") == trainer.bits("whole")
    assert_masked(trainer, "out")
    counted = saved(trainer, "out").state["sparsity_state"]
    assert [group["step"] for group in counted] == [6] * len(groups)
    assert counted[0]["updates"] == 2
    trainer.train("resident", params=params, target="CPU", num_csx=1)
    assert trainer.bits("resident") == trainer.bits("whole")


@pytest.mark.crash
def test_a_killed_run_goes_on_to_the_same_bits(trainer):
    params = sparse(trainer, GROUPS)
    trainer.train_forked("whole", params=params)
    kill = "storage.publish.renamed@12=kill"
    assert trainer.train_forked("out", kill, params=params) == -signal.SIGKILL
    assert trainer.train_forked("out", params=params, num_csx=3) == 0
    assert trainer.bits("out") == trainer.bits("whole")


def test_half_precision_resumes_too(trainer):
    model = {"mixed_precision": True, "fp16_type": "float16"}
    scale = {"loss_scaling_factor": "dynamic", "optimizer_type": "Lion"}
    params = sparse(trainer, [SET], model=model, optimizer=scale)
    text = yaml.safe_load(params.read_text())
    text["optimizer"]["learning_rate"] = 0.001
    params.write_text(yaml.safe_dump(text))
    trainer.train("whole", params=params)
    trainer.train("out", params=params, num_steps=3)
    trainer.train("out", params=params, num_csx=4)
    assert trainer.bits("out") == trainer.bits("whole")


def test_masks_move_and_counts_are_exact(trainer):
    params = sparse(trainer, GROUPS)
    trainer.train("early", params=params, num_steps=1)
    trainer.train("late", params=params)
    early, late = masks(trainer, "early"), masks(trainer, "late")
    names = [f"blocks.0.{name}.weight" for name in MATRICES]
    assert sorted(late) == sorted(names)
    shares = [float((~late[name]).float().mean()) for name in names]
    assert shares == pytest.approx([0.75, 0.5, 0.7, 0.25], abs=1e-3)
    moved = [not torch.equal(early[name], late[name]) for name in names]
    assert moved == [True, True, True, False]
    lines = trainer.metrics("late")
    keys = ["0.rigl", "1.set", "2.gmp", "3.static"]
    assert [list(line["sparsity"]) for line in lines] == [keys] * 6
    assert [line["sparsity"]["2.gmp"] for line in lines] == pytest.approx(
        [0.1, 0.3, 0.3, 0.5, 0.5, 0.7], abs=2e-3
    )


def test_levels_are_measured_at_logged_steps_only(trainer):
    trainer.train("out", params=sparse(trainer, [RIGL], runconfig={"log_steps": 4}))
    assert [m["step"] for m in trainer.metrics("out") if "sparsity" in m] == [1, 4]


def test_zeros_stay_zeros_in_an_export(trainer):
    model = {"position_embedding_type": "learned", "nonlinearity": "gelu"}
    trainer.train("out", params=sparse(trainer, [RIGL], model=model), num_steps=3)
    out = trainer.root / "hf"
    convert_checkpoint(
        Conversion(checkpoint=saved(trainer, "out").path, source="wafermill", target="hf", out=out),
        trainer.said.append,
    )
    exported = load_file(out / "model.safetensors")
    for ours, theirs in (("attention.qkv", "attn.c_attn"), ("feed_forward.output", "mlp.c_proj")):
        mask = masks(trainer, "out")[f"blocks.0.{ours}.weight"]
        weight = next(t for n, t in exported.items() if n.endswith(f"h.0.{theirs}.weight"))
        assert torch.equal(weight.T != 0, mask)


def test_another_sparsity_is_another_run(trainer):
    trainer.train("out", params=sparse(trainer, [RIGL]), num_steps=2)
    other = sparse(trainer, [{**RIGL, "sparsity": 0.5}], "other.yaml")
    with pytest.raises(ConfigError, match=r"sparsity\.0\.sparsity\.value was 0\.75, now 0\.5"):
        trainer.train("out", params=other)
    with pytest.raises(ConfigError, match=r"sparsity\.0\.algorithm was 'rigl', now None"):
        trainer.train("out")
    with pytest.raises(ConfigError, match=r"sparsity\.0\.algorithm was 'rigl', now None"):
        trainer.train("elsewhere", checkpoint_path=saved(trainer, "out").path)
    trainer.train("dense", num_steps=2)
    with pytest.raises(ConfigError, match=r"sparsity\.0\.algorithm was None, now 'rigl'"):
        trainer.train("dense", params=sparse(trainer, [RIGL]))


def test_weights_of_another_run_under_new_masks(trainer):
    """Dense to sparse: the first masks are of the loaded weights; sparse to dense: all train."""
    trainer.train("dense", num_steps=2)
    start = {"load_checkpoint_states": "model"}
    params = sparse(trainer, {**STATIC, "init_method": "topk"})
    dense = saved(trainer, "dense").path
    trainer.train("sparse", params=params, checkpoint_path=dense, num_steps=1, **start)
    assert (
        "Sparsity: 512 of 2,048 weights of sparse matrices are pruned; the first masks of this "
        "run are applied to the loaded weights"
    ) in trainer.said
    weights = checkpoint.read_weights(checkpoint.open_checkpoint(dense))
    for name, mask in masks(trainer, "sparse").items():
        size = weights[name].abs()
        assert size[mask].min() >= size[~mask].max()
    assert_masked(trainer, "sparse")
    trainer.said.clear()
    sparse_path = saved(trainer, "sparse").path
    trainer.train("again", checkpoint_path=sparse_path, num_steps=3, **start)
    assert any("pruned weights start as zeros and are trained" in s for s in trainer.said)
    assert masks(trainer, "again") == {}
    name = "blocks.0.attention.qkv.weight"
    assert checkpoint.read_weights(saved(trainer, "again"))[name].all()
    kept = sparse(trainer, {**STATIC, "init_method": "from_zeros"}, "kept.yaml")
    trainer.train("kept", params=kept, checkpoint_path=sparse_path, num_steps=1, **start)
    before, after = masks(trainer, "sparse"), masks(trainer, "kept")
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_plan_says_what_is_simulated(trainer):
    params = sparse(trainer, GROUPS)
    said: list[str] = []
    run.compile_only(trainer.request("out", params=params), said.append)
    lines = [line for line in said if line.startswith("sparsity: ")]
    assert lines[0].startswith("sparsity: rigl, 75.0% of 1 matrices at step 0 (blocks.*.attention")
    assert all("FLOPs, memory and times are those of dense weights" in line for line in lines)
    assert any(line.startswith("simulated speed-up: at most") for line in said)


def test_a_predicted_loss_is_that_of_dense_weights(trainer):
    found = []
    for params in (sparse(trainer, GROUPS), trainer.configure("dense.yaml")):
        ended = CliRunner().invoke(app, ["plan", "--params", str(params), "--json"])
        assert ended.exit_code == 0, ended.output
        found.append(json.loads(ended.output))
    pruned, dense = found
    assert pruned["loss"] == dense["loss"] and pruned["compute"] == dense["compute"]
    assert any("the predicted loss is that of dense models" in note for note in pruned["notes"])


def test_the_simulated_bound_is_that_of_the_backend():
    from trainer.config import ModelConfig
    from trainer.config.sparsity import StaticConfig
    from trainer.config.sparsity_names import resolve_groups
    from trainer.model import GPT

    for tied in (True, False):
        model = ModelConfig(
            vocab_size=13, max_position_embeddings=8, hidden_size=16, num_hidden_layers=2,
            num_heads=2, filter_size=24, share_embedding_weights=tied,
        )  # fmt: skip
        groups = resolve_groups((StaticConfig(sparsity=0.5),), model)
        gpt = GPT(model, 1)
        gpt.apply(configure({"sparsity": 0.5, "param_filter": list(groups[0].param_filter)}))
        assert speedup(groups, model) == simulated_speedup(gpt)


def test_the_run_s_seed_chooses_masks_unless_one_is_given(trainer):
    params = sparse(trainer, STATIC)
    own = sparse(trainer, {**STATIC, "seed": 7}, "own.yaml")
    for out, path, seed in (("a", params, 5), ("b", params, 6), ("c", own, 5), ("d", own, 6)):
        trainer.train(out, params=path, seed=seed, num_steps=1)
    name = "blocks.0.attention.qkv.weight"
    a, b, c, d = (masks(trainer, out)[name] for out in "abcd")
    assert not torch.equal(a, b)
    assert torch.equal(c, d)
    assert load_params(own).sparsity[0].seed == 7
