"""Every shipped sweep is planned; the tiny one is run; the proxy is the paper's."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from trainer.cli import app
from trainer.config.model_parameters import parameter_count
from trainer.sweep.plan import plan_sweep
from trainer.sweep.results import read_results

ROOT = Path(__file__).parents[3] / "configs" / "sweep"
ALL = sorted(path.stem for path in ROOT.glob("*.yaml"))


@pytest.mark.parametrize("name", ALL)
def test_it_is_planned(name):
    planned = plan_sweep(Path(name), Path("anything"))
    assert planned.variants
    assert planned.base.params.notes == ()


def test_the_proxy_is_the_papers():
    planned = plan_sweep(Path("mup_proxy"), Path("anything"))
    params = planned.base.params
    model, batch = params.model, params.train_input.batch_size * 2048
    assert (model.hidden_size, model.num_hidden_layers, model.head_size) == (256, 32, 128)
    assert (model.mup_base_hidden_size, model.m_width) == (256, 1.0)
    assert parameter_count(model) == pytest.approx(40e6, rel=0.05)
    assert batch == 131072
    assert planned.steps * batch == pytest.approx(600e6, rel=1e-3)
    assert len(planned.variants) == 200
    assert sum(r.total_iters for r in params.optimizer.learning_rate) == planned.steps
    for name, found in (
        ("learning_rate", 6e-3),
        ("initializer_std", 0.08),
        ("embeddings_scale", 10),
    ):
        low, high = planned.config.parameters[name].log_uniform
        assert low < found < high


@pytest.mark.slow
def test_the_tiny_one_runs(trainer, make_split, in_process):
    import numpy as np

    data = trainer.root / "shipped"
    for split, seed in (("train", 1), ("validation", 2)):
        tokens = np.random.default_rng(seed).integers(0, 50257, (64, 65))
        mask = np.ones((64, 64))
        rows = np.stack([tokens[:, :-1], mask, tokens[:, 1:]], axis=1).astype(np.int32)
        make_split(data / "hdf5" / split, rows, vocab_size=50257)
    out = trainer.root / "sweep"
    result = CliRunner().invoke(app, ["sweep", "tiny", "--out", str(out), "--data", str(data)])
    assert result.exit_code == 0, result.output
    assert len(read_results(out)) == 4
