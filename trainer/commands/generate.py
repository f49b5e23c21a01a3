"""The `train generate` command: parses, calls, prints; no logic."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError, InputError
from trainer.commands import options
from trainer.commands.options import one_line_errors, read_model

EXAMPLES = """\b
Examples:
  train generate --model_dir out --prompt "Once upon a time" --temperature 0.8 --top-p 0.95
  train generate --checkpoint out/checkpoints/step_0000200 --tokenizer runs/web \\
      --prompt-file prompt.txt --temperature 0 --max-new-tokens 50

\b
The same command writes the same text. With temperature 0 the likeliest token is always taken.
"""


def generate(
    model_dir: options.TrainedModelDir = None,
    checkpoint: options.CheckpointDir = None,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Text to continue; empty: start a new document.")
    ] = None,
    prompt_file: Annotated[
        Path | None,
        typer.Option(
            "--prompt-file", help="File with the prompt; a newline at its end is removed."
        ),
    ] = None,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, help="Most tokens to write.")
    ] = 128,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Randomness; 0 always takes the likeliest token.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", help="Choose among the K likeliest tokens only.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p", help="Choose among the likeliest tokens that together have probability P."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", min=0, help="Seed of the random choices.")] = 0,
    tokenizer: options.ModelTokenizer = None,
    device: options.DeviceOption = "cpu",
    as_json: options.AsJson = False,
) -> None:
    """Continue a prompt with a trained model."""
    from trainer.generation.text import GenerationOptions, Sampling, escape_for_terminal
    from trainer.generation.text import generate_text as run

    with one_line_errors():
        wish = GenerationOptions(max_new_tokens, Sampling(temperature, top_k, top_p), seed)
        text = _prompt(prompt, prompt_file)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device)
        made = run(loaded, vocabulary, text, wish)
    if as_json:
        found = loaded.checkpoint
        about = {"checkpoint": str(found.path), "step": found.step, "prompt": text, "seed": seed}
        print(json.dumps(about | dataclasses.asdict(made)))
    else:
        print(escape_for_terminal(text + made.text))


def _prompt(prompt: str | None, file: Path | None) -> str:
    if (prompt is None) == (file is None):
        raise ConfigError("give --prompt TEXT or --prompt-file FILE")
    if file is None:
        return prompt or ""
    try:
        return file.read_bytes().decode("utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--prompt-file {file}: cannot be read as UTF-8 text: {error}") from error


def register(app: typer.Typer) -> None:
    """Add `train generate` to the `train` app."""
    app.command(name="generate", epilog=EXAMPLES)(generate)
