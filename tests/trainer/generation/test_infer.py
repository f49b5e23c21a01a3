"""`--mode infer`: prompts in, one line of continuation for each out."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import yaml
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError, InputError, PrepError
from pipeline.hdf5.read import open_dataset
from pipeline.tokenizers.definition import load_definition
from tests.trainer.evaluation.conftest import MSL, _one_thread, make_model, run_directory, tiny
from trainer import errors
from trainer.cli import app
from trainer.config import load_params
from trainer.generation.loaded import find_checkpoint, load_model
from trainer.generation.text import GenerationOptions, Sampling, encode_text, generate_text
from trainer.loop import run as trainer_run

__all__ = ["_one_thread", "make_model", "run_directory"]

PROMPTS = ["abc", "", "CDa" * 4, "é d", "b", "dcba"]
START = 5000
"""An id that no vocabulary here has."""
Section = dict[str, Any]


@dataclass
class Infer:
    """Runs `--mode infer` on a tiny model of step 7."""

    root: Path
    model: Path
    run: Path

    def params(self, section: Section | None, **of_model: Any) -> Path:
        value = {
            "train_input": {"batch_size": 1},
            "inference_input": section,
            "model": {**tiny().model_dump(mode="json"), **of_model},
            "optimizer": {"learning_rate": 0.1},
        }
        if section is None:
            del value["inference_input"]
        path = self.root / "params.yaml"
        path.write_text(yaml.safe_dump(value, sort_keys=False))
        return path

    def __call__(self, params: Path, **changes: Any) -> list[dict[str, Any]]:
        """The lines of the predictions."""
        said: list[str] = []
        wish = {"target": "CPU", "model_dir": self.model, "data": self.run, **changes}
        request = trainer_run.TrainOptions(params=params, mode="infer", **wish)
        assert trainer_run.run_training(request, said.append) == 0
        self.said = "\n".join(said)
        text = (wish["model_dir"] / "predictions" / "step_0000007.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]

    def prompts(self, name: str = "prompts.jsonl") -> Path:
        if name.endswith(".jsonl"):
            lines = [json.dumps({"prompt": prompt, "id": 1}) for prompt in PROMPTS]
        else:
            lines = PROMPTS
        (self.root / name).write_text("\n".join(lines) + "\n")
        return Path(name)


@pytest.fixture
def infer(tmp_path: Path, make_model: Callable[..., Path], run_directory: Path) -> Infer:
    return Infer(tmp_path, make_model(), run_directory)


def expected(infer: Infer, prompt: str, count: int) -> tuple[str, list[int], str]:
    """What `train generate` writes, greedily."""
    loaded = load_model(find_checkpoint(infer.model))
    wish = GenerationOptions(count, Sampling(temperature=0.0))
    made = generate_text(loaded, load_definition(infer.run), prompt, wish)
    return made.text, list(made.ids), {"length": "max_tokens"}.get(made.ended, made.ended)


def test_prompts_of_a_file(infer: Infer) -> None:
    section = {"data_dir": str(infer.prompts()), "batch_size": 4, "max_tokens": 6}
    lines = infer(infer.params(section))
    assert [line["prompt"] for line in lines] == PROMPTS
    assert [(line["file"], line["line"]) for line in lines] == [
        ("prompts.jsonl", n) for n in range(1, 7)
    ]
    for line in lines:
        made = line["continuation"], line["tokens"], line["ended"]
        assert made == expected(infer, line["prompt"], 6)
    assert "| Infer Device=CPU, Step=2, Prompts=6 of 6, Rate=" in infer.said
    assert "step_0000007.jsonl: 36 tokens; ended by max_tokens 6" in infer.said
    assert "Processed 6 inference sample(s) in " in infer.said


def test_equal_bytes_in_batches_of_any_size_and_up_to_the_msl(infer: Infer) -> None:
    path = infer.prompts("prompts.txt")
    predictions = infer.model / "predictions" / "step_0000007.jsonl"
    found = []
    for size in (1, 3, 3, 100):
        lines = infer(infer.params({"data_dir": str(path), "batch_size": size}))
        found.append(predictions.read_bytes())
    assert len(set(found)) == 1
    assert [line["line"] for line in lines] == [1, 3, 4, 5, 6]  # the second line is empty
    for line in lines:
        tokens = len(encode_text(load_definition(infer.run), line["prompt"])) + len(line["tokens"])
        assert (line["ended"] == "msl") == (tokens == MSL)


def test_rows_of_a_run(infer: Infer) -> None:
    """The first MSL - max_tokens tokens of a row, or of its first document in VSL."""
    dataset = open_dataset(infer.run / "hdf5" / "validation")
    data = dataset.read(np.arange(dataset.rows))
    lines = infer(infer.params({"max_tokens": 4}))
    assert len(lines) == dataset.rows > 1
    tokenizer, loaded = load_definition(infer.run), load_model(find_checkpoint(infer.model))
    for row_CS, line in zip(data, lines, strict=True):
        count = min(MSL - 4, row_CS[3, 0] + 1 if len(row_CS) == 5 else row_CS[1].sum())
        prompt = row_CS[0, :count].tolist()
        logits = loaded.model.logits(torch.tensor([prompt]))[0, -1, :259]
        first = int(logits.argmax())
        assert line["tokens"][:1] == ([] if first == tokenizer.eos_id else [first])
        assert (dataset.directory / line["file"]).is_file()
    assert [line["row"] for line in lines[:2]] == [0, 1]


def write_rows(infer: Infer, *prompts: list[int]) -> Path:
    """A directory as Model Zoo's inference reads it: (N, S) ids, `start_token` behind prompts."""
    rows = np.full((len(prompts), MSL), START, np.int32)
    for row, prompt in enumerate(prompts):
        rows[row, : len(prompt)] = prompt
    (infer.root / "rows").mkdir()
    with h5py.File(infer.root / "rows" / "data.h5", "w") as file:
        file["data"] = rows
    return Path("rows")


def test_rows_and_keys_as_model_zoo_has_them(infer: Infer) -> None:
    tokenizer = load_definition(infer.run)
    ids = encode_text(tokenizer, "abc")
    section = {
        "data_processor": "GptHDF5MapDataProcessor",
        "data_dir": str(write_rows(infer, ids, [], [7])),
        "batch_size": 2,
        "num_workers": 0,
        "max_sequence_length": MSL,
    }
    _, made, _ = expected(infer, "abc", 5)
    zoo = {"start_token": START, "stop_sequences": [made[:3]], "max_tokens": 5, "loop_dim": 1}
    lines = infer(infer.params(section, **zoo))
    assert [line["row"] for line in lines] == [0, 1, 2]
    assert (lines[0]["tokens"], lines[0]["ended"]) == ([], "stop")
    assert lines[1]["prompt"] == "" and lines[1]["tokens"] == expected(infer, "", 5)[1]
    assert "inference_input.num_workers, model.loop_dim" in infer.said


def test_another_checkpoint_into_another_directory(infer: Infer) -> None:
    params = infer.params({"data_dir": str(infer.prompts()), "max_tokens": 2})
    given = infer.model / "checkpoints" / "step_0000007"
    assert len(infer(params, model_dir=infer.root / "new", checkpoint_path=given)) == 6
    with pytest.raises(InputError, match=r"none: no checkpoint to infer with; give --checkpoint_"):
        infer(params, model_dir=infer.root / "none")
    assert not (infer.root / "none").exists()


def test_one_process_whatever_the_cluster(infer: Infer) -> None:
    params = infer.params({"data_dir": str(infer.prompts()), "max_tokens": 3})
    plain = infer(params)
    value = yaml.safe_load(params.read_text())
    cluster = {"runconfig": {"transport": "distributed", "num_csx": 3}}
    params.write_text(yaml.safe_dump({**value, "train_input": {"batch_size": 8}, **cluster}))
    assert infer(params, target="CSX") == plain


@pytest.mark.parametrize(
    ("section", "of_model", "message"),
    [
        (None, {}, r"no room for a continuation; set inference_input.max_tokens to less than"),
        ({"max_tokens": MSL}, {}, "its rows have no room for a continuation"),
        ({"data_dir": "gone.txt"}, {}, "gone.txt: cannot be read as UTF-8 text"),
        ({"data_dir": "gone"}, {}, r"gone: no prompts: expected a .jsonl or .txt file, or a"),
        ({"data_dir": "empty.txt"}, {}, "empty.txt: no prompts"),
        ({"data_dir": "bad.jsonl"}, {}, "bad.jsonl, line 2: not JSON"),
        ({"data_dir": "list.jsonl"}, {}, r'list.jsonl, line 1: expected an object such as \{"prom'),
        ({"data_dir": "half.jsonl"}, {}, "half.jsonl, line 1: expected an object"),
        ({"data_dir": "long.txt"}, {}, "long.txt, line 1: the prompt has 32 tokens, but the"),
        ({"data_dir": "rows"}, {}, "data.h5: it is not known where prompts end"),
        ({"data_dir": "rows"}, {"start_token": 6}, "data.h5, row 0: no start_token 6 after the"),
        ({"data_dir": "rows", "start_token": 3}, {}, r"row 0: expected token ids from 0 to 258, .*"
         r"found 5,000 to 5,000"),
        ({"data_dir": "rows", "start_token": 6}, {"start_token": 6}, "params.yaml:.*: model.start"),
        ({"data_dir": "rows", "max_tokns": 6}, {}, "did you mean 'max_tokens'"),
        ({"stop_sequences": [[259]], "max_tokens": 1}, {}, "there is no token 259 in a vocabulary"),
        ({"stop_sequences": [[]]}, {}, "inference_input.stop_sequences"),
        ({"max_tokens": 1}, {"vocab_size": 300}, "model.vocab_size was 259, now 300"),
    ],
)  # fmt: skip
def test_one_clear_line(
    infer: Infer, section: Section | None, of_model: dict[str, Any], message: str
) -> None:
    files = {"empty.txt": "\n \n", "bad.jsonl": '{"prompt": ""}\n{', "list.jsonl": "[1]",
             "half.jsonl": '{"prompt": "\\ud800"}', "long.txt": "b" * MSL}  # fmt: skip
    for name, text in files.items():
        (infer.root / name).write_text(text)
    write_rows(infer, [START, 3])
    with pytest.raises(PrepError, match=message) as caught:
        infer(infer.params(section, **of_model))
    assert "\n" not in str(caught.value)
    assert not (infer.model / "predictions").exists()


def test_the_longest_prompt_has_room_for_a_token(infer: Infer) -> None:
    (infer.root / "long.txt").write_text("b" * (MSL - 1))
    (line,) = infer(infer.params({"data_dir": "long.txt"}))
    assert len(line["tokens"]) + (line["ended"] == "eos") == 1


def test_prompts_and_the_tokenizer_have_to_be_named(infer: Infer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no prompts: set inference_input.data_dir .*--data RUN"):
        infer(infer.params(None), data=None)
    params = infer.params({"data_dir": str(infer.prompts()), "max_tokens": 1})
    with pytest.raises(ConfigError, match="not that of GPT-2; give --data RUN, the prep run"):
        infer(params, data=None)
    other = tmp_path / "other"
    (other / "hdf5" / "train").mkdir(parents=True)
    definition = json.loads((infer.run / "tokenizer.json").read_text())
    del definition["model"]["vocab"]["CD"], definition["model"]["merges"][1]
    definition["added_tokens"][0]["id"] = 257
    (other / "tokenizer.json").write_text(json.dumps(definition))
    with pytest.raises(ConfigError, match=r"has 258 ids, but model.vocab_size of .* is 259; give"):
        infer(params, data=other)
    with pytest.raises(
        InputError, match="there is no hdf5/validation to take prompts from; set infer"
    ):
        infer(infer.params({"max_tokens": 1}), data=other)


def test_a_signal_leaves_nothing_half_written(
    infer: Infer, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []

    def check(request: errors.StopRequest) -> None:
        calls.append(1)
        if len(calls) == 3:
            raise errors.StopSignal(15)

    monkeypatch.setattr(errors.StopRequest, "check", check)
    params = infer.params({"data_dir": str(infer.prompts()), "batch_size": 1, "max_tokens": 1})
    request = trainer_run.TrainOptions(
        target="CPU", params=params, mode="infer", model_dir=infer.model, data=infer.run
    )
    assert trainer_run.run_training(request, lambda line: None) == 143
    assert list((infer.model / "predictions").iterdir()) == []


def test_the_command(infer: Infer) -> None:
    params = infer.params({"data_dir": str(infer.prompts()), "max_tokens": 1})
    command = ["CPU", "--params", str(params), "--mode", "infer", "--data", str(infer.run)]
    result = CliRunner().invoke(app, [*command, "--model_dir", str(infer.model)])
    assert result.exit_code == 0, result.output
    assert "Predictions: " in result.output
    result = CliRunner().invoke(app, [*command, "--model_dir", str(infer.root / "none")])
    assert result.exit_code == 3
    assert result.stderr.startswith("error: ") and result.stderr.count("\n") == 1


def test_other_modes_take_no_notice(trainer: Any) -> None:
    """The section and the keys in `model` change nothing of a run, nor of its record."""
    plain = trainer.configure("plain.yaml")
    assert trainer.train("plain", params=plain, num_steps=2) == 0
    value = yaml.safe_load(plain.read_text())
    value["inference_input"] = {"data_dir": "gone.txt"}
    value["model"] |= {"start_token": 3, "stop_sequences": [[1, 2]], "max_tokens": 9}
    path = trainer.root / "with.yaml"
    path.write_text(yaml.safe_dump(value))
    assert trainer.train("with", params=path, num_steps=2, mode="train_and_eval") == 0
    section = load_params(path).inference_input
    assert section is not None and section.stop_sequences == ((1, 2),)
    for name in ("run.json", "checkpoints/step_0000002/manifest.json"):
        records = [(trainer.root / out / name).read_bytes() for out in ("plain", "with")]
        assert records[0] == records[1]
