"""Tasks of lm-eval on local files: `DATA_DIR/TASK/{train,validation,test}.jsonl`.

Prompts, choices and metrics are those of lm-eval's own task configs; only where documents come from
is replaced, so nothing is fetched. Needs the extra `eval`.
"""

import importlib.metadata
import importlib.util
import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.evaluation.loaded import LoadedModel

TASKS: dict[str, str] = {
    "hellaswag": "hellaswag/hellaswag.yaml",
    "piqa": "piqa/piqa.yaml",
    "winogrande": "winogrande/default.yaml",
    "lambada_openai": "lambada/lambada_openai.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "arc_challenge": "arc/arc_challenge.yaml",
    "openbookqa": "openbookqa/openbookqa.yaml",
}
"""The seven tasks of Cerebras-GPT (arXiv 2304.03208), and where lm-eval keeps their configs."""

SPLITS = ("train", "validation", "test")
_SPLIT_KEYS = {"train": "training_split", "validation": "validation_split", "test": "test_split"}
_SEED = 1234
"""Of the examples in prompts: lm-eval's default."""

Metrics = dict[str, float | int]


@dataclass(frozen=True)
class Wanted:
    """`tasks`: names of `TASKS`; `num_fewshot`: examples in every prompt; `limit`: documents of
    each task, None for all; `data_dir`: see above."""

    tasks: tuple[str, ...]
    data_dir: Path
    num_fewshot: int = 0
    limit: int | None = None
    batch_size: int = 8


def run_tasks(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, wanted: Wanted
) -> dict[str, Metrics]:
    """Metrics of every task by name: those of lm-eval, their standard errors, and `samples`.

    Raises ConfigError without the extra or for a task that is not known, InputError for missing or
    damaged files.
    """
    files = {task: task_files(wanted.data_dir, task) for task in wanted.tasks}
    _need_lm_eval()
    import datasets
    from lm_eval.evaluator import evaluate
    from lm_eval.tasks import TaskManager

    from trainer.evaluation.lm_eval_model import WafermillLM

    model = WafermillLM(loaded, tokenizer, wanted.batch_size)
    with tempfile.TemporaryDirectory(prefix="lm-eval-") as scratch:
        for task, splits in files.items():
            config = task_config(task, splits, wanted.num_fewshot, Path(scratch) / "cache")
            storage.publish(Path(scratch) / f"{task}.yaml", yaml.safe_dump(config).encode())
        manager = TaskManager(include_path=scratch, include_defaults=False)
        try:
            tasks = manager.load(list(files))
        except (datasets.exceptions.DatasetGenerationError, ValueError, KeyError) as error:
            raise InputError(
                f"{wanted.data_dir}: lm-eval cannot read the tasks: {error}; see "
                "docs/evaluation.md for the files it expects"
            ) from error
        for task in tasks["tasks"].values():
            task.set_fewshot_seed(_SEED)
        found = evaluate(model, tasks, limit=wanted.limit, log_samples=False)
    return {task: _metrics(found, task) for task in wanted.tasks}


def task_files(data_dir: Path, task: str) -> dict[str, Path]:
    """Split -> file of one task. Raises ConfigError for an unknown task, InputError without a file
    to evaluate on."""
    if task not in TASKS:
        raise ConfigError(f"--tasks {task}: expected some of {', '.join(TASKS)}")
    files = {split: data_dir / task / f"{split}.jsonl" for split in SPLITS}
    found = {split: path for split, path in files.items() if path.is_file()}
    if not found.keys() & {"validation", "test"}:
        raise InputError(
            f"{data_dir / task}: expected validation.jsonl or test.jsonl, the documents of the "
            "task as its data set has them (docs/evaluation.md)"
        )
    return found


def task_config(
    task: str, files: Mapping[str, Path], num_fewshot: int, cache: Path
) -> dict[str, Any]:
    """lm-eval's config of a task, with these files in the place of its data set."""
    package = importlib.util.find_spec("lm_eval")
    assert package is not None and package.origin is not None, "_need_lm_eval comes first"
    original = Path(package.origin).parent / "tasks" / TASKS[task]
    if not original.is_file():
        version = importlib.metadata.version("lm_eval")
        raise ConfigError(
            f"lm-eval {version} has no tasks/{TASKS[task]}; install the version that "
            "wafermill[eval] asks for"
        )
    paths = {split: str(path.resolve()) for split, path in files.items()}
    return {
        "include": str(original),
        "task": task,
        "dataset_path": "json",
        "dataset_name": None,
        "dataset_kwargs": {"data_files": paths, "cache_dir": str(cache)},
        "num_fewshot": num_fewshot,
        **{key: split if split in files else None for split, key in _SPLIT_KEYS.items()},
    }


def mean_accuracy(results: Mapping[str, Metrics]) -> float | None:
    """The mean of `acc` over tasks, None where one has none."""
    found = [metrics.get("acc", math.nan) for metrics in results.values()]
    mean = sum(found) / len(found)
    return None if math.isnan(mean) else mean


def _need_lm_eval() -> None:
    if importlib.util.find_spec("lm_eval") is None:
        raise ConfigError("lm-eval is not installed; pip install 'wafermill[eval]'")


def _metrics(found: Mapping[str, Any], task: str) -> Metrics:
    """`acc,none` and the like as `acc`."""
    metrics: Metrics = {"samples": int(found["n-samples"][task]["effective"])}
    for name, value in found["results"][task].items():
        head, _, filtered = name.partition(",")
        if filtered and isinstance(value, int | float):
            metrics[head] = float(value)
    return metrics


def names(text: str) -> tuple[str, ...]:
    """Task names of a comma-separated list, each once.

    >>> names("piqa, hellaswag,piqa")
    ('piqa', 'hellaswag')
    """
    found: Sequence[str] = [part.strip() for part in text.split(",") if part.strip()]
    return tuple(dict.fromkeys(found))
