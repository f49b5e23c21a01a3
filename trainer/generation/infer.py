"""`--mode infer`: a checkpoint continues prompts, greedily, several at once, into
MODEL_DIR/predictions.

Shapes: B texts that are continued, N columns of a pass, V vocabulary.
"""

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
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
from trainer.generation.loaded import LoadedModel, load_model, read_model_config, tokenizer_for
from trainer.generation.text import Prompt, PromptReader, decode_ids
from trainer.model.attention import KVCache
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
    tokens (None: no such limit), or that prompt and continuation fill the MSL."""

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
    """The continuation of every prompt, chosen among the first `ids` of the vocabulary; of equally
    likely ids the lowest.

    A prompt has at least one token and fewer than the MSL. Other prompts beside it change the
    logits of a text in their last bits only.
    """
    length = loaded.config.max_position_embeddings
    longest = max(map(len, prompts))
    pads = [longest - len(prompt) for prompt in prompts]
    columns = longest + max(_room(prompt, ending, length) for prompt in prompts)
    cache = KVCache.empty(loaded.config, pads, columns, loaded.device)
    new = [[_PAD] * n + list(prompt) for n, prompt in zip(pads, prompts, strict=True)]
    made: list[list[int]] = [[] for _ in prompts]
    found: dict[int, Continuation] = {}
    going = list(range(len(prompts)))
    while going:
        for text, token in zip(going, _likeliest(loaded, new, cache, ids), strict=True):
            made[text].append(token)
            ended = _ended(made[text], len(prompts[text]), ending, length)
            if ended is not None:
                found[text] = ended
        left = [place for place, text in enumerate(going) if text not in found]
        if left and len(left) < len(going):
            cache = cache.only(left)
        going = [going[place] for place in left]
        new = [made[text][-1:] for text in going]
    return [found[text] for text in range(len(prompts))]


def _room(prompt: Sequence[int], ending: Ending, length: int) -> int:
    """Tokens that may follow."""
    room = length - len(prompt)
    return room if ending.max_tokens is None else min(room, ending.max_tokens)


def _likeliest(
    loaded: LoadedModel, new_BN: Sequence[Sequence[int]], cache: KVCache, ids: int
) -> list[int]:
    with torch.inference_mode():
        logits_BV = loaded.model.next_logits(torch.tensor(new_BN, device=loaded.device), cache)
    chosen: list[int] = logits_BV[:, :ids].cpu().numpy().argmax(axis=1).tolist()
    return chosen


def _ended(made: list[int], prompt: int, ending: Ending, length: int) -> Continuation | None:
    """The continuation, when its last token ended it."""
    if made[-1] == ending.eos_id:
        return Continuation(tuple(made[:-1]), "eos")
    for word in ending.stop:
        if tuple(made[-len(word) :]) == word:
            return Continuation(tuple(made[: -len(word)]), "stop")
    if len(made) == ending.max_tokens:
        return Continuation(tuple(made), "max_tokens")
    return Continuation(tuple(made), "msl") if prompt + len(made) == length else None


DIRECTORY = "predictions"


@dataclass
class InferenceTally:
    """What was written: tokens, and continuations by what ended them."""

    tokens: int = 0
    ended: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, kw_only=True)
class Inference:
    """A checkpoint, the prompts it goes on from, and how. `log_steps`: batches between lines."""

    found: Checkpoint
    tokenizer: TokenizerDefinition
    prompts: list[Prompt]
    section: InferenceInput
    target: Target
    device: str
    threads: int
    log_steps: int

    def run(self, model_dir: Path, say: Say, between_batches: Callable[[], None]) -> Path:
        """Write MODEL_DIR/predictions/step_X.jsonl, a line for each prompt, in their order; its
        path. Nothing is there before all lines are. `between_batches` may raise to give up.

        Raises ResourceError when it cannot be written.
        """
        torch.set_num_threads(self.threads)
        path = model_dir / DIRECTORY / f"step_{self.found.step:07d}.jsonl"
        loaded = load_model(self.found, self.device)
        say(f"Loaded checkpoint {self.found.path} (step {self.found.step})")
        started, tally = time.monotonic(), InferenceTally()
        storage.publish(path, self._lines(loaded, tally, say, between_batches))
        ended = ", ".join(f"{reason} {count:,}" for reason, count in sorted(tally.ended.items()))
        say(f"Predictions: {path}: {pluralise(tally.tokens, 'token')}; ended by {ended}")
        seconds = time.monotonic() - started
        say(f"Processed {len(self.prompts)} inference sample(s) in {seconds:.2f} seconds.")
        return path

    def _lines(
        self,
        loaded: LoadedModel,
        tally: InferenceTally,
        say: Say,
        between_batches: Callable[[], None],
    ) -> Iterator[bytes]:
        rate, ids = Rate(), self.tokenizer.vocab_size
        count, size = len(self.prompts), self.section.batch_size
        for step, first in enumerate(range(0, count, size), 1):
            between_batches()
            batch = self.prompts[first : first + size]
            console.doing(f"prompt {first + 1:,} of {count:,}")
            started = time.monotonic()
            rows = [prompt.ids for prompt in batch]
            made = continue_greedily(loaded, rows, self._ending, ids=ids)
            rate.add(len(batch), time.monotonic() - started)
            for prompt, continuation in zip(batch, made, strict=True):
                tally.tokens += len(continuation.ids)
                tally.ended[continuation.ended] += 1
                yield self._line(prompt, continuation)
            if step % self.log_steps == 0 or rate.samples == count:
                say(
                    f"| Infer Device={self.target}, Step={step}, Prompts={rate.samples} of "
                    f"{count}, Rate={rate.overall:.2f} samples/sec"
                )

    @property
    def _ending(self) -> Ending:
        return Ending(self.tokenizer.eos_id, self.section.stop_sequences, self.section.max_tokens)

    def _line(self, prompt: Prompt, made: Continuation) -> bytes:
        line = {
            "file": prompt.file.name,
            prompt.unit: prompt.number,
            "prompt": prompt.text,
            "continuation": decode_ids(self.tokenizer, made.ids),
            "tokens": made.ids,
            "ended": made.ended,
        }
        return json.dumps(line).encode() + b"\n"


def prepare_inference(
    params: Params, directories: DataDirectories, found: Checkpoint, target: Target
) -> Inference:
    """What the params ask for, checked; nothing is computed.

    Raises ConfigError where nothing names prompts, or keys, tokenizer and model do not fit;
    InputError for a prompt that cannot be read or is too long.
    """
    section = params.inference_input or InferenceInput()
    place = _place(section, directories)
    tokenizer = _tokenizer(directories, found)
    model = read_model_config(found)
    for token in (token for word in section.stop_sequences for token in word):
        if token >= model.vocab_size:
            raise ConfigError(
                f"inference_input.stop_sequences: there is no token {token:,} in a vocabulary of "
                f"{model.vocab_size:,}"
            )
    return Inference(
        found=found,
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


def _tokenizer(directories: DataDirectories, found: Checkpoint) -> TokenizerDefinition:
    """That of `--data`, which must be the model's, else the one beside the model, else GPT-2's."""
    run = directories.run
    if run is None or not (run / layout.TOKENIZER).is_file():
        return tokenizer_for(
            None, found, hint="give --data RUN, the prep run that its data comes from"
        )
    tokenizer, vocabulary = tokenizer_for(run, found), read_model_config(found).vocab_size
    if tokenizer.vocab_size != vocabulary:
        raise ConfigError(
            f"--data {run}: its tokenizer has {tokenizer.vocab_size:,} ids, but model.vocab_size "
            f"of {found.path} is {vocabulary:,}; give the run that the model was trained on"
        )
    return tokenizer
