"""Commands of `cszoo` do what those of `train` do."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.trainer.convert.models import make, state_of
from trainer.cli import app
from trainer.commands.cszoo import translate
from trainer.convert import targets

RUNNER = CliRunner()
FLAGS = ("--compile_only", "--validate_only")


@pytest.mark.parametrize(
    ("words", "translated"),
    [
        ("fit p.yaml", "--params p.yaml"),
        ("fit --target_device GPU p.yaml", "GPU --params p.yaml"),
        ("fit -o out --target_device=CPU p.yaml", "CPU --params p.yaml -o out"),
        ("fit --compile_only p.yaml", "--params p.yaml --compile_only"),
        (
            "fit p.yaml --job_labels a=1 b=2 --num_csx 2",
            "--params p.yaml --job_labels a=1 b=2 --num_csx 2",
        ),
        (
            "validate p.yaml --checkpoint_path c --ini a=1 b=2 --num_csx=2",
            "--params p.yaml --checkpoint_path c --num_csx 2 --mode eval",
        ),
        ("validate_all p.yaml", "--params p.yaml --mode eval_all"),
        (
            "checkpoint convert --model gpt-neox --src-fmt cs-auto --tgt-fmt hf --config p.yaml "
            "d/c.mdl --no-progress-bar",
            "convert d/c.mdl --out d/c_to_hf --src-fmt mdl --tgt-fmt hf --params p.yaml "
            "--model gpt_neox",
        ),
        (
            "checkpoint convert w.bin --model gpt2 --src-fmt hf --tgt-fmt cs-current "
            "--config config.json --output-dir o --drop-unmatched-keys",
            "convert w.bin --drop-unmatched-keys --out o --src-fmt hf --tgt-fmt mdl "
            "--config config.json",
        ),
        (
            "checkpoint diff a b --tensor_comparison_op equal",
            "convert diff a b",
        ),
        ("CSX --params p.yaml --num_csx 2", "CSX --params p.yaml --num_csx 2"),
        ("convert diff a b", "convert diff a b"),
    ],
)
def test_words(words: str, translated: str) -> None:
    assert translate(words.split(), FLAGS) == translated.split()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("fit", "train fit: expected one params file; there is none"),
        ("validate a.yaml b.yaml", "train validate: expected one params file; got a.yaml, b.yaml"),
        ("checkpoint info c.mdl", "train checkpoint info: expected convert or diff"),
        ("checkpoint", "train checkpoint : expected convert or diff"),
        (
            "checkpoint diff a b --tensor_comparison_op close",
            "--tensor_comparison_op close: only equal is supported",
        ),
        ("checkpoint convert no.mdl --src-fmt cs-auto --tgt-fmt hf --config p.yaml", "no.mdl:"),
    ],
)
def test_what_cannot_be_done_is_one_line(words: str, message: str) -> None:
    result = RUNNER.invoke(app, words.split())
    assert result.exit_code in (2, 3)
    assert message in result.stderr
    assert "Traceback" not in result.output


def test_options_without_effect_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    translate(
        ["fit", "p.yaml", "--ini", "a=1", "--disable_version_check", "--debug_args_path", "f"], ()
    )
    assert capsys.readouterr().err == (
        "Without effect here: --ini, --disable_version_check, --debug_args_path\n"
    )


def test_a_fit_is_the_run_of_train_and_can_be_validated(trainer) -> None:
    line = ["--num_csx", "2", "--num_steps", "2", "--data", str(trainer.data), "--model_dir"]
    params, root = str(trainer.params), trainer.root
    for words in (
        ["CSX", "--params", params, *line, str(root / "a")],
        ["fit", params, "--target_device", "CSX", *line, str(root / "b")],
    ):
        result = RUNNER.invoke(app, words)
        assert result.exit_code == 0, result.output
    losses = [[step["loss_hex"] for step in trainer.metrics(name)] for name in ("a", "b")]
    assert losses[0] == losses[1]
    assert len(losses[0]) == 2
    result = RUNNER.invoke(app, ["validate", params, *line[4:], str(root / "b")])
    assert result.exit_code == 0, result.output
    assert "Eval" in result.output


def test_a_checkpoint_there_and_back(tmp_path: Path) -> None:
    model, config = make()
    targets.write_wafermill(tmp_path / "out", state_of(model), config)
    hf = tmp_path / "hf"
    words = ["checkpoint", "convert", str(tmp_path / "out"), "--src-fmt", "wafermill"]
    result = RUNNER.invoke(app, [*words, "--tgt-fmt", "hf", "--output-dir", str(hf)])
    assert result.exit_code == 0, result.output
    again = RUNNER.invoke(app, [*words, "--tgt-fmt", "hf"])
    assert again.exit_code == 0, again.output
    same = RUNNER.invoke(app, ["checkpoint", "diff", str(hf), str(tmp_path / "out_to_hf")])
    assert same.output == "28 tensors, 0 different, largest difference 0\n"
