"""The `train generate` command: parses, calls, prints; no logic."""

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from pipeline.core.errors import ConfigError, InputError
from trainer.commands import options
from trainer.commands.options import one_line_errors, read_model


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
    """
    from trainer.generation.text import GenerationOptions, Sampling, escape_for_terminal
    from trainer.generation.text import generate_text as run

    with one_line_errors():
        wish = GenerationOptions(max_new_tokens, Sampling(temperature, top_k, top_p), seed)
        text = _prompt(prompt, prompt_file)
        loaded, vocabulary = read_model(model_dir, checkpoint, tokenizer, device)
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


def register(app: typer.Typer) -> None:
    """Add `train generate` to the `train` app."""
    options.describe_command(app, generate)
