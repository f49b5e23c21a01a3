"""`train generate`, `train evaluate`, `train lm-eval` and `train crows-pairs`, which use a trained
model: parse, call, print; no logic.
"""

import dataclasses
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from pipeline.commands import terminal
from pipeline.commands.options import Place
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from trainer.commands import options
from trainer.commands.options import one_line_errors, read_model

if TYPE_CHECKING:
    from trainer.evaluation.loss import Evaluation
    from trainer.generation.loaded import LoadedModel


def generate(
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    prompt: str | None = None,
    prompt_file: Path | None = None,
    max_new_tokens: options.Positive = 128,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Continue a prompt with a trained model.

    --prompt: Text to continue; empty: start a new document.
    --prompt-file: File with the prompt; a newline at its end is removed.
    --max-new-tokens: Most tokens to write.
    --temperature: Randomness; 0 always takes the likeliest token.
    --top-k: Choose among the K likeliest tokens only.
    --top-p: Choose among the likeliest tokens that together have probability P.
    --seed: Seed of the random choices.

    Examples:
      train generate --model_dir out --prompt "Once upon a time" --temperature 0.8 --top-p 0.95
      train generate --checkpoint out/checkpoints/step_0000200 --tokenizer runs/web \\
          --prompt-file prompt.txt --temperature 0 --max-new-tokens 50

    The same command writes the same text. With temperature 0 the likeliest token is always taken.
    An encoder with a decoder (T5) tells what is missing at <extra_id_0>, <extra_id_1>, ... of the
    prompt, or at its end.
    """
    from trainer.generation.text import GenerationOptions, Sampling, escape_for_terminal
    from trainer.generation.text import generate_text as run

    with one_line_errors():
        wish = GenerationOptions(max_new_tokens, Sampling(temperature, top_k, top_p), seed)
        text = _prompt(prompt, prompt_file)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device, tells_spans=True)
        generated = run(loaded, vocabulary, text, wish)
    if as_json:
        saved = loaded.checkpoint
        about = {"checkpoint": str(saved.path), "step": saved.step, "prompt": text, "seed": seed}
        print(json.dumps(about | dataclasses.asdict(generated)))
    else:
        print(escape_for_terminal(text + generated.text))


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ConfigError("give --prompt TEXT or --prompt-file FILE")
    if file is None:
        return prompt or ""
    try:
        return file.read_bytes().decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompt-file {file}: cannot be read as UTF-8 text: {error}") from error


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
    from trainer.evaluation.loss import LossOptions, evaluate_checkpoint

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


def print_losses(evaluation: "Evaluation") -> None:
    """One line a source, and one for all."""
    amounts = {**evaluation.per_source, "all": evaluation.total}
    has_bytes = evaluation.total.bits_per_byte is not None
    has_reference = evaluation.total.reference_loss is not None
    heads = ["source", "labels", "loss", "perplexity"] + ["bits/byte"] * has_bytes
    heads += ["reference tokens", "loss/reference token"] * has_reference
    rows = []
    for name, amount in amounts.items():
        row = [name, f"{amount.n_counted:,}", f"{amount.loss:.5f}", f"{amount.perplexity:.4g}"]
        row += [_number(amount.bits_per_byte)] * has_bytes
        if has_reference:
            row += [f"{amount.reference_tokens:,}", _number(amount.reference_loss)]
        rows.append(row)
    print_numbers(heads, rows)


def print_numbers(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Rows of text, which may come from data; all columns but the first are numbers."""
    table = Table(box=None, pad_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(terminal.format_cell, row))
    terminal.out.print(table)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.5f}"


def print_scores(results: Mapping[str, Mapping[str, float | int | None]]) -> None:
    """Name -> (column -> value), one line a name."""
    heads = list(dict.fromkeys(key for row in results.values() for key in row))
    rows = [[name, *(_cell(row.get(head)) for head in heads)] for name, row in results.items()]
    print_numbers(["", *heads], rows)


def _cell(value: float | int | None) -> str:
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:.4f}"


register = options.make_registration(generate, evaluate, lm_eval, crows_pairs)
