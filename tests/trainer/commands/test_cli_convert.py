"""The `train convert` commands as a user types them."""

import re
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from tests.trainer.convert.models import make, state_of
from trainer.cli import app
from trainer.commands.convert import ModelName
from trainer.convert import targets

ROOT = Path(__file__).resolve().parents[3]


def run(*words: str | Path):
    return CliRunner().invoke(app, ["convert", *map(str, words)])


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    model, config = make()
    targets.write_wafermill(tmp_path / "out", state_of(model), config)
    return tmp_path / "out"


def test_export_and_compare(trained: Path, tmp_path: Path):
    hf, again = tmp_path / "hf", tmp_path / "again"
    for out in (hf, again):
        done = run(trained, "--src-fmt", "wafermill", "--tgt-fmt", "hf", "--out", out)
        assert done.exit_code == 0, done.output
    assert "28 tensors" in done.output
    same = run("diff", hf, again)
    assert same.exit_code == 0
    assert same.output == "28 tensors, 0 different, largest difference 0\n"


def test_a_difference_exits_1(trained: Path, tmp_path: Path):
    model, config = make(num_hidden_layers=1)
    targets.write_wafermill(tmp_path / "other", state_of(model), config)
    done = run("diff", trained, tmp_path / "other")
    assert done.exit_code == 1
    assert "blocks.1.attention_norm.weight: only in the left" in done.output


@pytest.mark.parametrize("size", ["0", "5 potatoes", "-1"])
def test_a_shard_size_is_bytes(size: str, trained: Path, tmp_path: Path):
    done = run(
        trained, "--src-fmt", "wafermill", "--tgt-fmt", "hf", "--out", tmp_path / "x",
        "--hf-shard-size", size,
    )  # fmt: skip
    assert done.exit_code == 2
    assert f"error: --hf-shard-size {size}: expected" in done.output


def test_the_list_names_every_family_and_how_well_it_is_checked():
    done = run("--list")
    assert done.exit_code == 0
    kinds = "LMHeadModel|ForCausalLM|ForMaskedLM|ForConditionalGeneration"
    found = dict(re.findall(rf"^  (\w+) +\w+(?:{kinds}) +(.*)$", done.output, re.M))
    assert sorted(found) == sorted(get_args(ModelName))
    assert found.pop("btlm") == found.pop("jais") == "key list only"
    assert set(found.values()) == {"logits, both ways"}


def test_an_error_is_one_line_with_its_exit_code(tmp_path: Path):
    done = run(tmp_path / "none", "--src-fmt", "hf", "--tgt-fmt", "mdl", "--out", tmp_path / "x")
    assert done.exit_code == 2
    assert done.output == f"error: {tmp_path / 'none'}: there is no such file or directory\n"


def test_every_option_stands_on_the_page():
    page = (ROOT / "docs" / "convert_checkpoints.md").read_text()
    shown = run("--help").output
    options = set(re.findall(r"--[a-z][a-z_-]+", shown)) - {"--help", "--tolerance"}
    assert len(options) > 8
    assert options <= set(re.findall(r"--[a-z][a-z_-]+", page))
