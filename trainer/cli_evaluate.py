"""`train evaluate`, `train lm-eval` and `train crows-pairs`: parse, call, print; no logic."""

import dataclasses
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError, PrepError, printable
from trainer.cli_options import TargetName
from trainer.errors import as_prep_errors

HELP = {"help_option_names": ["-h", "--help"]}


class DeviceName(StrEnum):
    """Where a model computes."""

    cpu = "cpu"
    cuda = "cuda"


ModelDir = Annotated[
    Path | None, typer.Option("--model_dir", "-o", help="Model directory: its last checkpoint.")
]
CheckpointDir = Annotated[
    Path | None, typer.Option("--checkpoint", help="A checkpoint, in place of --model_dir.")
]
ModelTokenizer = Annotated[
    Path | None,
    typer.Option(
        "--tokenizer",
        help="tokenizer.json of the model, or the prep run directory of its data; default: the "
        "one in --model_dir, or GPT-2's for 50,257 ids.",
    ),
]
DeviceOption = Annotated[DeviceName, typer.Option("--device", help="What it computes on.")]
BatchSize = Annotated[int, typer.Option("--batch_size", min=1, help="Texts or rows at once.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]

EVALUATE_EXAMPLES = """\b
Examples:
  train evaluate out --data runs/web
  train evaluate out/checkpoints/step_0000200 --data runs/web --split test --json
  train evaluate out --data runs/web --reference-tokenizer gpt2
"""
LM_EVAL_EXAMPLES = """\b
Examples:
  train lm-eval --model_dir out --data-dir tasks --num_fewshot 0
  train lm-eval --model_dir out --data-dir tasks --tasks piqa,arc_easy --num_fewshot 5 --limit 100

\b
Needs the extra: pip install 'wafermill[eval]'. DATA_DIR/TASK/{train,validation,test}.jsonl
have the documents of a task: docs/evaluation.md.
"""
CROWS_PAIRS_EXAMPLES = """\b
Examples:
  train crows-pairs --model_dir out --data-file crows_pairs_anonymized.csv
"""


def evaluate(
    path: Annotated[Path, typer.Argument(help="Model directory (its last checkpoint) or one.")],
    data: Annotated[Path, typer.Option("--data", help="A prep run directory, or one of shards.")],
    split: Annotated[str, typer.Option("--split", help="validation, test, …")] = "validation",
    target: Annotated[TargetName, typer.Option("--target", help="As of `train`.")] = TargetName.CPU,
    batch_size: BatchSize = 8,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
    eval_steps: Annotated[
        int | None, typer.Option("--eval_steps", min=1, help="Batches; default: all.")
    ] = None,
    reference_tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--reference-tokenizer",
            help="gpt2 or a tokenizer.json: tell losses per token of this vocabulary too.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure a checkpoint's loss on a split of a run, overall and by source."""
    from trainer.evaluation.checkpoint_loss import Request, evaluate_checkpoint
    from trainer.evaluation.show import print_losses

    request = Request(
        path, data, split, target.value, batch_size, threads, eval_steps, reference_tokenizer
    )
    with one_line_errors():
        measured = evaluate_checkpoint(request, lambda line: print(line, file=sys.stderr))
    about = {
        "step": measured.step,
        "checkpoint_hash": measured.checkpoint_hash,
        "dataset_hash": measured.dataset_hash,
        "split": split,
    }
    if as_json:
        print(json.dumps(about | measured.evaluation.described()))
        return
    print(f"step {measured.step}, {split}: {measured.evaluation.samples:,} samples")
    print_losses(measured.evaluation)


def lm_eval(
    data_dir: Annotated[Path, typer.Option("--data-dir", help="Files of the tasks.")],
    model_dir: ModelDir = None,
    checkpoint: CheckpointDir = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Names with commas between; default: all seven.")
    ] = None,
    num_fewshot: Annotated[
        int, typer.Option("--num_fewshot", min=0, help="Examples in every prompt.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Documents of each task; default: all.")
    ] = None,
    batch_size: BatchSize = 8,
    tokenizer: ModelTokenizer = None,
    device: DeviceOption = DeviceName.cpu,
    as_json: AsJson = False,
) -> None:
    """Run lm-eval's tasks from local files."""
    from trainer.evaluation import lm_eval_tasks
    from trainer.evaluation.loaded import find_checkpoint, load_model, tokenizer_for
    from trainer.evaluation.show import print_scores

    with one_line_errors():
        names = lm_eval_tasks.names(tasks) if tasks else tuple(lm_eval_tasks.TASKS)
        wanted = lm_eval_tasks.Wanted(names, data_dir, num_fewshot, limit, batch_size)
        found = find_checkpoint(place_of(model_dir, checkpoint))
        vocabulary = tokenizer_for(tokenizer, found)
        results = lm_eval_tasks.run_tasks(load_model(found, device.value), vocabulary, wanted)
    mean = lm_eval_tasks.mean_accuracy(results)
    if as_json:
        about = {"step": found.step, "checkpoint_hash": found.hash, "num_fewshot": num_fewshot}
        print(json.dumps(about | {"limit": limit, "results": results, "mean_acc": mean}))
        return
    print_scores(results)
    if mean is not None:
        print(f"mean acc of {len(results)} tasks, {num_fewshot} examples in a prompt: {mean:.4f}")


def crows_pairs(
    data_file: Annotated[
        Path, typer.Option("--data-file", help="crows_pairs_anonymized.csv, or .jsonl.")
    ],
    model_dir: ModelDir = None,
    checkpoint: CheckpointDir = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="First so many pairs.")
    ] = None,
    batch_size: BatchSize = 8,
    tokenizer: ModelTokenizer = None,
    device: DeviceOption = DeviceName.cpu,
    as_json: AsJson = False,
) -> None:
    """Measure bias by CrowS-Pairs, overall and in nine categories."""
    from trainer.evaluation.crows_pairs import measure, read_pairs
    from trainer.evaluation.loaded import find_checkpoint, load_model, tokenizer_for
    from trainer.evaluation.sentences import likelihoods
    from trainer.evaluation.show import print_scores

    with one_line_errors():
        pairs = read_pairs(data_file, limit)
        found = find_checkpoint(place_of(model_dir, checkpoint))
        vocabulary = tokenizer_for(tokenizer, found)
        loaded = load_model(found, device.value)
        biases = measure(pairs, lambda texts: likelihoods(loaded, vocabulary, texts, batch_size))
    results = {name: dataclasses.asdict(bias) for name, bias in biases.items()}
    if as_json:
        about = {"step": found.step, "checkpoint_hash": found.hash}
        print(json.dumps(about | {"results": results}))
        return
    print_scores(results)


def place_of(model_dir: Path | None, checkpoint: Path | None) -> Path:
    """The one of both that is given. Raises ConfigError."""
    place = checkpoint or model_dir
    if place is None or (checkpoint is not None and model_dir is not None):
        raise ConfigError("give --model_dir DIR or --checkpoint DIR")
    return place


@contextmanager
def one_line_errors() -> Iterator[None]:
    """An error is one line on stderr and its exit code."""
    try:
        with as_prep_errors():
            yield
    except PrepError as error:
        print(f"error: {printable(str(error), 2000)}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from error


def register(app: typer.Typer) -> None:
    """Add the commands to the `train` app."""
    for name, command, examples in (
        ("evaluate", evaluate, EVALUATE_EXAMPLES),
        ("lm-eval", lm_eval, LM_EVAL_EXAMPLES),
        ("crows-pairs", crows_pairs, CROWS_PAIRS_EXAMPLES),
    ):
        app.command(name=name, epilog=examples, context_settings=HELP)(command)
