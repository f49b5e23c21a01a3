"""How much text the counted labels stand for: bytes, and tokens of another vocabulary.

Nothing is decoded for bytes: a byte-level vocabulary gives every token its bytes. Tokens of another
vocabulary need the text, which is put together from runs of labels: a run ends at an EOS, at the
end of a row or segment, and where labels do not count.

Shapes: B rows, S tokens (MSL), C channels (3, of VSL 5), V vocabulary, G groups of labels.

Limits: a run that begins or ends inside a word is tokenized as it stands, and bytes of a character
that is cut there are left out: about one token a row too many at most.
"""

import functools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline import layout
from pipeline.hdf5.format import VSL_FEATURES
from pipeline.tokenizers.decoding import decode_bytes
from pipeline.tokenizers.definition import (
    TokenizerDefinition,
    reference_tokenizer,
    restore_definition,
)
from trainer.data import SampleSource

Rows = npt.NDArray[np.int32]
_ENCODE_AT_ONCE = 256


def tokenizer_of_data(source: SampleSource) -> TokenizerDefinition | None:
    """The tokenizer of the run directory that the data sets stand in; None where one of them stands
    elsewhere or has another."""
    found: list[TokenizerDefinition] = []
    for dataset in source.datasets:
        path = dataset.directory.parent.parent / layout.TOKENIZER
        if not path.is_file():
            return None
        found.append(restore_definition(str(path), path.read_bytes(), dataset.eos_id))
    same = all(definition.content_hash == found[0].content_hash for definition in found)
    return found[0] if same else None


@functools.lru_cache(maxsize=4)
def byte_lengths(definition: TokenizerDefinition) -> I64 | None:
    """Bytes that every id stands for, (V,), EOS 0; None for a tokenizer that is not byte-level,
    whose tokens have no bytes of their own.

    >>> from pipeline.tokenizers.definition import load_definition
    >>> byte_lengths(load_definition("gpt2"))[[15496, 995, 50256]].tolist()
    [5, 6, 0]
    """
    if not is_byte_level(definition):
        return None
    ids_V = np.arange(definition.vocab_size)
    return np.array([len(decode_bytes(definition, ids_V[i : i + 1])) for i in ids_V], np.int64)


def is_byte_level(definition: TokenizerDefinition) -> bool:
    """Whether any slice of ids decodes to the bytes that it was made of."""
    decoder = json.loads(definition.json).get("decoder")
    return isinstance(decoder, dict) and decoder.get("type") == "ByteLevel"


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
        vocabulary, 1 for every EOS; 0 where one is not known.

        `group_BS`: the group of every label, at least 0 where it counts.
        """
        counted_BS = rows_BCS[:, 1] != 0
        label_N, group_N = rows_BCS[:, 2][counted_BS], group_BS[counted_BS]
        out_2G = np.zeros((2, groups), np.int64)
        lengths_V = byte_lengths(self.definition)
        if lengths_V is not None:
            np.add.at(out_2G[0], group_N, lengths_V[label_N])
        if self.reference is not None:
            np.add.at(out_2G[1], group_N[label_N == self.definition.eos_id], 1)
            self._add_reference_tokens(out_2G[1], rows_BCS, group_BS, self.reference)
        return out_2G

    def _add_reference_tokens(
        self, out_G: I64, rows_BCS: Rows, group_BS: I64, reference: TokenizerDefinition
    ) -> None:
        runs = list(label_runs(rows_BCS, group_BS, self.definition.eos_id))
        tokenizer = reference_tokenizer(reference)
        for first in range(0, len(runs), _ENCODE_AT_ONCE):
            part = runs[first : first + _ENCODE_AT_ONCE]
            texts = [decode_bytes(self.definition, ids).decode(errors="ignore") for _, ids in part]
            encoded = tokenizer.encode_batch(texts, add_special_tokens=False)
            for (group, _), found in zip(part, encoded, strict=True):
                out_G[group] += len(found.ids)


def label_runs(rows_BCS: Rows, group_BS: I64, eos_id: int) -> Iterator[tuple[int, Rows]]:
    """(group, ids) of every longest run of counted labels that follow one another in the text.

    An EOS belongs to no run.
    """
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
