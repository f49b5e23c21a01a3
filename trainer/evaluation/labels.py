"""What is known of the labels of an evaluation: their sources, how much text they are (bytes, and
tokens of another vocabulary), and the units of their losses.

A byte-level vocabulary gives every token its bytes. Tokens of another vocabulary need the text,
which is put together from runs of labels: a run ends at an EOS, at the end of a row or segment, and
where labels do not count.

Shapes: B rows, S tokens (MSL), C channels (3, of VSL 5), V vocabulary, G groups of labels.

Limits: a run that begins or ends inside a word is tokenized as it is, and bytes of a character that
is cut there are left out: about one token a row too many at most.
"""

import functools
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.format import VSL_FEATURES
from pipeline.runs import layout
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    decode_bytes,
    reference_tokenizer,
    restore_definition,
)
from trainer.data import SampleSource
from trainer.data.source import SourcesOfLabels

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True)
class Amount:
    """Losses of some labels, added up. `loss_sum`: nats; `n_counted`: labels; `n_bytes`: of
    their UTF-8 text, an EOS counting 0, None where no tokenizer is known; `reference_tokens`: of
    the same text in another vocabulary, each EOS counting 1, None where none was asked for."""

    loss_sum: float
    n_counted: int
    n_bytes: int | None = None
    reference_tokens: int | None = None

    @property
    def loss(self) -> float:
        """Nats per counted label; NaN without labels."""
        return self.loss_sum / self.n_counted if self.n_counted else math.nan

    @property
    def perplexity(self) -> float:
        """e to the loss; infinite where that is too large for a float."""
        return math.exp(self.loss) if self.loss < _LARGEST_EXPONENT else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """Bits per byte of text, the same unit for every vocabulary."""
        return self.loss_sum / math.log(2) / self.n_bytes if self.n_bytes else None

    @property
    def reference_loss(self) -> float | None:
        """Nats per token of the other vocabulary: the loss times the ratio of token counts on the
        same text, as in Cerebras-GPT (arXiv 2304.03208), whose reference is GPT-2's."""
        if not self.reference_tokens:
            return None
        return self.loss * self.n_counted / self.reference_tokens

    def described(self) -> dict[str, Any]:
        """As JSON values; what is not known is left out."""
        optional = {
            "bits_per_byte": self.bits_per_byte,
            "reference_tokens": self.reference_tokens,
            "loss_per_reference_token": self.reference_loss,
        }
        fields: dict[str, Any] = {"loss": self.loss, "n_counted": self.n_counted}
        return fields | {name: value for name, value in optional.items() if value is not None}


Rows = npt.NDArray[np.int32]
_ENCODE_AT_ONCE = 256


def tokenizer_of_data(source: SampleSource) -> TokenizerDefinition | None:
    """The tokenizer of the run directories of the data sets; None where one has none or another."""
    definitions: list[TokenizerDefinition] = []
    for dataset in source.datasets:
        path = dataset.directory.parent.parent / layout.TOKENIZER
        if not path.is_file():
            return None
        definitions.append(restore_definition(str(path), path.read_bytes(), dataset.eos_id))
    same = all(definition.content_hash == definitions[0].content_hash for definition in definitions)
    return definitions[0] if same else None


@functools.lru_cache(maxsize=4)
def byte_lengths(definition: TokenizerDefinition) -> I64 | None:
    """Bytes of every id, (V,), EOS 0; None for a tokenizer that is not byte-level.

    >>> from pipeline.tokenizers.definition import load_definition
    >>> byte_lengths(load_definition("gpt2"))[[15496, 995, 50256]].tolist()
    [5, 6, 0]
    """
    decoder = json.loads(definition.json).get("decoder")
    if not isinstance(decoder, dict) or decoder.get("type") != "ByteLevel":
        return None
    ids_V = np.arange(definition.vocab_size)
    return np.array([len(decode_bytes(definition, ids_V[i : i + 1])) for i in ids_V], np.int64)


@dataclass(frozen=True)
class TextSize:
    """Counts the text of labels in a vocabulary of `definition`. `reference`: the other one."""

    definition: TokenizerDefinition
    reference: TokenizerDefinition | None = None

    @property
    def knows_bytes(self) -> bool:
        """Whether tokens of this vocabulary have bytes."""
        return byte_lengths(self.definition) is not None

    def count(self, rows_BCS: Rows, group_BS: I64, groups: int) -> I64:
        """(2, G): bytes of the counted labels of every group, and tokens of the reference
        vocabulary, 1 for every EOS; 0 where one is not known. `group_BS`: the group of every
        label, at least 0 where it counts."""
        counted_BS = rows_BCS[:, 1] != 0
        label_N, group_N = rows_BCS[:, 2][counted_BS], group_BS[counted_BS]
        out_2G = np.zeros((2, groups), np.int64)
        lengths_V = byte_lengths(self.definition)
        if lengths_V is not None:
            np.add.at(out_2G[0], group_N, lengths_V[label_N])
        if self.reference is not None:
            np.add.at(out_2G[1], group_N[label_N == self.definition.eos_id], 1)
            runs = list(label_runs(rows_BCS, group_BS, self.definition.eos_id))
            tokenizer = reference_tokenizer(self.reference)
            for first in range(0, len(runs), _ENCODE_AT_ONCE):
                part = runs[first : first + _ENCODE_AT_ONCE]
                texts = [decode_bytes(self.definition, ids) for _, ids in part]
                plain = [text.decode(errors="ignore") for text in texts]
                encoded = tokenizer.encode_batch(plain, add_special_tokens=False)
                for (group, _), encoding in zip(part, encoded, strict=True):
                    out_2G[1, group] += len(encoding.ids)
        return out_2G


def label_runs(rows_BCS: Rows, group_BS: I64, eos_id: int) -> Iterator[tuple[int, Rows]]:
    """(group, ids) of every longest run of counted labels that follow one another in the text.
    An EOS belongs to no run."""
    ends_of_segments = rows_BCS.shape[1] == len(VSL_FEATURES)
    for row_CS, group_S in zip(rows_BCS, group_BS, strict=True):
        labels_S = row_CS[2]
        in_run_S = (row_CS[1] != 0) & (labels_S != eos_id)
        starts_S = in_run_S & ~np.roll(in_run_S, 1) | in_run_S & (group_S != np.roll(group_S, 1))
        if ends_of_segments:
            starts_S |= in_run_S & (np.roll(row_CS[3], 1) == 0)
        starts_S[0] = in_run_S[0]
        run_N = np.cumsum(starts_S)[in_run_S]
        ids_N, group_N = labels_S[in_run_S], group_S[in_run_S]
        for ids in np.split(np.arange(len(run_N)), np.flatnonzero(np.diff(run_N)) + 1):
            if len(ids):
                yield int(group_N[ids[0]]), ids_N[ids]


@dataclass(frozen=True)
class KnownLabels:
    """`names`: the sources of labels; empty where none are known, all are one group then.
    `group_of`: rows (B,) -> the group of every label (B, S), -1 for none. `text`: None where no
    tokenizer is known."""

    names: tuple[str, ...]
    group_of: Callable[[I64], I64]
    text: TextSize | None

    @property
    def groups(self) -> int:
        """G."""
        return max(1, len(self.names))

    def measure_text(self, rows_BCS: Rows, group_BS: I64) -> I64:
        """(2, G): bytes and reference tokens of the counted labels; 0 where they are not known."""
        if self.text is None:
            return np.zeros((2, self.groups), np.int64)
        return self.text.count(rows_BCS, group_BS, self.groups)

    def amount(self, loss_sum: float, n_counted: int, text_2: I64) -> Amount:
        """What was measured, of text that has so many bytes and reference tokens."""
        text = self.text
        n_bytes = int(text_2[0]) if text is not None and text.knows_bytes else None
        other = int(text_2[1]) if text is not None and text.reference is not None else None
        return Amount(loss_sum, n_counted, n_bytes, other)


def find_known_labels(
    source: SampleSource, reference: TokenizerDefinition | None, say: Callable[[str], None]
) -> KnownLabels:
    """What the run directories of `source` record; says what they do not. Raises ConfigError
    when there is a `reference` to compare with, but no tokenizer of the data, or tokens to guess,
    which are no text."""
    text = None
    if source.masking is not None and reference is not None:
        raise ConfigError(
            "--reference-tokenizer: the loss of an encoder is over hidden tokens here and there, "
            "which are no text to count in another vocabulary; leave it out"
        )
    try:
        definition = None if source.masking is not None else tokenizer_of_data(source)
    except ConfigError as error:
        say(f"Bits per byte are not reported: {error}")
        definition = None
    if definition is not None:
        text = TextSize(definition, reference)
    elif reference is not None:
        raise ConfigError(
            "--reference-tokenizer: the text of the data is not known: the run directories of "
            f"{source.datasets[0].directory} have no tokenizer.json, or different ones"
        )
    try:
        labels = SourcesOfLabels(source)
    except InputError as error:
        say(f"Losses by source are not reported: {error}")
        length = source.max_sequence_length
        return KnownLabels((), lambda rows_B: np.zeros((len(rows_B), length), np.int64), text)
    return KnownLabels(labels.names, lambda rows_B: labels.of(rows_B).astype(np.int64), text)
