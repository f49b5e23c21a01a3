"""The scripts of examples/cstorch break no rule: strictly they give the same losses, to the bit."""

from pathlib import Path
from typing import Any

import pytest

import wafer_backend
from tests.scripts import load
from tests.slow import mark_slow
from wafer_backend import backends
from wafer_backend.strict import StrictWatch

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "cstorch"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.py"))


def run(name: str, directory: Path) -> Any:
    wafer_backend.reset()
    script = load(EXAMPLES / f"{name}.py")
    if name == "r1_fc_mnist":
        words = ["CSX", "--params", EXAMPLES / "r1_fc_mnist.yaml", "--model_dir", directory]
        words += ["--num_csx", 2, "--mode", "train_and_eval"]
        loaders = script.get_train_dataloader, script.get_eval_dataloader
        return script.run(script.MNISTModel, *loaders, arguments=[str(word) for word in words])
    writes = {"out_dir": directory} if name in ("r22_gpt", "gigagpt_like") else {}
    return script.main(num_csx=2, **writes)


@pytest.mark.parametrize("name", mark_slow(NAMES, *NAMES[1::2]))
def test_an_example_passes_strictly(name: str, tmp_path: Path) -> None:
    plain = run(name, tmp_path / "plain")
    watch = StrictWatch()
    with backends.strictly(watch):
        assert run(name, tmp_path / "strict") == plain
    assert watch.steps >= 10
    assert max(graph.runs for graph in watch.graphs.values()) >= watch.steps
