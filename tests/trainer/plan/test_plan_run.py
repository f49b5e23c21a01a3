"""`train plan`: figures against the paper, rules against their statement, files that load."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError
from tests.trainer.data.conftest import write
from trainer import recipe
from trainer.cli import app
from trainer.config import load_params, model_parameters
from trainer.plan.run import plan_run
from trainer.plan.settings import PlanOptions, choose_model
from trainer.plan.size import (
    TOLERANCE,
    optimum,
    parameters_for_flops,
    ratio_for,
    shape_for,
    training_flops_per_token,
)
from trainer.recipe import FAMILY
from trainer.runs.console import parse_amount
from wafer_backend.performance_model import predict
from wafer_backend.performance_model.calibration import SHAPES, TRAINING_FLOPS

RUNNER = CliRunner()


def plan(*words: str, code: int = 0) -> str:
    """Output of `train plan` that ends with `code`; of an error what it says."""
    result = RUNNER.invoke(app, ["plan", *words])
    assert result.exit_code == code, result.output
    return result.output if code == 0 else result.stderr


def as_json(*words: str) -> dict:
    return json.loads(plan(*words, "--json"))


@pytest.mark.parametrize("name", FAMILY)
def test_the_family(name):
    planned = as_json("--params-count", name)
    model, compute = planned["model"], planned["compute"]
    assert model["parameters"] == model["shipped_parameters"] == SHAPES[name].parameters
    assert model["shipped_config"] == f"cerebras_gpt/{name.lower()}"
    assert float(f"{compute['training_flops']:.1e}") == pytest.approx(
        TRAINING_FLOPS[name], rel=0.02
    )
    assert planned["training"]["steps"] == FAMILY[name].steps
    assert planned["loss"]["predicted"] == pytest.approx(
        recipe.loss_at(TRAINING_FLOPS[name]), rel=5e-3
    )
    assert planned["notes"] == []
    shipped = as_json("--params", model["shipped_config"], "--num_csx", "16")
    assert shipped["training"] == planned["training"] | {"source": "params file"}
    assert shipped["cluster"] == planned["cluster"]


def test_keys_are_stable():
    planned = as_json("--flops", "1e19", "--inference-tokens", "1B")
    assert list(planned) == [
        "model", "training", "compute", "loss", "inference", "cluster", "disk", "data", "notes",
    ]  # fmt: skip
    assert planned["data"] is None
    assert list(planned["cluster"]) == [
        "simulated", "num_csx", "days", "seconds_per_step", "utilisation", "caveat",
    ]  # fmt: skip
    assert planned["cluster"]["simulated"] is True
    assert "absolute calibration is weak" in planned["cluster"]["caveat"]


def test_flops_are_spent():
    planned = as_json("--flops", "1e20")
    assert planned["compute"]["training_flops"] == pytest.approx(1e20, rel=0.01)
    assert planned["training"]["tokens_per_parameter"] == pytest.approx(20, rel=0.1)
    both = as_json("--flops", "1e20", "--tokens", "100B")
    assert both["compute"]["training_flops"] == pytest.approx(1e20, rel=2 * TOLERANCE)
    assert both["training"]["tokens"] == pytest.approx(100e9, rel=1e-3)
    assert both["loss"]["degradation"] > 0


def test_over_training_costs_what_equation_4_says():
    planned = as_json("--params-count", "111M", "--tokens", "475.7B")
    loss = planned["loss"]
    assert planned["training"]["tokens_per_parameter"] == pytest.approx(4284, rel=1e-3)
    assert loss["degradation"] == pytest.approx(0.166, abs=1e-3)
    assert loss["predicted"] == pytest.approx(loss["compute_optimal"] * 1.166, rel=1e-3)
    assert recipe.loss_at(loss["compute_optimal_flops"]) == pytest.approx(loss["predicted"])


def test_a_loss_outside_of_its_law_has_a_note(trainer):
    def notes(*words):
        return "\n".join(as_json(*words)["notes"])

    fitted, other = (
        "was fitted to runs of 2.6e+18 to 2.3e+22 FLOPs only",
        "a different architecture",
    )
    assert fitted in notes("--flops", "1e18") and fitted in notes("--flops", "1e23")
    assert notes("--flops", "1e19") == ""
    assert other in notes("--params", str(trainer.params))


def test_the_law_knows_no_mup():
    plain, mup = (as_json("--params-count", "256M", *more)["loss"] for more in ((), ("--mup",)))
    assert plain == mup


def test_below_20_tokens_per_parameter_equation_4_is_mirrored():
    assert recipe.degradation(20 / 3) == pytest.approx(recipe.degradation(20 * 3))


def test_simulated_days_add_up_over_the_ramp():
    cluster = as_json("--params-count", "13B", "--num_csx", "12")["cluster"]
    first, then = (predict(SHAPES["13B"], batch, 12) for batch in (720, 1080))
    seconds = 57_000 * first.seconds_per_step + 78_237 * then.seconds_per_step
    assert cluster["days"] * 86_400 == pytest.approx(seconds)
    assert "simulated time" in plan("--params-count", "13B")


@settings(max_examples=25, deadline=None)
@given(st.floats(18.5, 22), st.floats(8, 14))
def test_the_optimum_is_one(exponent, inference):
    """Never worse than 20 tokens per parameter, of the loss that was asked for, smaller for more
    inference."""
    target, tokens = recipe.loss_at(10**exponent), 10**inference
    best, more = optimum(target, tokens), optimum(target, 10 * tokens)
    plain = optimum(target, 1.0)
    assert best.training_flops == pytest.approx(
        training_flops_per_token(best.parameters) * best.tokens, rel=1e-3
    )
    assert recipe.predicted_loss(best.training_flops, best.tokens_per_parameter) == pytest.approx(
        target
    )
    assert plain.tokens_per_parameter == pytest.approx(20, rel=0.02)
    assert plain.training_flops == pytest.approx(10**exponent, rel=1e-3)
    assert best.training_flops >= plain.training_flops * (1 - 1e-9)
    assert more.parameters <= best.parameters <= plain.parameters * (1 + 1e-9)
    assert best.total_flops == best.training_flops + best.inference_flops


@given(st.floats(math.log(5.2e6), math.log(1.5e11)))
def test_shapes_keep_their_promise(logarithm):
    wanted = math.exp(logarithm)
    shape = shape_for(wanted)
    assert abs(shape.parameters / wanted - 1) <= TOLERANCE
    assert shape.width % shape.heads == 0
    assert shape.filter == 4 * shape.width
    if wanted > 2e7:
        assert shape.width / shape.layers == pytest.approx(ratio_for(wanted), rel=0.4)


@given(st.floats(17, 24))
def test_parameters_for_flops_are_inverse(exponent):
    parameters = parameters_for_flops(10**exponent)
    spent = training_flops_per_token(parameters) * 20 * parameters
    assert spent == pytest.approx(10**exponent)


@pytest.mark.parametrize("name", FAMILY)
def test_flops_per_token_of_the_family(name):
    shape = SHAPES[name]
    each = training_flops_per_token(shape.parameters) * 2048
    config = load_params(Path(f"cerebras_gpt/{name.lower()}")).model
    assert each == pytest.approx(model_parameters.count_training_flops(config))


@pytest.mark.parametrize(
    "words", [("40M",), ("400M",), ("111M", "--mup"), ("13B",), ("7B", "--mup")]
)
def test_a_written_file_is_the_plan(tmp_path, words):
    path = tmp_path / "params.yaml"
    planned = as_json("--params-count", *words, "--write", str(path))
    params = load_params(path)
    count = model_parameters.parameter_count(params.model)
    assert count == planned["model"]["parameters"]
    assert count == pytest.approx(parse_amount(words[0]), rel=TOLERANCE)
    again = as_json("--params", str(path), "--num_csx", "16")
    assert again["training"] == planned["training"] | {"source": "params file"}
    assert again["compute"] == planned["compute"]
    if "--mup" in words:
        width = params.model.hidden_size / 256
        assert params.model.output_logits_scale == pytest.approx(1 / width)
        assert params.model.embeddings_scale == 10
    refused = plan("--params-count", "40M", "--write", str(path), code=2)
    assert "this file already exists" in refused


def test_a_written_file_trains(trainer):
    path = trainer.root / "written.yaml"
    output = plan("--params-count", "55K", "--data", str(trainer.data), "--write", str(path))
    assert f"Wrote {path}" in output
    assert "epochs" in output
    params = load_params(path)
    assert (params.model.vocab_size, params.model.max_position_embeddings) == (61, 16)
    words = ["--params", str(path), "--data", str(trainer.data), "--num_steps", "1"]
    found = RUNNER.invoke(app, [*words, "--model_dir", str(trainer.root / "out")])
    assert found.exit_code == 0, found.output


def test_the_data_set_at_hand(trainer):
    planned = as_json("--params", str(trainer.params), "--data", str(trainer.data))
    data = planned["data"]
    assert (data["rows"], data["tokens"]) == (50, 800)
    assert data["epochs"] == pytest.approx(planned["training"]["samples"] / 50)
    assert planned["disk"]["data"] == data["bytes"] > 0
    assert any("2305.16264" in note for note in planned["notes"])
    other = as_json("--params", "tiny", "--data", str(trainer.data / "hdf5" / "train"))
    assert any("`train` would refuse it" in note for note in other["notes"])


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ((), "give one or two of"),
        (("--params-count", "1M", "--flops", "1e18", "--tokens", "1B"), "give one or two of"),
        (("--params", "tiny", "--tokens", "1B"), "leave out"),
        (("--params", "tiny", "--write", "x.yaml"), "tiny is already a params file"),
        (("--params-count", "many"), "expected a positive number"),
        (("--params-count", "1M"), "no shape of the paper's proportions"),
        (("--flops", "1e3"), "outside what models"),
        (("--params-count", "111M", "--num_csx", "121"), "num_csx is 121"),
        (("--params", "absent.yaml"), "absent.yaml"),
    ],
)
def test_an_error_is_one_line(words, text):
    said = plan(*words, code=2)
    assert said.startswith("error: ")
    assert text in said
    assert said.count("\n") == 1


def test_a_number_that_is_none():
    assert "expected a positive number" in plan("--tokens", "-1", code=2)
    with pytest.raises(ValueError, match="expected a positive number"):
        parse_amount("1Q")


def test_help_has_examples():
    output = plan("--help")
    assert "train plan --params-count 111M" in output


def test_a_wish_is_refused_before_a_cluster():
    with pytest.raises(ConfigError, match=r"num_csx is -1"):
        plan_run(choose_model(PlanOptions("111M"), None, None), num_csx=-1)


def test_a_corpus_has_rows_of_any_length(trainer, tmp_path):
    """Those of the params file, where data_params.json of `prep convert` names none."""
    corpus = tmp_path / "corpus"
    write(corpus, (np.arange(1000) % 61).astype(np.uint16), "corpus", vocab_size=61)
    told = json.loads((corpus / "data_params.json").read_bytes())
    del told["max_sequence_length"], told["format"]
    (corpus / "data_params.json").write_text(json.dumps(told))
    planned = as_json("--params", str(trainer.params), "--data", str(corpus))
    assert planned["data"]["rows"] == 999 // 16
    assert not any("would refuse" in note for note in planned["notes"])


def test_an_encoder_with_a_decoder_is_planned_by_the_tokens_of_both(tmp_path):
    """Its rows are others than the texts that it reads and tells."""
    rows = tmp_path / "rows"
    made = np.zeros((10, 3, 64), np.int32)
    write(rows, made, "sample", vocab_size=50257, max_sequence_length=64)
    planned = as_json("--params", "t5_tiny", "--data", str(rows))
    assert planned["model"]["decoder_num_hidden_layers"] == 2
    assert planned["training"]["tokens"] == 200 * 12 * (58 + 14)
    assert not any("would refuse" in note for note in planned["notes"])
    said = plan("--params", "t5_tiny")
    assert "2 layers and 2 of a decoder of width 32" in said
    assert "12 sequences of 72 (864 tokens)" in said


def test_no_loss_is_predicted_for_an_encoder():
    words = ("--params", "bert_tiny", "--inference-tokens", "1e9")
    planned = as_json(*words)
    assert planned["loss"] is None and planned["inference"]["optimum"] is None
    assert planned["model"]["shipped_config"] is None
    assert planned["inference"]["this"]["total_flops"] > planned["compute"]["training_flops"]
    said = plan(*words)
    assert "no loss is predicted for an encoder" in said
    assert "Pile test" not in said and "no model of the family" not in said
