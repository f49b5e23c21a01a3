"""`train evaluate`, `train lm-eval` and `train crows-pairs`: parse, call, print; no logic."""

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pipeline.commands.options import Place
from pipeline.core.words import pluralise
from trainer.commands import options
from trainer.commands.options import one_line_errors, read_model

if TYPE_CHECKING:
    from trainer.generation.loaded import LoadedModel


def evaluate(
    path: Path,
    data: Place,
    split: str = "validation",
    target: options.TargetName = "CPU",
    batch_size: options.BatchSize = 8,
    threads: options.Positive = 1,
    eval_steps: options.PositiveOrNone = None,
    reference_tokenizer: Path | None = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure a checkpoint's loss on a split of a run, overall and by source.

    PATH: A checkpoint, or a model directory for its last one.
    --data: A prep run directory, or a directory of shards, here or in a bucket.
    --split: Split to measure, such as validation or test.
    --target: Where to run, as for `train`.
    --threads: CPU threads.
    --eval_steps: Number of batches; default: all.
    --reference-tokenizer: gpt2 or a tokenizer.json: also report the loss per token of this
        tokenizer.

    Examples:
      train evaluate out --data runs/web
      train evaluate out/checkpoints/step_0000200 --data runs/web --split test --json
      train evaluate out --data runs/web --reference-tokenizer gpt2
    """
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
    data_dir: Path,
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    tasks: str | None = None,
    num_fewshot: Annotated[int, typer.Option(min=0)] = 0,
    limit: options.PositiveOrNone = None,
    batch_size: options.BatchSize = 8,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Run tasks of lm-eval on local files.

    --data-dir: Directory of the files TASK/SPLIT.jsonl.
    --tasks: Tasks, separated by commas; default: all seven.
    --num_fewshot: Examples in each prompt.
    --limit: Documents per task; default: all.

    Examples:
      train lm-eval --model_dir out --data-dir tasks --num_fewshot 0
      train lm-eval --model_dir out --data-dir tasks --tasks piqa,arc_easy --num_fewshot 5 --limit 100

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
    """  # noqa: E501 - as the help shows it
    from trainer.evaluation import lm_eval_tasks
    from trainer.evaluation.checkpoint_loss import print_scores

    with one_line_errors():
        names = lm_eval_tasks.parse_task_names(tasks)
        request = lm_eval_tasks.TaskOptions(names, data_dir, num_fewshot, limit, batch_size)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device)
        results = lm_eval_tasks.run_tasks(
            loaded, vocabulary, request, lambda line: print(line, file=sys.stderr)
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
    data_file: Path,
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    limit: options.PositiveOrNone = None,
    batch_size: options.BatchSize = 8,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Measure bias with CrowS-Pairs, overall and in nine categories.

    --data-file: crows_pairs_anonymized.csv, or a .jsonl file.
    --limit: Use only the first N pairs.

    Examples:
      train crows-pairs --model_dir out --data-file crows_pairs_anonymized.csv
    """
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
    for command in (evaluate, lm_eval, crows_pairs):
        options.describe_command(app, command, command.__name__.replace("_", "-"))
