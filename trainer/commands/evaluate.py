"""`train evaluate`, `train lm-eval` and `train crows-pairs`: parse, call, print; no logic."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.core.words import pluralise
from trainer.commands import options
from trainer.commands.options import one_line_errors, read_model

if TYPE_CHECKING:
    from trainer.generation.loaded import LoadedModel

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
Needs the extra: pip install 'wafermill[eval]'. Nothing is downloaded: DATA_DIR/TASK/SPLIT.jsonl
holds the documents of a task, one JSON object per line, with the fields of its data set:
  hellaswag       validation  activity_label, ctx_a, ctx_b, endings, label
  piqa            validation  goal, sol1, sol2, label
  winogrande      validation  sentence, option1, option2, answer
  lambada_openai  test        text
  arc_easy        test        question, choices {text, label}, answerKey
  arc_challenge   test        question, choices {text, label}, answerKey
  openbookqa      test        question_stem, choices {text, label}, answerKey
The examples of --num_fewshot are taken from train.jsonl. How to get the files: docs/evaluation.md.
"""
CROWS_PAIRS_EXAMPLES = """\b
Examples:
  train crows-pairs --model_dir out --data-file crows_pairs_anonymized.csv
"""


def evaluate(
    path: Annotated[
        Path, typer.Argument(help="A checkpoint, or a model directory for its last one.")
    ],
    data: Annotated[
        Path, typer.Option("--data", help="A prep run directory, or a directory of shards.")
    ],
    split: Annotated[
        str, typer.Option("--split", help="Split to measure, such as validation or test.")
    ] = "validation",
    target: Annotated[
        options.TargetName, typer.Option("--target", help="Where to run, as for `train`.")
    ] = "CPU",
    batch_size: options.BatchSize = 8,
    threads: Annotated[int, typer.Option("--threads", min=1, help="CPU threads.")] = 1,
    eval_steps: Annotated[
        int | None, typer.Option("--eval_steps", min=1, help="Number of batches; default: all.")
    ] = None,
    reference_tokenizer: Annotated[
        Path | None,
        typer.Option(
            "--reference-tokenizer",
            help="gpt2 or a tokenizer.json: also report the loss per token of this tokenizer.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a checkpoint's loss on a split of a run, overall and by source."""
    from trainer.evaluation.checkpoint_loss import LossOptions, evaluate_checkpoint, print_losses

    request = LossOptions(
        path=path,
        data=data,
        split=split,
        target=target,
        batch_size=batch_size,
        threads=threads,
        eval_steps=eval_steps,
        reference_tokenizer=reference_tokenizer,
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
    print(f"step {measured.step}, {split}: {pluralise(measured.evaluation.samples, 'sample')}")
    print_losses(measured.evaluation)


def lm_eval(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", help="Directory of the files TASK/SPLIT.jsonl.")
    ],
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    tasks: Annotated[
        str | None, typer.Option("--tasks", help="Tasks, separated by commas; default: all seven.")
    ] = None,
    num_fewshot: Annotated[
        int, typer.Option("--num_fewshot", min=0, help="Examples in each prompt.")
    ] = 0,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Documents per task; default: all.")
    ] = None,
    batch_size: options.BatchSize = 8,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Run tasks of lm-eval on local files."""
    from trainer.evaluation import lm_eval_tasks
    from trainer.evaluation.checkpoint_loss import print_scores

    with one_line_errors():
        names = lm_eval_tasks.parse_task_names(tasks)
        wanted = lm_eval_tasks.TaskOptions(names, data_dir, num_fewshot, limit, batch_size)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device)
        results = lm_eval_tasks.run_tasks(
            loaded, vocabulary, wanted, lambda line: print(line, file=sys.stderr)
        )
    mean = lm_eval_tasks.mean_accuracy(results)
    if as_json:
        about = _identity(loaded) | {"num_fewshot": num_fewshot, "limit": limit}
        described = {name: scores.described() for name, scores in results.items()}
        print(json.dumps(about | {"results": described, "mean_acc": mean}))
        return
    print_scores({name: scores.numbers() for name, scores in results.items()})
    print(
        f"mean acc of {pluralise(len(results), 'task')}, {pluralise(num_fewshot, 'example')} per "
        f"prompt: {mean:.4f}"
    )


def crows_pairs(
    data_file: Annotated[
        Path, typer.Option("--data-file", help="crows_pairs_anonymized.csv, or a .jsonl file.")
    ],
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Use only the first N pairs.")
    ] = None,
    batch_size: options.BatchSize = 8,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Measure bias with CrowS-Pairs, overall and in nine categories."""
    from trainer.evaluation.checkpoint_loss import print_scores
    from trainer.evaluation.scoring import likelihoods, measure_bias, read_pairs

    with one_line_errors():
        pairs = read_pairs(data_file, limit)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device)
        biases = measure_bias(
            pairs, lambda texts: likelihoods(loaded, vocabulary, texts, batch_size)
        )
    results = {name: dataclasses.asdict(bias) for name, bias in biases.items()}
    if as_json:
        print(json.dumps(_identity(loaded) | {"results": results}))
        return
    print_scores(results)


def _identity(model: "LoadedModel") -> dict[str, Any]:
    return {"step": model.checkpoint.step, "checkpoint_hash": model.checkpoint.hash}


def register(app: typer.Typer) -> None:
    """Add the commands to the `train` app."""
    for name, command, examples in (
        ("evaluate", evaluate, EVALUATE_EXAMPLES),
        ("lm-eval", lm_eval, LM_EVAL_EXAMPLES),
        ("crows-pairs", crows_pairs, CROWS_PAIRS_EXAMPLES),
    ):
        app.command(name=name, epilog=examples)(command)
