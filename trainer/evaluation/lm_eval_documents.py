"""Documents of lm-eval's tasks in local files, `DATA_DIR/TASK/SPLIT.jsonl`.

A line is one document in the fields of the task's data set. Only the fields that prompts are made
of are read; they are checked here, so that a mistake is told with its file and line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from pipeline.core.errors import InputError
from pipeline.core.words import pluralise


class HellaSwag(msgspec.Struct):
    """`label`: place of the right ending."""

    activity_label: str
    ctx_a: str
    ctx_b: str
    endings: Annotated[list[str], msgspec.Meta(min_length=4, max_length=4)]
    label: Literal["0", "1", "2", "3", 0, 1, 2, 3]

    def __post_init__(self) -> None:
        self.label = str(self.label)  # type: ignore[assignment]  # one type for the whole column


class Piqa(msgspec.Struct):
    """`label`: 0 where `sol1` is right."""

    goal: str
    sol1: str
    sol2: str
    label: Literal[0, 1]


class WinoGrande(msgspec.Struct):
    """`sentence` has a `_` for the option to stand in."""

    sentence: Annotated[str, msgspec.Meta(pattern="_")]
    option1: str
    option2: str
    answer: Literal["1", "2"]


class Lambada(msgspec.Struct):
    """The last word of `text` is to be guessed."""

    text: Annotated[str, msgspec.Meta(pattern=r"\S")]


class Choices(msgspec.Struct):
    """Answers and their names, such as A, B, C, D."""

    text: Annotated[list[str], msgspec.Meta(min_length=1)]
    label: list[str]


class Arc(msgspec.Struct):
    """Of both parts, easy and challenge."""

    question: str
    choices: Choices
    answer_key: str = msgspec.field(name="answerKey")

    def __post_init__(self) -> None:
        _check_answer(self.choices, self.answer_key)


class OpenBookQA(msgspec.Struct):
    """`question_stem` is what the answer completes."""

    question_stem: str
    choices: Choices
    answer_key: str = msgspec.field(name="answerKey")

    def __post_init__(self) -> None:
        _check_answer(self.choices, self.answer_key.lstrip())


def _check_answer(choices: Choices, key: str) -> None:
    if len(choices.text) != len(choices.label):
        raise ValueError("`choices.text` and `choices.label` differ in length")
    if key not in choices.label:
        raise ValueError(f"`answerKey` {key!r} is not one of `choices.label`")


Split = Literal["train", "validation", "test"]


@dataclass(frozen=True)
class TaskFiles:
    """What lm-eval has of a task. `config`: its file below lm-eval's tasks; `document`: a line;
    `evaluated`: the split it counts; `examples`: the split that few-shot examples come from."""

    config: str
    document: type[msgspec.Struct]
    evaluated: Split
    examples: Split = "train"


TASKS: Mapping[str, TaskFiles] = {
    "hellaswag": TaskFiles("hellaswag/hellaswag.yaml", HellaSwag, "validation"),
    "piqa": TaskFiles("piqa/piqa.yaml", Piqa, "validation"),
    "winogrande": TaskFiles("winogrande/default.yaml", WinoGrande, "validation"),
    "lambada_openai": TaskFiles("lambada/lambada_openai.yaml", Lambada, "test", "test"),
    "arc_easy": TaskFiles("arc/arc_easy.yaml", Arc, "test"),
    "arc_challenge": TaskFiles("arc/arc_challenge.yaml", Arc, "test"),
    "openbookqa": TaskFiles("openbookqa/openbookqa.yaml", OpenBookQA, "test"),
}
"""The seven tasks of Cerebras-GPT (arXiv 2304.03208)."""


@dataclass(frozen=True)
class LocalTask:
    """A task with its documents: split -> lines of JSON with the fields of its data set and no
    others. `examples`: the split few-shot examples come from, None when prompts have none."""

    name: str
    evaluated: Split
    examples: Split | None
    lines: Mapping[Split, Sequence[bytes]]


def read_task(data_dir: Path, name: str, num_fewshot: int) -> LocalTask:
    """The documents that a task needs for prompts of so many examples.

    Examples come from the split that lm-eval takes them from; where there is no file of it, from
    the evaluated one. Raises InputError for a file that is missing, damaged or too short.
    """
    task, directory = TASKS[name], data_dir / name
    evaluated = directory / f"{task.evaluated}.jsonl"
    if not evaluated.is_file():
        raise InputError(
            f"{evaluated}: no such file; {name} is evaluated on it, one JSON object per line "
            f"with {_fields(task.document)} (docs/evaluation.md)"
        )
    lines = {task.evaluated: read_documents(evaluated, task.document)}
    if not num_fewshot:
        return LocalTask(name, task.evaluated, None, lines)
    pool = directory / f"{task.examples}.jsonl"
    examples: Split = task.examples if pool.is_file() else task.evaluated
    if examples not in lines:
        lines[examples] = read_documents(pool, task.document)
    distinct = len(set(lines[examples]))
    if distinct <= num_fewshot:
        raise InputError(
            f"{directory / f'{examples}.jsonl'}: {pluralise(distinct, 'different document')}; "
            "prompts with "
            f"--num_fewshot {num_fewshot} need at least {num_fewshot + 1:,}"
        )
    return LocalTask(name, task.evaluated, examples, lines)


def read_documents(path: Path, document: type[msgspec.Struct]) -> list[bytes]:
    """The lines of a file as JSON of `document` alone; empty lines are skipped.

    Raises InputError naming the line that is no `document`.
    """
    decoder, found = msgspec.json.Decoder(document), []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    found.append(_one_document(decoder, line, f"{path}, line {number}"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    if not found:
        raise InputError(f"{path}: no documents; expected lines with {_fields(document)}")
    return found


def _one_document(
    decoder: "msgspec.json.Decoder[msgspec.Struct]", line: bytes, place: str
) -> bytes:
    try:
        return msgspec.json.encode(decoder.decode(line))
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{place}: {error}; expected {_fields(decoder.type)}") from error


def _fields(document: type[msgspec.Struct]) -> str:
    return ", ".join(document.__struct_encode_fields__)
