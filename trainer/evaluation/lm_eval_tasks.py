"""Tasks of lm-eval on local files: `DATA_DIR/TASK/{train,validation,test}.jsonl`.

Prompts, choices and metrics are those of lm-eval's own task configs; only where documents come from
is replaced, so nothing is fetched. Needs the extra `eval`.

A line is one document in the fields of the task's data set. Only the fields that prompts are made
of are read; they are checked here, so that a mistake is reported with its file and line.
"""

import importlib.metadata
import importlib.util
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec
import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.generation.loaded import LoadedModel


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
    """A task in lm-eval. `config`: its file below lm-eval's tasks; `document`: a line;
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
    """A task with its documents: split -> lines of JSON with the fields of its data set alone.
    `examples`: the split few-shot examples come from, None when prompts have none."""

    name: str
    evaluated: Split
    examples: Split | None
    lines: Mapping[Split, Sequence[bytes]]


def read_task(data_dir: Path, name: str, num_fewshot: int) -> LocalTask:
    """The documents that a task needs for prompts of so many examples; without a file of its
    split for examples these come from the evaluated one. Raises InputError for a file that is
    missing, damaged or too short."""
    task, directory = TASKS[name], data_dir / name
    evaluated = directory / f"{task.evaluated}.jsonl"
    if not evaluated.is_file():
        raise InputError(
            f"{evaluated}: no such file; {name} is evaluated on it, one JSON object per line "
            f"with {_fields(task.document)} (docs/evaluation.md)"
        )
    lines = {task.evaluated: read_task_documents(evaluated, task.document)}
    if not num_fewshot:
        return LocalTask(name, task.evaluated, None, lines)
    pool = directory / f"{task.examples}.jsonl"
    examples: Split = task.examples if pool.is_file() else task.evaluated
    if examples not in lines:
        lines[examples] = read_task_documents(pool, task.document)
    distinct = len(set(lines[examples]))
    if distinct <= num_fewshot:
        raise InputError(
            f"{directory / f'{examples}.jsonl'}: {pluralise(distinct, 'different document')}; "
            f"prompts with --num_fewshot {num_fewshot} need at least {num_fewshot + 1:,}"
        )
    return LocalTask(name, task.evaluated, examples, lines)


def read_task_documents(path: Path, document: type[msgspec.Struct]) -> list[bytes]:
    """The lines of a file as JSON of `document` alone; empty lines are skipped. Raises
    InputError naming the line that is no `document`."""
    decoder, documents = msgspec.json.Decoder(document), []
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                place = f"{path}, line {number}"
                if line.strip():
                    documents.append(msgspec.json.encode(decoder.decode(line)))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise InputError(f"{place}: {error}; expected {_fields(document)}") from error
    if not documents:
        raise InputError(f"{path}: no documents; expected lines with {_fields(document)}")
    return documents


def _fields(document: type[msgspec.Struct]) -> str:
    return ", ".join(document.__struct_encode_fields__)


_SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
_SHARES = ("acc", "acc_norm")
_SEED = 1234
"""Of the examples in prompts: lm-eval's default."""


@dataclass(frozen=True)
class TaskOptions:
    """`tasks`: names of `TASKS`; `num_fewshot`: examples in every prompt; `limit`: documents of
    each task, None for all."""

    tasks: tuple[str, ...]
    data_dir: Path
    num_fewshot: int = 0
    limit: int | None = None
    batch_size: int = 8


@dataclass(frozen=True)
class TaskScores:
    """The scores of one task. `samples`: documents; `truncated`: those of them with a prompt
    that the model did not see whole; `metrics`: lm-eval's by name, and the standard error of
    each share as `NAME_stderr`."""

    evaluated: Split
    examples: Split | None
    samples: int
    truncated: int
    metrics: Mapping[str, float]

    def numbers(self) -> dict[str, float | int]:
        """Columns of a table."""
        return {"samples": self.samples, "truncated": self.truncated, **self.metrics}

    def described(self) -> dict[str, Any]:
        """For JSON."""
        return {"evaluated": self.evaluated, "examples": self.examples, **self.numbers()}


def run_tasks(
    loaded: LoadedModel,
    tokenizer: TokenizerDefinition,
    request: TaskOptions,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, TaskScores]:
    """Scores of every task by name. Raises ConfigError without the extra, InputError for missing
    or damaged files and for an answer of more tokens than the model sees."""
    local = [read_task(request.data_dir, name, request.num_fewshot) for name in request.tasks]
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-eval is not installed; pip install 'wafermill[eval]'")
    from lm_eval.evaluator import evaluate

    from trainer.evaluation.lm_eval_model import WafermillLM

    for task in local:
        if task.examples == task.evaluated:
            say(f"{task.name}: examples are other documents of {task.evaluated}.jsonl itself")
    model = WafermillLM(loaded, tokenizer, request.batch_size)
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as scratch:
        tasks = load_tasks(local, request.num_fewshot, Path(scratch))
        # Without bootstrap: lm-eval's starts processes and prints to stdout.
        results = evaluate(
            model, {"tasks": tasks}, limit=request.limit, bootstrap_iters=0, log_samples=False
        )
    return {task.name: _scores(task, results, model.n_truncated(task.name)) for task in local}


def load_tasks(local: Sequence[LocalTask], num_fewshot: int, directory: Path) -> dict[str, Any]:
    """lm-eval's tasks by name; their documents are put into files of `directory`, which has to
    stay."""
    from lm_eval.tasks import TaskManager

    for task in local:
        for split, lines in task.lines.items():
            storage.publish(directory / f"{task.name}-{split}.jsonl", b"\n".join(lines) + b"\n")
        config = task_config(task, num_fewshot, directory)
        storage.publish(directory / f"{task.name}.yaml", yaml.safe_dump(config).encode())
    manager = TaskManager(include_path=str(directory), include_defaults=False)
    tasks: dict[str, Any] = {}
    for task in local:
        try:
            with _offline():
                tasks |= manager.load([task.name])["tasks"]
        except (ValueError, KeyError, IndexError) as error:
            raise InputError(
                f"lm-eval cannot make a prompt of {task.name} from the first document of its "
                f"{task.evaluated}.jsonl: {error!r}"
            ) from error
        tasks[task.name].set_fewshot_seed(_SEED)
    return tasks


@contextmanager
def _offline() -> Iterator[None]:
    """Without it `datasets` reports every use of its JSON reader to a server."""
    from datasets import config

    before, config.HF_HUB_OFFLINE = config.HF_HUB_OFFLINE, True
    try:
        yield
    finally:
        config.HF_HUB_OFFLINE = before


def task_config(task: LocalTask, num_fewshot: int, directory: Path) -> dict[str, Any]:
    """lm-eval's config of a task, with files of `directory` as its data set."""
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.origin is not None, "run_tasks comes first"
    original = Path(package.origin).parent / "tasks" / TASKS[task.name].config
    if not original.is_file():
        version = importlib.metadata.version("lm_eval")
        raise ConfigError(
            f"lm-eval {version} has no tasks/{TASKS[task.name].config}; install the version that "
            "wafermill[eval] requires"
        )
    paths = {split: str(directory / f"{task.name}-{split}.jsonl") for split in task.lines}
    # lm-eval leaves the evaluated document out of the examples where it has no test split, and
    # where the test split is named as that of examples.
    own = "test" if task.examples == task.evaluated == "test" else None
    return {
        "include": str(original),
        "task": task.name,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": paths, "cache_dir": str(directory / "cache")},
        "num_fewshot": num_fewshot,
        "fewshot_split": own,
        **{_SPLIT_KEYS[s]: s if s in task.lines else None for s in get_args(Split)},
    }


def mean_accuracy(results: Mapping[str, TaskScores]) -> float:
    """The mean of `acc` over tasks."""
    return sum(scores.metrics["acc"] for scores in results.values()) / len(results)


def parse_task_names(text: str | None) -> tuple[str, ...]:
    """Task names of a comma-separated list, each once; None: all. Raises ConfigError.

    >>> parse_task_names("piqa, hellaswag,piqa")
    ('piqa', 'hellaswag')
    """
    if text is None:
        return tuple(TASKS)
    names = [part.strip() for part in text.split(",") if part.strip()]
    strange = [name for name in names if name not in TASKS]
    if strange or not names:
        shown = ", ".join(strange) or repr(text)
        raise ConfigError(
            f"--tasks {shown}: expected names separated by commas, from {', '.join(TASKS)}"
        )
    return tuple(dict.fromkeys(names))


def _scores(task: LocalTask, results: Mapping[str, Any], truncated: int) -> TaskScores:
    """lm-eval calls a metric `acc,none`: its name, then the filter of answers."""
    samples, metrics = int(results["n-samples"][task.name]["effective"]), {}
    for name, value in results["results"][task.name].items():
        metric, _, filtered = name.partition(",")
        if filtered and isinstance(value, int | float):
            metrics[metric] = float(value)
            if metric in _SHARES and samples > 1:  # as lm-eval's mean_stderr
                metrics[f"{metric}_stderr"] = math.sqrt(value * (1 - value) / (samples - 1))
    return TaskScores(task.evaluated, task.examples, samples, truncated, metrics)
