"""Local files of the tasks: what they need, and mistakes in them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pipeline.core.errors import ConfigError, InputError
from trainer.cli import app
from trainer.evaluation.lm_eval_tasks import TASKS, parse_task_names, read_task, read_task_documents

from .task_documents import PUBLIC, document, write, write_public_tasks, write_tasks

DOCS = Path(__file__).parents[3] / "docs" / "evaluation.md"


def fields(task: str) -> tuple[str, ...]:
    return TASKS[task].document.__struct_encode_fields__


@pytest.mark.parametrize("task", TASKS)
def test_a_line_keeps_the_fields_of_prompts(task: str, tmp_path: Path) -> None:
    rows = [document(task, number) | {"more": [number]} for number in range(3)]
    path = write(tmp_path / "test.jsonl", rows)
    path.write_text(path.read_text().replace("\n", "\n\n"))
    wanted = [{name: row[name] for name in fields(task)} for row in rows]
    assert [json.loads(line) for line in read_task_documents(path, TASKS[task].document)] == wanted


def test_a_column_has_one_type(tmp_path: Path) -> None:
    rows = [document("hellaswag", 0) | {"label": label} for label in ("1", 2)]
    lines = read_task_documents(write(tmp_path / "a.jsonl", rows), TASKS["hellaswag"].document)
    assert [json.loads(line)["label"] for line in lines] == ["1", "2"]


CHOICES: dict[str, Any] = {"text": ["a", "b"], "label": ["A", "B"]}


@pytest.mark.parametrize(
    ("task", "change", "message"),
    [
        ("piqa", {"label": 2}, "label"),
        ("piqa", {"label": -1}, "label"),
        ("piqa", {"label": "0"}, "label"),
        ("piqa", {"sol2": None}, "sol2"),
        ("piqa", {"goal": ...}, "missing required field `goal`"),
        ("hellaswag", {"label": ""}, "label"),
        ("hellaswag", {"endings": ["a", "b"]}, "endings"),
        ("winogrande", {"sentence": "no gap"}, "sentence"),
        ("winogrande", {"answer": ""}, "answer"),
        ("lambada_openai", {"text": " \n"}, "text"),
        ("arc_easy", {"answerKey": "E"}, "`answerKey` 'E' is not one of `choices.label`"),
        ("arc_easy", {"choices": ["a", "b"]}, "choices"),
        ("arc_challenge", {"choices": {"text": ["a"], "label": ["A", "B"]}}, "differ in length"),
        ("openbookqa", {"choices": CHOICES | {"text": [1, 2]}}, r"choices\.text"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    task: str, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    wrong = {key: value for key, value in (document(task, 1) | change).items() if value != ...}
    path = write(tmp_path / f"{task}.jsonl", [document(task, 0), wrong])
    expected = ", ".join(fields(task))
    with pytest.raises(InputError, match=rf"{task}\.jsonl, line 2: .*{message}.*{expected}"):
        read_task_documents(path, TASKS[task].document)


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b"\xff", b'{"text": "\\ud800"}', b"[" * 100_000, b'{"text": "a\x00"}']
)
def test_what_is_no_document(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "test.jsonl").write_bytes(line)
    with pytest.raises(InputError, match=r"test\.jsonl, line 1: "):
        read_task_documents(tmp_path / "test.jsonl", TASKS["lambada_openai"].document)


def test_files_that_are_not_there_or_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"piqa/validation\.jsonl: no such file; .*goal, sol1"):
        read_task(tmp_path, "piqa", 0)
    write(tmp_path / "piqa" / "validation.jsonl", [])
    with pytest.raises(InputError, match=r"validation\.jsonl: no documents; .*goal"):
        read_task(tmp_path, "piqa", 0)


def test_zero_examples_need_the_evaluated_file_only(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    for task, files in TASKS.items():
        found = read_task(tmp_path, task, 0)
        assert (found.evaluated, found.examples) == (files.evaluated, None)
        assert set(found.lines) == {files.evaluated}


def test_examples_come_from_the_split_of_lm_eval(tmp_path: Path) -> None:
    """A file that lm-eval takes none from is not read, such as a test split without labels."""
    write_tasks(tmp_path)
    for task, files in TASKS.items():
        for split in {"train", "validation", "test"} - {files.evaluated, files.examples}:
            (tmp_path / task / f"{split}.jsonl").write_text("{\n")
        found = read_task(tmp_path, task, 5)
        assert found.examples == files.examples
        assert set(found.lines) == {files.evaluated, files.examples}


def test_without_a_train_file_examples_are_other_documents(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    (tmp_path / "piqa" / "train.jsonl").unlink()
    found = read_task(tmp_path, "piqa", 5)
    assert (found.evaluated, found.examples) == ("validation", "validation")


def test_too_few_examples(tmp_path: Path) -> None:
    write_tasks(tmp_path)
    rows = [document("piqa", number % 3) for number in range(9)]
    write(tmp_path / "piqa" / "train.jsonl", rows)
    assert read_task(tmp_path, "piqa", 2).examples == "train"
    with pytest.raises(InputError, match=r"train\.jsonl: 3 different documents; .* at least 4"):
        read_task(tmp_path, "piqa", 3)


def test_names_of_tasks() -> None:
    assert parse_task_names(None) == tuple(TASKS)
    for text in ("", " , ", "piqa,mmlu"):
        with pytest.raises(
            ConfigError, match="expected names separated by commas, from hellaswag, piqa"
        ):
            parse_task_names(text)


def test_the_help_and_the_docs_tell_the_fields() -> None:
    shown = CliRunner().invoke(app, ["lm-eval", "--help"]).output
    table = DOCS.read_text()
    for task, files in TASKS.items():
        (line,) = (line for line in shown.splitlines() if re.match(rf" +{task} +", line))
        words = re.findall(r"\w+", line.replace("{text, label}", ""))
        assert words == [task, files.evaluated, *fields(task)]
        (row,) = (row for row in table.splitlines() if row.startswith("|") and f"`{task}`" in row)
        _, _, evaluated, examples, told, _ = row.split("|")
        assert (evaluated.strip(), examples.strip()) == (files.evaluated, files.examples)
        assert [name for name in re.findall(r"`(\w+)", told) if name in fields(task)] == [
            *fields(task)
        ]


@pytest.mark.shared_data
def test_public_documents(shared_data: Path, tmp_path: Path) -> None:
    write_public_tasks(shared_data / "eval_sets", tmp_path, limit=1000)
    for task, name in PUBLIC.items():
        found = read_task(tmp_path, task, 5)
        assert len(found.lines[found.evaluated]) == int(re.findall(r"\d+", name)[0])
