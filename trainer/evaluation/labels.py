"""What is known of the labels of an evaluation: their sources, and how much text they are.

Shapes: B rows, S tokens (MSL), C channels, G groups of labels.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError
from pipeline.tokenizers.definition import TokenizerDefinition
from trainer.data import SampleSource
from trainer.evaluation.amounts import Amount
from trainer.evaluation.text_size import TextSize, tokenizer_of_data

Rows = npt.NDArray[np.int32]


@dataclass(frozen=True)
class KnownLabels:
    """`names`: the sources of labels; empty where nothing tells of them, all are one group then.
    `group_of`: rows (B,) -> the group of every label (B, S), -1 for none. `text`: None where no
    tokenizer is known."""

    names: tuple[str, ...]
    group_of: Callable[[I64], I64]
    text: TextSize | None

    @property
    def groups(self) -> int:
        """G."""
        return max(1, len(self.names))

    def text_of(self, rows_BCS: Rows, group_BS: I64) -> I64:
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


def known_labels(
    source: SampleSource, reference: TokenizerDefinition | None, say: Callable[[str], None]
) -> KnownLabels:
    """What the run directories of `source` tell; says what they do not tell.

    Raises ConfigError when there is a `reference` to compare with, but no tokenizer of the data.
    """
    text = None
    try:
        definition = tokenizer_of_data(source)
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
    names, group_of = _by_source(source, say)
    return KnownLabels(names, group_of, text)


def _by_source(
    source: SampleSource, say: Callable[[str], None]
) -> tuple[tuple[str, ...], Callable[[I64], I64]]:
    from trainer.data.sources import SourcesOfLabels  # reads parquet: only evaluations need it

    length = source.max_sequence_length
    try:
        labels = SourcesOfLabels(source)
    except InputError as error:
        say(f"Losses by source are not reported: {error}")
        return (), lambda rows_B: np.zeros((len(rows_B), length), np.int64)
    return labels.names, lambda rows_B: labels.of(rows_B).astype(np.int64)
