"""Prompts of local files are those of lm-eval with its own data sets. Needs the extra `eval`."""

import random
from pathlib import Path
from typing import Any

import pytest

from trainer.evaluation.lm_eval_tasks import TASKS, load_tasks, read_task

from .task_documents import Row, document, write

pytestmark = pytest.mark.filterwarnings("ignore")

UNLABELLED: dict[str, Row] = {
    "hellaswag": {"label": ""},
    "piqa": {"label": -1},
    "winogrande": {"answer": ""},
}
"""What the public test splits have for answers."""
DIFFERENT = ("lambada_openai", 5)
"""lm-eval can show a document of LAMBADA as an example for itself, answer included; we do not."""
MARKS = {
    "hellaswag": "ab: a{} ",
    "piqa": "Question: ab {}",
    "winogrande": "a{} and",
    "lambada_openai": "cd {}",
    "arc_easy": "a{}?",
    "arc_challenge": "b{}?",
    "openbookqa": "c{}",
}
"""What stands once in a document."""


def data_set(task: str) -> dict[str, list[Row]]:
    """Splits as the data set of a task has them, unlabelled ones included."""
    if task == "lambada_openai":
        return {"test": [document(task, number) for number in range(30)]}
    first = {"train": 0, "validation": 100, "test": 200}
    splits = {
        split: [document(task, start + number) for number in range(30)]
        for split, start in first.items()
    }
    splits["test"] = [row | UNLABELLED.get(task, {}) for row in splits["test"]]
    random.Random(7).shuffle(splits["train"])
    return splits


def arguments(tasks: dict[str, Any], task: str) -> list[tuple[str, str]]:
    """What a model is asked: (context, continuation)."""
    made = tasks[task]
    made.build_all_requests(rank=0, world_size=1)
    return [instance.args for instance in made.instances]


def of_lm_eval(
    task: str, splits: dict[str, list[Row]], num_fewshot: int, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[str, str]]:
    """From its own config, with a data set as the one it would fetch."""
    import datasets
    import lm_eval.tasks
    from lm_eval.tasks import TaskManager

    whole = datasets.DatasetDict(
        {split: datasets.Dataset.from_list(rows) for split, rows in splits.items()}
    )
    monkeypatch.setattr(datasets, "load_dataset", lambda *args, **kwargs: whole)
    place = Path(lm_eval.tasks.__file__).parent / Path(TASKS[task].config).parent
    tasks = TaskManager(include_path=str(place), include_defaults=False).load([task])["tasks"]
    monkeypatch.undo()
    tasks[task].set_config("num_fewshot", num_fewshot)
    tasks[task].set_fewshot_seed(1234)
    return arguments(tasks, task)


def of_files(task: str, data_dir: Path, num_fewshot: int) -> list[tuple[str, str]]:
    local = read_task(data_dir, task, num_fewshot)
    return arguments(load_tasks([local], num_fewshot, data_dir), task)


@pytest.fixture(autouse=True)
def _lm_eval() -> None:
    pytest.importorskip("lm_eval", reason="the extra `eval` is not installed")


@pytest.mark.parametrize(
    ("task", "num_fewshot"), [(task, n) for task in TASKS for n in (0, 5) if (task, n) != DIFFERENT]
)
def test_prompts(
    task: str, num_fewshot: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    splits = data_set(task)
    for split, rows in splits.items():
        write(tmp_path / task / f"{split}.jsonl", rows)
    found = of_files(task, tmp_path, num_fewshot)
    assert found == of_lm_eval(task, splits, num_fewshot, monkeypatch)
    assert len(found) >= 30


@pytest.mark.parametrize("task", TASKS)
def test_no_document_is_its_own_example(task: str, tmp_path: Path) -> None:
    """Of 9 documents, 8 are in every prompt of 8 examples: all but the one that is asked."""
    files = TASKS[task]
    rows = [document(task, 10 + number) for number in range(9)]
    write(tmp_path / task / f"{files.evaluated}.jsonl", rows)
    prompts = of_files(task, tmp_path, 8)
    assert len(prompts) >= 9
    for context, _ in prompts:
        marks = [MARKS[task].format(10 + number) for number in range(9)]
        assert [context.count(mark) for mark in marks] == [1] * 9
