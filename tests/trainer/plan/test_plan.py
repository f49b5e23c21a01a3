"""--compile_only and --validate_only: a 13B model on 16 and 64 systems, without data or memory."""

import tracemalloc
from pathlib import Path

import pytest
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from trainer.cli import app
from trainer.config import load_params, model_parameters
from trainer.data import to_batch
from trainer.loop import run as trainer_run
from trainer.plan import run
from trainer.recipe import samples_in
from wafer_backend.performance_model.calibration import SHAPES

RUNNER = CliRunner()
CONFIGS = Path(__file__).parents[3] / "configs" / "train"
LARGE = CONFIGS / "cerebras_gpt" / "13b.yaml"


def lines(output: str) -> dict[str, str]:
    """Lines of the form `name: value`."""
    return dict(line.split(": ", 1) for line in output.splitlines() if ": " in line)


@pytest.mark.parametrize("systems", [16, 64])
def test_the_plan_of_13b(systems, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WAFERMILL_JOBS", str(tmp_path / "jobs"))
    words = ["CSX", "--params", str(LARGE), "--compile_only", "--num_csx", str(systems)]
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 0, result.output
    found = lines(result.output)
    assert found["parameters"] == "12,853,386,240"
    assert found["FLOPs per sequence"] == "1.806e+14, per step: 1.951e+17"
    assert found["batch from step 57,001"] == "1,080 sequences, 2,211,840 tokens"
    assert found["steps"] == "135,237, 257,097,646,080 tokens"
    assert found["leaves"].startswith("540 leaves of 2 sequences; per CS-2: ")
    assert found["MemoryX"].startswith("154.2 GB (weights 51.4 GB, optimizer 102.8 GB)")
    assert f"on {systems} CS-2" in found["simulated step time"]
    tail = result.output.split("CS-2 systems (bf16")[1].splitlines()[1:]
    assert all(line.startswith("simulated ") for line in tail)
    assert list(tmp_path.iterdir()) == []  # nothing is written, no job is listed


def test_the_config_is_the_papers_13b():
    params = load_params(LARGE)
    assert (
        model_parameters.gpt_shape(params.model) == SHAPES["13B"] == run.on_meta(params).gpt_shape
    )
    assert model_parameters.parameter_count(params.model) == 12_853_386_240
    assert params.model.precision == "bfloat16"
    schedulers = params.optimizer.learning_rate
    assert sum(scheduler.total_iters for scheduler in schedulers) == params.runconfig.max_steps
    tokens = samples_in(params.runconfig.max_steps, params.train_input.schedule) * 2048
    assert round(tokens / 1e9, 1) == 257.1


def test_the_model_is_built_without_memory():
    tracemalloc.start()
    try:
        module = run.on_meta(load_params(LARGE))
        assert tracemalloc.get_traced_memory()[1] < 100e6
    finally:
        tracemalloc.stop()
    assert all(parameter.device.type == "meta" for parameter in module.parameters())


def test_the_plan_of_a_model_of_ones_own(trainer):
    trainer.configure(train_input={"batch_size": 12, "micro_batch_size": 1})
    assert run.compile_only(trainer.request("out", data=None), trainer.said.append) == 0
    found = lines("\n".join(trainer.said))
    model = load_params(trainer.params).model
    assert found["parameters"] == f"{model_parameters.parameter_count(model):,}"
    each = model_parameters.count_training_flops(model)
    assert found["FLOPs per sequence"] == f"{each:.4g}, per step: {12 * each:.4g}"
    assert found["training FLOPs"] == f"{6 * 12 * each:.4g}"
    assert "12 leaves of 1 sequence; per CS-2: 6 on 2 CS-2" in found["leaves"]
    assert not (trainer.root / "out").exists()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("rule", ["keep", "recompute"])
def test_planned_bytes_are_those_of_a_leaf(trainer, make_rows, precision, rule):
    trainer.configure(
        train_input={"batch_size": 1},
        model={"mixed_precision": precision != "float32", "fp16_type": "bfloat16"},
        runconfig={"activations": rule},
    )
    params = load_params(trainer.params)
    compiled = trainer_run.compile_model(params, "CSX", 1)
    batch = to_batch(make_rows(1, seed=1))
    compiled.train_step(batch, step=1, learning_rate=0.0)
    down, up = run.streamed_bytes(params, run.on_meta(params))
    traffic = compiled.transport.traffic
    assert traffic.gradient_bytes == up
    embeddings = down - 2 * up if rule == "recompute" else up  # backward needs no embedding table
    assert down - embeddings <= traffic.weight_bytes <= down


@pytest.mark.parametrize("option", ["--compile_only", "--validate_only"])
def test_a_cluster_that_cannot_work_is_refused(trainer, option):
    words = ["--params", str(trainer.params), "--num_csx", "9", "--num_steps", "1", option]
    result = RUNNER.invoke(app, words)
    assert result.exit_code == 2
    assert "num_csx = 9 but the global batch has only 4 leaves" in result.stderr


def test_validate_only(trainer):
    words = ["--params", str(trainer.params), "--num_csx", "2", "--num_steps", "1"]
    result = RUNNER.invoke(app, [*words, "--validate_only"])
    assert result.exit_code == 0, result.output
    note, *_, last = result.output.splitlines()
    assert note.startswith("optimizer.eps: not given, so 1e-08")
    assert last.startswith(f"Valid: {trainer.params}, ")
    assert "4 leaves of 2 sequences, 2 CS-2" in result.output


@pytest.mark.parametrize("path", sorted(CONFIGS.rglob("*.yaml")), ids=lambda path: path.stem)
def test_every_shipped_config_is_valid(path):
    result = RUNNER.invoke(app, ["--params", str(path), "--validate_only"])
    assert result.exit_code == 0, result.output


def test_a_shipped_config_of_a_family_has_a_name():
    assert load_params(Path("cerebras_gpt/13b")).model.hidden_size == 5120
    with pytest.raises(ConfigError, match=r"name of a shipped config: .*cerebras_gpt/13b, .*tiny"):
        load_params(Path("cerebras_gpt/13"))
