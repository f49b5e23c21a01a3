"""Masked language modelling: the tokens of a row that an encoder has to guess, chosen as rows are
read.

Of the tokens of a row that are not special, a share is chosen: round(share * n) of n, at least one.
Of the chosen ones four fifths become [MASK], a tenth any id of the vocabulary, and a tenth stay.
They alone count in the loss, and the labels of a row are its own tokens. Source: BERT (arXiv
1810.04805) section 3.1 and appendix A.1; that a row is masked otherwise each time it is read, and
that there is no next-sentence task, is RoBERTa's (arXiv 1907.11692) section 4.

A mask is a function of the seed and the number of the sample in training, in an evaluation of the
row: it is the same for any number of systems, and after a restart.

Shapes: B sequences, C channels (3, of VSL 5), S tokens (MSL), N tokens that may be chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline.core import rng
from pipeline.core.errors import ConfigError
from pipeline.hdf5.foreign.dataset import UNKNOWN_ID
from pipeline.hdf5.format import SAMPLE_FEATURES, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset
from pipeline.runs.layout import TOKENIZER
from pipeline.tokenizers.definition import TokenizerDefinition, restore_definition
from trainer.config import ModelConfig
from trainer.config.sections import MaskTokens

Rows = npt.NDArray[np.int32]
Values = TypeVar("Values", bound=npt.NDArray[Any])
_IDS, _MASK, _LABELS = (
    SAMPLE_FEATURES.index(name) for name in ("input_ids", "attention_mask", "labels")
)
_POSITIONS = VSL_FEATURES.index("position_ids")
_HIDDEN = 0.8
_HIDDEN_OR_RANDOM = 0.9
EVALUATION_SEED = 0
"""The same for all runs, so that their evaluations guess the same tokens."""


@dataclass(frozen=True)
class TokenMasking:
    """A rule for rows of one vocabulary. `special`: ids that are never chosen, ascending."""

    rule: MaskTokens
    mask_id: int
    special: tuple[int, ...]
    vocab_size: int

    def of_training(self, rows_BCS: Rows, seed: int, samples_B: I64) -> Rows:
        """Rows that are samples with these numbers, counted from 0 over all steps, with tokens to
        guess. `input_ids` are what is seen, `labels` what was there, `attention_mask` 1 where
        it is to be guessed."""
        return self._masked(rows_BCS, seed, "train", samples_B)

    def of_evaluation(self, rows_BCS: Rows, rows_B: I64) -> Rows:
        """As `of_training`, of rows with these numbers; the same in every evaluation."""
        return self._masked(rows_BCS, EVALUATION_SEED, "evaluation", rows_B)

    def of_told(self, of_labels_BS: Values, rows_BCS: Rows, rows_B: I64) -> Values:
        """What holds of the labels of rows, for what is told of them in an evaluation."""
        return of_inputs(of_labels_BS, rows_BCS)

    def describe(self) -> dict[str, Any]:
        """As run.json has it."""
        return {
            "mask_token_id": self.mask_id,
            "masked_lm_prob": self.rule.masked_lm_prob,
            "special_token_ids": list(self.special),
        }

    def _masked(self, rows_BCS: Rows, seed: int, purpose: str, numbers_B: I64) -> Rows:
        out_BCS = rows_BCS.copy()
        ids_BS = rows_BCS[:, _IDS]
        free_BS = of_inputs(rows_BCS[:, _MASK] != 0, rows_BCS) & ~np.isin(ids_BS, self.special)
        out_BCS[:, _LABELS], out_BCS[:, _MASK] = ids_BS, 0
        for row_CS, free_S, number in zip(out_BCS, free_BS, numbers_B.tolist(), strict=True):
            generator = rng.generator(seed, "mask tokens", purpose, number)
            self._mask_row(row_CS, np.flatnonzero(free_S), generator)
        return out_BCS

    def _mask_row(self, row_CS: Rows, free_N: I64, generator: np.random.Generator) -> None:
        if not len(free_N):
            return
        rank_S, fate_S, draw_S = generator.random((3, row_CS.shape[1]))
        count = max(1, round(self.rule.masked_lm_prob * len(free_N)))
        chosen = free_N[np.argsort(rank_S[free_N], kind="stable")[:count]]
        row_CS[_MASK, chosen] = 1
        fate = fate_S[chosen]
        row_CS[_IDS, chosen[fate < _HIDDEN]] = self.mask_id
        other = chosen[(fate >= _HIDDEN) & (fate < _HIDDEN_OR_RANDOM)]
        row_CS[_IDS, other] = (draw_S[other] * self.vocab_size).astype(np.int32)


def of_inputs(of_labels_BS: Values, rows_BCS: Rows) -> Values:
    """What holds of the labels of rows, for their inputs, which are the same tokens a column later.
    The first of a segment is no label; it has what holds of the token after it, which is of the
    same document unless the first one is its EOS.

    >>> rows = np.zeros((1, 3, 4), np.int32)
    >>> of_inputs(np.array([[2, 3, 4, 5]]), rows).tolist()
    [[2, 2, 3, 4]]
    """
    out_BS = of_labels_BS.copy()
    out_BS[:, 1:] = of_labels_BS[:, :-1]
    if rows_BCS.shape[1] == len(VSL_FEATURES):
        first_BS = rows_BCS[:, _POSITIONS] == 0
        out_BS[first_BS] = of_labels_BS[first_BS]
    return out_BS


def resolve_masking(
    rule: MaskTokens, datasets: Sequence[SampleDataset], model: ModelConfig
) -> TokenMasking:
    """The rule with the ids of the tokenizer of the data sets. Raises ConfigError where there is no
    mask token, or different ones, or one beyond the vocabulary of the model."""
    definitions = [find_definition(dataset) for dataset in datasets]
    special_of = [{} if each is None else each.special_ids for each in definitions]
    found = [
        _find_mask_id(rule, special, dataset)
        for special, dataset in zip(special_of, datasets, strict=True)
    ]
    if len(set(found)) > 1:
        raise ConfigError(
            f"data_transforms.0.mask_token {rule.mask_token!r} is token {found[0]} in "
            f"{datasets[0].directory}, but not in all data sets; prepare them with one tokenizer"
        )
    if found[0] >= model.vocab_size:
        raise ConfigError(
            f"data_transforms.0: the mask token is {found[0]}, but model.vocab_size is "
            f"{model.vocab_size}; expected an id below it"
        )
    ends = {dataset.eos_id for dataset in datasets} - {UNKNOWN_ID}
    special = {id for tokens in special_of for id in tokens.values()} | ends | {found[0]}
    return TokenMasking(rule, found[0], tuple(sorted(special)), model.vocab_size)


def _find_mask_id(rule: MaskTokens, special: dict[str, int], dataset: SampleDataset) -> int:
    if rule.mask_token_id is not None:
        return rule.mask_token_id
    if rule.mask_token not in special:
        known = ", ".join(special) or "none"
        raise ConfigError(
            f"data_transforms.0.mask_token is {rule.mask_token!r}, but {dataset.directory} has no "
            f"tokenizer with that special token (it has: {known}); name one of these, or give "
            "mask_token_id, a token that no text has (of GPT-2: 187)"
        )
    return special[rule.mask_token]


def find_definition(dataset: SampleDataset) -> TokenizerDefinition | None:
    """The tokenizer of its run directory; None where it has none."""
    path = dataset.directory.parent.parent / TOKENIZER
    if not path.is_file():
        return None
    return restore_definition(str(path), path.read_bytes(), dataset.eos_id)
