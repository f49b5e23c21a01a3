"""Documents of the seven tasks: invented ones, and the public ones of the reference data."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from trainer.evaluation.lm_eval_tasks import TASKS

Row = dict[str, Any]

PUBLIC = {
    "hellaswag": "hellaswag_val_500.jsonl",
    "piqa": "piqa_val_400.jsonl",
    "winogrande": "winogrande_val_400.jsonl",
    "lambada_openai": "lambada_openai_test_500.jsonl",
    "arc_easy": "arc_easy_test_400.jsonl",
    "arc_challenge": "arc_challenge_test_400.jsonl",
    "openbookqa": "openbookqa_test_300.jsonl",
}
"""Task -> file of the reference data, whose layout is its own."""


def document(task: str, number: int) -> Row:
    """A document of a task, in the fields of its data set; the first choice is right."""
    choices = {"text": [f"ab{number}", "CD", "a", "c"], "label": ["A", "B", "C", "D"]}
    return {
        "hellaswag": {"ind": number, "activity_label": "ab", "ctx_a": f"a{number}", "ctx_b": "c",
                      "endings": ["ab", "cd", "CC", "D"], "label": "0"},
        "piqa": {"goal": f"ab {number}", "sol1": "ab", "sol2": "CD", "label": 0},
        "winogrande": {"sentence": f"a{number} and _ ab", "option1": "a", "option2": "C",
                       "answer": "1"},
        "lambada_openai": {"text": f"ab cd {number} ab"},
        "arc_easy": {"id": f"{number}", "question": f"a{number}?", "choices": choices,
                     "answerKey": "A"},
        "arc_challenge": {"id": f"{number}", "question": f"b{number}?", "choices": choices,
                          "answerKey": "A"},
        "openbookqa": {"id": f"{number}", "question_stem": f"c{number}", "choices": choices,
                       "answerKey": "A"},
    }[task]  # fmt: skip


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_tasks(data_dir: Path) -> Path:
    """Eight evaluated documents of each task, and eight others to take examples from."""
    for task, files in TASKS.items():
        for split, first in {files.examples: 100, files.evaluated: 0}.items():
            rows = [document(task, first + number) for number in range(8)]
            write(data_dir / task / f"{split}.jsonl", rows)
    return data_dir


def write_public_tasks(reference: Path, data_dir: Path, limit: int) -> Path:
    """The first documents of the reference data as evaluated files; there are no others."""
    for task, files in TASKS.items():
        lines = (reference / PUBLIC[task]).read_text().splitlines()[:limit]
        rows = [_in_fields(task, json.loads(line)) for line in lines]
        write(data_dir / task / f"{files.evaluated}.jsonl", rows)
    return data_dir


def _in_fields(task: str, row: Row) -> Row:
    """A row of the reference data in the fields of its data set."""
    if task == "lambada_openai":
        return {"text": row["text"]}
    if task == "hellaswag":
        activity, _, context = row["query"].partition(": ")
        return {"activity_label": activity, "ctx_a": context, "ctx_b": "",
                "endings": row["endings"], "label": str(row["label"])}  # fmt: skip
    choices, label = row["choices"], row["label"]
    if task == "piqa":
        return {"goal": row["question"], "sol1": choices[0], "sol2": choices[1], "label": label}
    if task == "winogrande":
        return {"sentence": row["question"], "option1": choices[0], "option2": choices[1],
                "answer": str(label + 1)}  # fmt: skip
    letters = list("ABCDE"[: len(choices)])
    question = "question_stem" if task == "openbookqa" else "question"
    return {question: row["question"], "choices": {"text": choices, "label": letters},
            "answerKey": letters[label]}  # fmt: skip
