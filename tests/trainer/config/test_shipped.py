"""Every shipped config is read, and says what its paper says."""

import hashlib
import math
from pathlib import Path

import pytest

from pipeline.core.order import samples_before_step
from trainer.config import load_params
from trainer.config.model_parameters import count_training_flops, parameter_count
from trainer.data import batches
from trainer.model.optimizer import learning_rate
from wafer_backend.performance_model.calibration import TOKENS, TRAINING_FLOPS

ROOT = Path(__file__).parents[3] / "configs" / "train"
ALL = sorted(path.relative_to(ROOT).with_suffix("").as_posix() for path in ROOT.rglob("*.yaml"))
FAMILY = {name: f"cerebras_gpt/{name.lower()}" for name in TOKENS}
MUP = {name: f"{path}_mup" for name, path in FAMILY.items() if name not in ("6.7B", "13B")}
BOTH = [*FAMILY.items(), *MUP.items()]
SMALL = ("tiny", "tiny_mup", "tiny_llama", "tiny_vsl", "bert_tiny", "t5_tiny", "laptop")


@pytest.mark.parametrize("name", ALL)
def test_it_is_read(name):
    params = load_params(Path(name))
    notes = [note for note in params.notes if not note.startswith("train_input.mixture: a weight")]
    assert name == "gpt3_xl" or notes == []  # nothing old, nothing without effect, no default
    schedule = params.optimizer.learning_rate
    assert params.runconfig.max_steps >= sum(rate.total_iters for rate in schedule)
    assert learning_rate(1, schedule) == 0.0


def test_all_are_there():
    others = (
        "gpt3_xl", "gpt3_xl_10k", "gptj_6b", "gpt_neox_20b", "llama2_7b", "btlm_3b", "jais_13b",
        "demo",
    )  # fmt: skip
    assert {*FAMILY.values(), *MUP.values(), *others, *SMALL} == set(ALL)


@pytest.mark.parametrize(("name", "path"), BOTH)
def test_lengths_and_sizes_of_table_1(name, path):
    params = load_params(Path(path))
    samples = samples_before_step(params.runconfig.max_steps + 1, params.train_input.schedule)
    assert samples * 2048 == pytest.approx(TOKENS[name], rel=0.02)
    count = parameter_count(params.model)
    assert samples * 2048 == pytest.approx(20 * count, rel=1e-3)
    flops = samples * count_training_flops(params.model)
    assert float(f"{flops:.1e}") == pytest.approx(TRAINING_FLOPS[name], rel=1e-9)


@pytest.mark.parametrize(("name", "path"), BOTH)
def test_learning_rates_of_table_1(name, path):
    params = load_params(Path(path))
    warm_up, decay = params.optimizer.learning_rate
    first = params.train_input.schedule[0][1]
    assert warm_up.total_iters == int(375e6 // (first * 2048))
    assert warm_up.total_iters + decay.total_iters == params.runconfig.max_steps
    assert decay.end_learning_rate == pytest.approx(warm_up.end_learning_rate / 10)
    peaks = {"111M": 6e-4, "256M": 6e-4, "6.7B": 1.2e-4, "13B": 1.2e-4}
    mup = path.endswith("_mup")
    assert warm_up.end_learning_rate == (6e-3 if mup else peaks.get(name, 2e-4))
    cosine = name in ("1.3B", "2.7B", "13B") and not mup
    assert decay.scheduler == ("CosineDecay" if cosine else "Linear")
    assert params.optimizer.eps == (1e-9 if name in ("6.7B", "13B") else 1e-8)
    assert params.optimizer.betas == (0.9, 0.95)
    assert params.model.precision == "bfloat16"


@pytest.mark.parametrize("path", FAMILY.values())
def test_initializers(path):
    model = load_params(Path(path)).model
    assert model.initializer.std == model.embedding_initializer.std == 0.02
    exact = 0.02 / math.sqrt(2 * model.num_hidden_layers)
    rounded = 0.0025 if path.endswith("/13b") else exact
    assert model.output_layer_initializer.std == pytest.approx(rounded, rel=1e-12)


@pytest.mark.parametrize("path", MUP.values())
def test_mup_of_table_14(path):
    model, plain = load_params(Path(path)).model, load_params(Path(path[: -len("_mup")])).model
    assert parameter_count(model) == parameter_count(plain)
    assert model.m_width == plain.hidden_size / 256 == model.filter_size / 1024
    assert model.output_logits_scale == pytest.approx(256 / plain.hidden_size)
    assert (model.embeddings_scale, model.initializer.std) == (10.0, 0.08)
    assert model.output_layer_initializer is None
    assert model.scale_qk_dot_by_d


def test_13b_has_the_ramp_and_the_released_file_is_told_of(tmp_path):
    file = ROOT / "cerebras_gpt" / "13b.yaml"
    params = load_params(file)
    assert params.train_input.batch_size == 720
    assert params.train_input.schedule == ((1, 720), (57_001, 1080))
    assert samples_before_step(57_001, params.train_input.schedule) * 2048 == 84_049_920_000
    text = file.read_text()
    start, end = text.index("  batch_size_schedule"), text.index("eval_input")
    text = text[:start] + "  batch_size: 1080\n" + text[end:]
    released = tmp_path / "params.yaml"
    released.write_text(text.replace("max_steps: 135237", "max_steps: 116223"))
    params = load_params(released)
    assert params.runconfig.max_steps == 116_223
    assert params.train_input.schedule == ((1, 1080),)
    (note,) = params.notes
    assert "the shape of Cerebras-GPT 13B, which the paper trained to step 135,237 with" in note
    assert (
        "this file says, and is followed: to step 116,223 with batches of 1,080 sequences" in note
    )


@pytest.mark.parametrize(
    ("name", "count", "tokens"),
    [
        ("gptj_6b", 6.05e9, None),
        ("gpt_neox_20b", 20.55e9, None),
        ("llama2_7b", 6_738_415_616, 2e12),
        ("btlm_3b", 2.65e9, 627e9),
        ("jais_13b", 13.02e9, 395e9),
        ("laptop", 7.26e6, None),
    ],
)
def test_published_sizes(name, count, tokens):
    params = load_params(Path(name))
    assert parameter_count(params.model) == pytest.approx(count, rel=2e-3)
    if tokens:
        steps, length = params.runconfig.max_steps, params.model.max_position_embeddings
        assert steps * params.train_input.batch_size * length == pytest.approx(tokens, rel=3e-3)


@pytest.mark.parametrize("name", SMALL)
def test_small_ones_have_a_dozen_leaves(name):
    params = load_params(Path(name))
    section = params.train_input
    assert section.batch_size / batches.micro_batch_size(params, section) >= 12
    assert parameter_count(params.model) < 20e6


def test_tiny_is_what_it_was():
    """Golden curves stand on it."""
    digest = hashlib.sha256((ROOT / "tiny.yaml").read_bytes()).hexdigest()
    assert digest == "901297dd3b0087ab790b98e9c154414270cd63ef99ccff17358d5c4ed40e1423"
