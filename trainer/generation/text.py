"""Prompts, and text that continues them: tokens one after the other, each chosen from its logits in
float64.

The prompts of `--mode infer` are lines of text, or rows of HDF5 files.

Shapes: N rows, S tokens, C channels (3, of VSL 5), V vocabulary.
"""

import functools
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from dedup.arrays import F64
from pipeline.core import rng
from pipeline.core.errors import ConfigError, InputError, escape_text
from pipeline.core.words import pluralise
from pipeline.hdf5.foreign.dataset import open_any
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, SHARD_SUFFIX, VSL, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.shard_file import ShardFile
from pipeline.tokenizers.definition import TokenizerDefinition, decode_bytes, reference_tokenizer
from trainer.config import InferenceInput, ModelConfig
from trainer.generation.loaded import LoadedModel, check_decodes
from trainer.generation.spans import Sentinels
from trainer.model.forward_pass import KVCache


@dataclass(frozen=True)
class Sampling:
    """`top_k`: only that many likeliest tokens; `top_p`: only the likeliest tokens that together
    have this probability; `temperature` 0: the likeliest. Raises ConfigError for values that
    cannot be meant."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise ConfigError(f"--temperature {self.temperature}: expected a number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise ConfigError(f"--top-k {self.top_k}: expected an integer of at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"--top-p {self.top_p}: expected a number above 0 and at most 1")


def choose_token(logits_V: F64, sampling: Sampling, uniform: float) -> int:
    """The id that `uniform`, in [0, 1), stands for; of equally likely ids lower ones come first.

    >>> choose_token(np.log([0.2, 0.5, 0.3]), Sampling(temperature=0), uniform=0.99)
    1
    >>> [choose_token(np.log([0.2, 0.5, 0.3]), Sampling(), u) for u in (0.49, 0.51, 0.81)]
    [1, 2, 0]
    """
    if sampling.temperature == 0:
        return int(logits_V.argmax())
    ids = np.argsort(-logits_V, kind="stable")[: sampling.top_k]
    with np.errstate(over="ignore"):  # at a tiny temperature others are -inf, and weigh nothing
        weight = np.exp((logits_V[ids] - logits_V[ids[0]]) / sampling.temperature)
    share = np.cumsum(weight) / weight.sum()
    if sampling.top_p is not None:
        kept = int(np.searchsorted(share, sampling.top_p)) + 1
        share = share[:kept] / share[min(kept, len(share)) - 1]
    place = int(np.searchsorted(share, uniform, side="right"))
    return int(ids[min(place, len(share) - 1)])


def continuation(
    loaded: LoadedModel,
    prompt: Sequence[int],
    sampling: Sampling,
    *,
    seed: int,
    ids: int,
) -> Iterator[int]:
    """The ids that follow `prompt` (one token at least), without end, of the first `ids` of the
    vocabulary. Token n is a function of the model, the prompt, `sampling`, `seed` and n alone."""
    seen = loaded.config.max_position_embeddings
    context, cache = list(prompt), _empty_cache(loaded)
    while True:
        uniform = float(rng.generator(seed, "generate", len(context) - len(prompt)).random())
        new = context[cache.filled :]
        if len(context) > seen:  # every token moves by a position: nothing of a cache holds
            new, cache = context[-seen:], _empty_cache(loaded)
        with torch.inference_mode():
            rows = torch.tensor([new], device=loaded.device)
            logits_V = loaded.model.next_logits(rows, cache)[0, :ids]
        token = choose_token(logits_V.cpu().numpy().astype(np.float64), sampling, uniform)
        context.append(token)
        yield token


def tell_spans(
    loaded: LoadedModel, read: Sequence[int], start: int, sampling: Sampling, *, seed: int
) -> Iterator[int]:
    """The ids that a decoder tells of those that its encoder reads, without end, behind `start`.
    Token n is a function of the model, `read`, `sampling`, `seed` and n alone."""
    told = [start]
    with torch.inference_mode():
        encoded = loaded.model.encode(torch.tensor([list(read)], device=loaded.device))
    while True:
        uniform = float(rng.generator(seed, "generate", len(told) - 1).random())
        with torch.inference_mode():
            rows = torch.tensor([told], device=loaded.device)
            logits_V = loaded.model.told_logits(encoded, rows)[0]
        told.append(choose_token(logits_V.cpu().numpy().astype(np.float64), sampling, uniform))
        yield told[-1]


def _empty_cache(loaded: LoadedModel) -> KVCache:
    config = loaded.config
    return KVCache.empty(config, [0], config.max_position_embeddings, loaded.device)


@dataclass(frozen=True)
class GenerationOptions:
    """How to continue. `max_new_tokens`: tokens at most; `stop`: strings that end the text
    before themselves."""

    max_new_tokens: int = 128
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class GeneratedText:
    """`text`: what follows the prompt; `ids`: its tokens, EOS left out; `ended`: by `eos`, by a
    `stop` string, or by its `length`."""

    text: str
    ids: tuple[int, ...]
    ended: str


def generate_text(
    loaded: LoadedModel, tokenizer: TokenizerDefinition, prompt: str, wish: GenerationOptions
) -> GeneratedText:
    """Continue `prompt`, or start a document where it is empty; an encoder with a decoder tells the
    spans that are missing in it, each behind its sentinel. Raises ConfigError for an encoder."""
    config = loaded.config
    if config.decoder_num_hidden_layers is not None:
        sentinels = Sentinels.of(tokenizer, config)
        read = [*_encode_pieces(tokenizer, sentinels.cut(prompt)), tokenizer.eos_id]
        first = tokenizer.decoder_start_id
        tokens = tell_spans(loaded, read, first, wish.sampling, seed=wish.seed)
        return _collected(
            tokens, lambda ids: _decode_spans(tokenizer, sentinels, ids), tokenizer, wish
        )
    check_decodes(config, loaded.checkpoint.path)
    start = begin_text(tokenizer, encode_text(tokenizer, prompt))
    tokens = continuation(loaded, start, wish.sampling, seed=wish.seed, ids=tokenizer.vocab_size)
    return _collected(tokens, functools.partial(decode_ids, tokenizer), tokenizer, wish)


def _collected(
    tokens: Iterator[int],
    decode: Callable[[Sequence[int]], str],
    tokenizer: TokenizerDefinition,
    wish: GenerationOptions,
) -> GeneratedText:
    """Tokens up to the first end of any kind."""
    ids: list[int] = []
    for token in itertools.islice(tokens, wish.max_new_tokens):
        if token == tokenizer.eos_id:
            return GeneratedText(decode(ids), tuple(ids), "eos")
        ids.append(token)
        if wish.stop:
            text = decode(ids)
            places = [text.find(word) for word in wish.stop if word in text]
            if places:
                return GeneratedText(text[: min(places)], tuple(ids), "stop")
    return GeneratedText(decode(ids), tuple(ids), "length")


def _encode_pieces(tokenizer: TokenizerDefinition, pieces: Sequence[str | int]) -> list[int]:
    encoded = [[p] if isinstance(p, int) else encode_text(tokenizer, p) for p in pieces]
    return list(itertools.chain.from_iterable(encoded))


def _decode_spans(tokenizer: TokenizerDefinition, sentinels: Sentinels, ids: Sequence[int]) -> str:
    known = range(tokenizer.vocab_size)
    pieces = sentinels.named(ids)
    return "".join(
        piece if isinstance(piece, str) else decode_ids(tokenizer, [i for i in piece if i in known])
        for piece in pieces
    )


def encode_text(tokenizer: TokenizerDefinition, text: str) -> list[int]:
    """Token ids of a text; strings of special tokens are text."""
    return list(_encoder(tokenizer).encode(text, add_special_tokens=False).ids)


def begin_text(tokenizer: TokenizerDefinition, ids: Sequence[int]) -> list[int]:
    """The ids of a text as those of a document that begins with it: behind the BOS; without one, no
    ids are those of an EOS, which is before every document."""
    if tokenizer.bos_id is not None:
        return [tokenizer.bos_id, *ids]
    return [*ids] or [tokenizer.eos_id]


def decode_ids(tokenizer: TokenizerDefinition, ids: Sequence[int]) -> str:
    """The text of ids; a character that is cut at an end shows as U+FFFD."""
    return decode_bytes(tokenizer, np.array(ids, np.int64)).decode(errors="replace")


_encoder = functools.lru_cache(maxsize=4)(reference_tokenizer)


def escape_for_terminal(text: str) -> str:
    r"""Text of a model as a terminal may show it: lines and tabs stay, all else that is not
    printable is escaped.

    >>> escape_for_terminal("a" + chr(27) + "[2J\n\tb")
    'a\\x1b[2J\n\tb'
    """
    return "".join(c if c in "\n\t" else escape_text(c, 1) for c in text)


_SPAN = VSL_FEATURES.index("attention_span")
_BLOCK = 256
"""Rows read at once."""


@dataclass(frozen=True)
class Prompt:
    """`text` and its `ids`, one at least: EOS where the prompt is empty. `number`: 1-based line
    or 0-based row of `file`, as `unit` says."""

    text: str
    ids: tuple[int, ...]
    file: Path
    unit: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}, {self.unit} {self.number}"


@dataclass(frozen=True)
class PromptReader:
    """Reads prompts for a model with a tokenizer."""

    tokenizer: TokenizerDefinition
    model: ModelConfig
    section: InferenceInput

    def read(self, place: Path) -> list[Prompt]:
        """All prompts of a `.jsonl` or `.txt` file, a data set, or a directory of other .h5
        files. Raises ConfigError for a missing key, InputError for what is no prompt or fills
        the MSL."""
        prompts = list(self._found(place))
        if not prompts:
            raise InputError(f"{place}: no prompts")
        for prompt in prompts:
            if len(prompt.ids) >= self._length:
                raise InputError(
                    f"{prompt}: the prompt has {pluralise(len(prompt.ids), 'token')}, but the "
                    f"model reads at most {self._length:,}, including those it writes; shorten the "
                    f"prompt to {self._length - 1:,}"
                )
        return prompts

    def _found(self, place: Path) -> Iterator[Prompt]:
        if place.suffix in (".jsonl", ".txt"):
            yield from self._of_text(place)
        elif (place / DATA_PARAMS).is_file():
            yield from self._of_data_set(open_any(place, self._length, self.model.vocab_size))
        elif place.is_dir() and (files := sorted(place.glob(f"*{SHARD_SUFFIX}"))):
            for file in files:
                yield from self._of_prompt_rows(file)
        else:
            raise InputError(
                f"{place}: no prompts: expected a .jsonl or .txt file, or a directory with "
                f"{SHARD_SUFFIX} files"
            )

    @property
    def _length(self) -> int:
        return self.model.max_position_embeddings

    def _of_text(self, file: Path) -> Iterator[Prompt]:
        try:
            lines = file.read_bytes().decode("utf-8").removesuffix("\n").split("\n")
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"{file}: cannot be read as UTF-8 text: {error}") from error
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            text = line.removesuffix("\r")
            if file.suffix == ".jsonl":
                try:
                    value = json.loads(line)
                except (ValueError, RecursionError) as error:
                    raise InputError(f"{file}, line {number}: not JSON: {error}") from error
                prompt = value.get("prompt") if isinstance(value, dict) else None
                # JSON can hold halves of surrogate pairs, which UTF-8 has not.
                if not isinstance(prompt, str) or any(0xD800 <= ord(c) < 0xE000 for c in prompt):
                    raise InputError(
                        f'{file}, line {number}: expected an object such as {{"prompt": "Once"}}'
                    )
                text = prompt
            ids = begin_text(self.tokenizer, encode_text(self.tokenizer, text))
            yield self._prompt(ids, file, "line", number)

    def _of_data_set(self, dataset: SampleDataset) -> Iterator[Prompt]:
        """The first MSL - max_tokens tokens of every row, or of its first document in VSL."""
        new = self.section.max_tokens
        if new is None or new >= self._length:
            raise ConfigError(
                f"{dataset.directory}: its rows have no room for a continuation; set "
                f"inference_input.max_tokens to less than MSL {self._length}, and the first MSL "
                "- max_tokens tokens of each become the prompt"
            )
        for first in range(0, dataset.rows, _BLOCK):
            rows_B = np.arange(first, min(first + _BLOCK, dataset.rows))
            for row, row_CS in zip(rows_B.tolist(), dataset.read(rows_B), strict=True):
                ids = row_CS[0, : min(_tokens(dataset, row_CS), self._length - new)].tolist()
                file, within = dataset.file_and_row(row)
                unit = "token" if dataset.layout is CORPUS else "row"
                yield self._prompt(ids, file, unit, within)

    def _of_prompt_rows(self, file: Path) -> Iterator[Prompt]:
        """Model Zoo's: (N, S) ids, of which those before `start_token` are the prompt."""
        start, shard = self.section.start_token, ShardFile(file)
        if len(shard.shape) != 2 or shard.dtype.kind not in "iu":
            raise InputError(
                f"{file}: expected (rows, tokens) of integers, found {shard.dtype} {shard.shape}; "
                f"a data set of `prep` has a {DATA_PARAMS} next to its files"
            )
        if start is None:
            raise ConfigError(
                f"{file}: it is not known where prompts end; set inference_input.start_token, the "
                "id after them"
            )
        for first in range(0, shard.rows, _BLOCK):
            block_BS = shard.read(first, min(first + _BLOCK, shard.rows))
            for row, ids_S in enumerate(block_BS, first):
                ends = np.flatnonzero(ids_S == start)
                if not len(ends):
                    raise InputError(f"{file}, row {row}: no start_token {start} after the prompt")
                yield self._prompt(ids_S[: ends[0]].tolist(), file, "row", row)

    def _prompt(self, ids: list[int], file: Path, unit: str, number: int) -> Prompt:
        vocab_size = self.model.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < vocab_size:
            raise InputError(
                f"{file}, {unit} {number}: expected token ids from 0 to {vocab_size - 1:,}, "
                f"model.vocab_size - 1, found {min(ids):,} to {max(ids):,}"
            )
        text = decode_ids(self.tokenizer, ids)
        return Prompt(text, tuple(ids) or (self.tokenizer.eos_id,), file, unit, number)


def _tokens(dataset: SampleDataset, row_CS: npt.NDArray[np.int32]) -> int:
    """Tokens of a row, pads left out; in VSL, of its first document."""
    if dataset.layout is VSL:
        return int(row_CS[_SPAN, 0]) + 1
    counted = np.flatnonzero(row_CS[1])
    return int(counted[-1]) + 1 if len(counted) else 1
