"""`--mode infer`: a checkpoint continues prompts, greedily, several at once, into
MODEL_DIR/predictions.

Shapes: B texts that are continued, N columns of a pass, V vocabulary.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from pipeline.core import storage
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.runs import layout
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.config import InferenceInput, Params
from trainer.data.prepare import DataDirectories
from trainer.generation.loaded import (
    LoadedModel,
    check_decodes,
    load_model,
    read_model_config,
    tokenizer_for,
)
from trainer.generation.text import Prompt, PromptReader, decode_ids
from trainer.model.forward_pass import KVCache
from trainer.runs import console
from trainer.runs.checkpoint import Checkpoint
from trainer.runs.console import Rate, Say
from wafer_backend.compiled import Target

_PAD = 0
"""The id of pads, which nothing sees."""
Ended = Literal["eos", "stop", "max_tokens", "msl"]


@dataclass(frozen=True)
class Ending:
    """What ends a continuation: `eos_id`, one of the sequences of ids in `stop`, `max_tokens`
    tokens (None: no limit), or a full MSL."""

    eos_id: int
    stop: tuple[tuple[int, ...], ...] = ()
    max_tokens: int | None = None


@dataclass(frozen=True)
class Continuation:
    """`ids`: what follows the prompt, without the EOS or the sequence that ended it."""

    ids: tuple[int, ...]
    ended: Ended


def continue_greedily(
    loaded: LoadedModel, prompts: Sequence[Sequence[int]], ending: Ending, *, ids: int
) -> list[Continuation]:
    """The continuation of every prompt, chosen among the first `ids` of the vocabulary, the
    lowest of equally likely ones. A prompt has at least one token and fewer than the MSL; others
    of the batch change its logits in their last bits."""
    length = loaded.config.max_position_embeddings
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    rooms = [min(length - len(prompt), ending.max_tokens or length) for prompt in prompts]
    columns = longest + max(rooms)
    cache = KVCache.empty(loaded.config, pads, columns, loaded.device)
    new = [[_PAD] * n + list(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    written: list[list[int]] = [[] for _ in prompts]
    ended_texts: dict[int, Continuation] = {}
    going = list(range(len(prompts)))
    while going:
        with torch.inference_mode():
            rows_BN = torch.tensor(new, device=loaded.device)
            logits_BV = loaded.model.next_logits(rows_BN, cache)[:, :ids].cpu().numpy()
        for text, token in zip(going, logits_BV.argmax(axis=1).tolist(), strict=True):
            written[text].append(token)
            ended = _ended(written[text], len(prompts[text]), ending, length)
            if ended is not None:
                ended_texts[text] = ended
        left = [place for place, text in enumerate(going) if text not in ended_texts]
        if left and len(left) < len(going):
            cache = cache.only(left)
        going = [going[place] for place in left]
        new = [written[text][-1:] for text in going]
    return [ended_texts[text] for text in range(len(prompts))]


def _ended(made: list[int], prompt: int, ending: Ending, length: int) -> Continuation | None:
    if made[-1] == ending.eos_id:
        return Continuation(tuple(made[:-1]), "eos")
    for word in ending.stop:
        if tuple(made[-len(word) :]) == word:
            return Continuation(tuple(made[: -len(word)]), "stop")
    if len(made) == ending.max_tokens:
        return Continuation(tuple(made), "max_tokens")
    return Continuation(tuple(made), "msl") if prompt + len(made) == length else None


DIRECTORY = "predictions"


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A checkpoint, the prompts that it continues, and how. `log_steps`: batches between lines."""

    checkpoint: Checkpoint
    tokenizer: TokenizerDefinition
    prompts: list[Prompt]
    section: InferenceInput
    target: Target
    device: str
    threads: int
    log_steps: int

    def run(self, model_dir: Path, say: Say, between_batches: Callable[[], None]) -> Path:
        """Write MODEL_DIR/predictions/step_X.jsonl, a line for each prompt, once all are there;
        returns its path. `between_batches` may raise to give up. Raises ResourceError."""
        torch.set_num_threads(self.threads)
        path = model_dir / DIRECTORY / f"step_{self.checkpoint.step:07d}.jsonl"
        loaded = load_model(self.checkpoint, self.device)
        say(f"Loaded checkpoint {self.checkpoint.path} (step {self.checkpoint.step})")
        started = time.monotonic()
        made: list[Continuation] = []
        storage.publish(path, self._lines(loaded, made, say, between_batches))
        counts = sorted(Counter(each.ended for each in made).items())
        tokens = pluralise(sum(len(each.ids) for each in made), "token")
        ended = ", ".join(f"{reason} {count:,}" for reason, count in counts)
        say(f"Predictions: {path}: {tokens}; ended by {ended}")
        seconds = time.monotonic() - started
        say(f"Processed {len(self.prompts)} inference sample(s) in {seconds:.2f} seconds.")
        return path

    def _lines(
        self,
        loaded: LoadedModel,
        done: list[Continuation],
        say: Say,
        between_batches: Callable[[], None],
    ) -> Iterator[bytes]:
        rate, ids, section = Rate(), self.tokenizer.vocab_size, self.section
        ending = Ending(self.tokenizer.eos_id, section.stop_sequences, section.max_tokens)
        count, size = len(self.prompts), section.batch_size
        for step, first in enumerate(range(0, count, size), 1):
            between_batches()
            batch = self.prompts[first : first + size]
            console.doing(f"prompt {first + 1:,} of {count:,}")
            started = time.monotonic()
            rows = [prompt.ids for prompt in batch]
            made = continue_greedily(loaded, rows, ending, ids=ids)
            rate.add(len(batch), time.monotonic() - started)
            for prompt, continuation in zip(batch, made, strict=True):
                done.append(continuation)
                line = {
                    "file": prompt.file.name,
                    prompt.unit: prompt.number,
                    "prompt": prompt.text,
                    "continuation": decode_ids(self.tokenizer, continuation.ids),
                    "tokens": continuation.ids,
                    "ended": continuation.ended,
                }
                yield json.dumps(line).encode() + b"\n"
            if step % self.log_steps == 0 or rate.samples == count:
                say(
                    f"| Infer Device={self.target}, Step={step}, Prompts={rate.samples} of "
                    f"{count}, Rate={rate.overall:.2f} samples/sec"
                )


def prepare_inference(
    params: Params, directories: DataDirectories, saved: Checkpoint, target: Target
) -> Inference:
    """What the params ask for, checked. Raises ConfigError for an encoder, where nothing names
    prompts, or keys, tokenizer and model do not fit; InputError for a prompt that cannot be read or
    is too long."""
    check_decodes(params.model, saved.path)
    section = params.inference_input or InferenceInput()
    place = _place(section, directories)
    tokenizer = _tokenizer(directories, saved)
    model = read_model_config(saved)
    for token in (token for word in section.stop_sequences for token in word):
        if token >= model.vocab_size:
            raise ConfigError(
                f"inference_input.stop_sequences: there is no token {token:,} in a vocabulary of "
                f"{model.vocab_size:,}"
            )
    return Inference(
        checkpoint=saved,
        tokenizer=tokenizer,
        prompts=PromptReader(tokenizer, model, section).read(place),
        section=section,
        target=target,
        device="cuda" if target == "GPU" else params.runconfig.device,
        threads=params.runconfig.threads,
        log_steps=params.runconfig.log_steps,
    )


def _place(section: InferenceInput, directories: DataDirectories) -> Path:
    if section.data_dir is not None:
        return section.data_dir
    if directories.run is None:
        raise ConfigError(
            "no prompts: set inference_input.data_dir in the params file (.jsonl, .txt, or a "
            "directory of .h5), or give --data RUN for the rows of its validation data"
        )
    if directories.validation is None:
        raise InputError(
            f"--data {directories.run}: there is no hdf5/validation to take prompts from; set "
            "inference_input.data_dir"
        )
    return directories.validation


def _tokenizer(directories: DataDirectories, saved: Checkpoint) -> TokenizerDefinition:
    """That of `--data`, which must be the model's, else the one beside the model, else GPT-2's."""
    run = directories.run
    if run is None or not (run / layout.TOKENIZER).is_file():
        return tokenizer_for(
            None, saved, hint="give --data RUN, the prep run that its data comes from"
        )
    tokenizer, vocabulary = tokenizer_for(run, saved), read_model_config(saved).vocab_size
    if tokenizer.vocab_size != vocabulary:
        raise ConfigError(
            f"--data {run}: its tokenizer has {tokenizer.vocab_size:,} ids, but model.vocab_size "
            f"of {saved.path} is {vocabulary:,}; give the run that the model was trained on"
        )
    return tokenizer
