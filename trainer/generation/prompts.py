"""The prompts that `--mode infer` goes on from: lines of text, or rows of HDF5 files.

Shapes: N rows, S tokens, C channels (3, of VSL 5).
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from pipeline.core.errors import ConfigError, InputError
from pipeline.core.words import pluralise
from pipeline.hdf5.foreign_dataset import open_any
from pipeline.hdf5.format import CORPUS, DATA_PARAMS, SHARD_SUFFIX, VSL, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.shard_file import ShardFile
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.config import InferenceInput, ModelConfig
from trainer.generation.text import decode_ids, encode_text

_SPAN = VSL_FEATURES.index("attention_span")
_BLOCK = 256
"""Rows read at once."""


@dataclass(frozen=True)
class Prompt:
    """`text` and its `ids`, one at least: EOS where the prompt is empty. `file`, and in it the
    1-based line or the 0-based row `number`, which `unit` tells."""

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
        """All prompts of a `.jsonl` or `.txt` file, of a data set that `prep` wrote, or of a
        directory of other .h5 files.

        Raises ConfigError for a key that is missing, InputError for what is no prompt or leaves no
        room in the MSL.
        """
        prompts = list(self._found(place))
        if not prompts:
            raise InputError(f"{place}: no prompts")
        for prompt in prompts:
            self._check(prompt)
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
            if line.strip():
                as_json = file.suffix == ".jsonl"
                text = _json_prompt(file, number, line) if as_json else line.removesuffix("\r")
                yield self._prompt(encode_text(self.tokenizer, text), file, "line", number)

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
        known = self.model.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < known:
            raise InputError(
                f"{file}, {unit} {number}: expected token ids from 0 to {known - 1:,}, "
                f"model.vocab_size - 1, found {min(ids):,} to {max(ids):,}"
            )
        text = decode_ids(self.tokenizer, ids)
        return Prompt(text, tuple(ids) or (self.tokenizer.eos_id,), file, unit, number)

    def _check(self, prompt: Prompt) -> None:
        if len(prompt.ids) >= self._length:
            raise InputError(
                f"{prompt}: the prompt has {pluralise(len(prompt.ids), 'token')}, but the model "
                f"reads at most {self._length:,}, including those it writes; shorten the prompt to "
                f"{self._length - 1:,}"
            )


def _json_prompt(file: Path, number: int, line: str) -> str:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}, line {number}: not JSON: {error}") from error
    text = value.get("prompt") if isinstance(value, dict) else None
    if not isinstance(text, str) or not _is_text(text):
        raise InputError(f'{file}, line {number}: expected an object such as {{"prompt": "Once"}}')
    return text


def _is_text(text: str) -> bool:
    """Whether UTF-8 has it; JSON can hold halves of surrogate pairs."""
    return not any(0xD800 <= ord(character) < 0xE000 for character in text)


def _tokens(dataset: SampleDataset, row_CS: npt.NDArray[np.int32]) -> int:
    """Tokens of a row, pads left out; in VSL, of its first document."""
    if dataset.layout is VSL:
        return int(row_CS[_SPAN, 0]) + 1
    counted = np.flatnonzero(row_CS[1])
    return int(counted[-1]) + 1 if len(counted) else 1
