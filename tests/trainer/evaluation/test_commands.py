"""The commands as a user types them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from trainer.cli import app
from trainer.evaluation.lm_eval_tasks import TASKS

from .conftest import write_tokenizer

Make = Callable[..., Path]


def train(*words: str | Path) -> Any:
    return CliRunner().invoke(app, list(map(str, words)))


@pytest.fixture
def model_dir(make_model: Make) -> Path:
    """A model directory with its tokenizer."""
    made = make_model()
    write_tokenizer(made / "tokenizer.json")
    return made


def test_a_table_by_source(run_directory: Path, model_dir: Path) -> None:
    done = train("evaluate", model_dir, "--data", run_directory)
    assert done.exit_code == 0, done.output
    title, heads, *rows = done.output.splitlines()
    assert title.startswith("step 7, validation: ")
    assert heads.split() == ["source", "labels", "loss", "perplexity", "bits/byte"]
    assert [row.split()[0] for row in rows] == ["lower", "upper", "all"]
    counts = [int(row.split()[1].replace(",", "")) for row in rows]
    assert counts[0] + counts[1] == counts[2]


def test_a_loss_is_computed_in_the_precision_of_the_model(
    run_directory: Path, make_model: Make
) -> None:
    found = []
    for changes in ({}, {"mixed_precision": True, "fp16_type": "bfloat16"}):
        done = train("evaluate", make_model(**changes), "--data", run_directory, "--json")
        assert done.exit_code == 0, done.output
        found.append(json.loads(done.output)["loss"])
    assert found[0] != found[1]
    assert found[0] == pytest.approx(found[1], rel=0.02)


def test_json_of_another_split_and_vocabulary(run_directory: Path, model_dir: Path) -> None:
    done = train(
        "evaluate", model_dir / "checkpoints" / "step_0000007", "--data", run_directory,
        "--split", "test", "--json", "--reference-tokenizer", "gpt2", "--eval_steps", "1",
        "--batch_size", "3",
    )  # fmt: skip
    assert done.exit_code == 0, done.output
    found = json.loads(done.output)
    assert (found["step"], found["split"], found["samples"]) == (7, "test", 3)
    ratio = found["n_counted"] / found["reference_tokens"]
    assert found["loss_per_reference_token"] == pytest.approx(found["loss"] * ratio)
    parts = found["per_source"].values()
    assert sum(part["reference_tokens"] for part in parts) == found["reference_tokens"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--data", "RUN", "--split", "dev"], 2, "has test, train, validation"),
        (
            ["--data", "elsewhere"],
            3,
            "no such directory; expected a prep run directory with hdf5/ inside",
        ),
    ],
)
def test_data_that_is_not_there(
    words: list[str], code: int, message: str, run_directory: Path, model_dir: Path
) -> None:
    done = train("evaluate", model_dir, *(str(run_directory) if w == "RUN" else w for w in words))
    assert done.exit_code == code
    assert message in done.output


def test_generate(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.txt").write_bytes(b"abab\x1b[2J\n")
    words = ["generate", "--model_dir", model_dir, "--max-new-tokens", "9", "--seed", "3"]
    done = train(*words, "--prompt-file", tmp_path / "prompt.txt")
    assert done.exit_code == 0, done.output
    assert done.output.startswith("abab\\x1b[2J")
    assert "\x1b" not in done.output
    found = json.loads(train(*words, "--prompt", "abab\x1b[2J", "--json").output)
    assert found["prompt"] == "abab\x1b[2J" and found["step"] == 7
    again = train(*words, "--prompt-file", tmp_path / "prompt.txt")
    assert again.output == done.output
    assert len(found["ids"]) <= 9


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["generate", "--model_dir", "MODEL"], 2, "give --prompt TEXT or --prompt-file FILE"),
        (["generate", "--prompt", "a"], 2, "give --model_dir DIR or --checkpoint DIR"),
        (["generate", "--model_dir", "MODEL", "--prompt", "a", "--top-p", "2"], 2, "--top-p 2.0"),
        (
            ["generate", "--model_dir", "MODEL", "--prompt-file", "no.txt"],
            3,
            "--prompt-file no.txt",
        ),
        (["lm-eval", "--model_dir", "MODEL", "--data-dir", "x", "--tasks", "mmlu"], 2, "hellaswag"),
        (["lm-eval", "--model_dir", "MODEL", "--data-dir", "x"], 3, "x/hellaswag/validation.jsonl"),
        (["lm-eval", "--model_dir", "MODEL", "--data-dir", "x", "--tasks", ","], 2, "hellaswag"),
        (["crows-pairs", "--model_dir", "MODEL", "--data-file", "no.csv"], 3, "no.csv: cannot be"),
    ],
)
def test_mistakes_are_one_line(words: list[str], code: int, message: str, model_dir: Path) -> None:
    done = train(*(str(model_dir) if word == "MODEL" else word for word in words))
    assert done.exit_code == code, done.output
    assert message in done.output
    assert done.output.count("\n") == 1


def test_crows_pairs(model_dir: Path, tmp_path: Path) -> None:
    rows = ['"more","less, of it",stereo,age', "ab,cd,stereo,religion"]
    path = tmp_path / "pairs.csv"
    path.write_text("\n".join(["sent_more,sent_less,stereo_antistereo,bias_type", *rows]) + "\n")
    words = ["crows-pairs", "--model_dir", model_dir, "--data-file", path]
    done = train(*words)
    assert done.exit_code == 0, done.output
    heads, *lines = done.output.splitlines()
    assert heads.split() == ["pairs", "stereotyped", "difference"]
    assert [line.split()[:2] for line in lines] == [["all", "2"], ["age", "1"], ["religion", "1"]]
    found = json.loads(train(*words, "--json", "--limit", "1").output)
    assert found["results"]["all"]["pairs"] == 1
    assert found["results"]["all"]["stereotyped"] in (0.0, 100.0)


def test_the_seven_tasks() -> None:
    assert len(TASKS) == 7
