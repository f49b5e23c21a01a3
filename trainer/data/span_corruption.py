"""Span corruption: spans of a row are cut out as it is read, and a decoder tells them.

A share of the tokens of a row is cut out in spans of random lengths, at random places; as in T5 a
row begins with a token that stays, and ends with a span. The encoder reads the row with a sentinel
in the place of each span; the decoder tells every sentinel followed by its span. An EOS is behind
both. How many tokens and spans are cut out follows from the length of a row alone, so all samples
are of one size, without pads. Source: T5 (arXiv 1910.10683) section 3.1.4, and
`random_spans_noise_mask` of its authors' code: all ways to cut so many tokens into so many spans,
and the rest before them, are equally likely.

What is cut out is a function of the seed and the number of the sample in training, in an evaluation
of the row, as in `trainer.data.masking`.

Shapes: B sequences, C channels (3), S tokens of a row, T of the decoder, P spans.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from pipeline.core import rng
from pipeline.core.errors import ConfigError
from pipeline.hdf5.foreign.dataset import UNKNOWN_ID
from pipeline.hdf5.format import SAMPLE_FEATURES
from pipeline.hdf5.read import SampleDataset
from trainer.config import ModelConfig
from trainer.config.sections import CorruptSpans
from trainer.data.masking import EVALUATION_SEED, Rows, Values, find_definition, of_inputs

Features = dict[str, Rows]
_IDS, _MASK = (SAMPLE_FEATURES.index(name) for name in ("input_ids", "attention_mask"))
_SENTINEL = "<extra_id_{}>"


@dataclass(frozen=True)
class SpanCorruption:
    """A rule for rows of one vocabulary. `sentinels`: in the order of the spans, at least as many
    as a row has; `start_id`: what the decoder reads first."""

    rule: CorruptSpans
    sentinels: tuple[int, ...]
    eos_id: int
    start_id: int

    def of_training(self, rows_BCS: Rows, seed: int, samples_B: I64) -> Features:
        """The features of rows that are samples with these numbers, counted from 0 over all steps.
        `input_ids`: what the encoder reads; `decoder_input_ids` and `labels` (B, T): what the
        decoder reads and tells; `attention_mask` (B, T): 1 where that counts, which is where the
        token does that is told, behind a sentinel the next one, before the last EOS the last."""
        return self._corrupted(rows_BCS, seed, "train", samples_B)

    def of_evaluation(self, rows_BCS: Rows, rows_B: I64) -> Features:
        """As `of_training`, of rows with these numbers; the same in every evaluation."""
        return self._corrupted(rows_BCS, EVALUATION_SEED, "evaluation", rows_B)

    def of_told(self, of_labels_BS: Values, rows_BCS: Rows, rows_B: I64) -> Values:
        """What holds of the labels of rows, for what is told of them in an evaluation (B, T)."""
        of_inputs_BS = of_inputs(of_labels_BS, rows_BCS)
        told = [
            values_S[_told_from(self._noise(len(values_S), EVALUATION_SEED, "evaluation", row))]
            for values_S, row in zip(of_inputs_BS, rows_B.tolist(), strict=True)
        ]
        return np.stack(told).astype(of_labels_BS.dtype)  # type: ignore[return-value]

    def describe(self) -> dict[str, Any]:
        """As run.json has it."""
        return {
            **self.rule.model_dump(mode="json", exclude={"name"}),
            "sentinel_ids": list(self.sentinels),
            "eos_id": self.eos_id,
            "decoder_start_token_id": self.start_id,
        }

    def _corrupted(self, rows_BCS: Rows, seed: int, purpose: str, numbers_B: I64) -> Features:
        counts_BS = of_inputs(rows_BCS[:, _MASK] != 0, rows_BCS)
        each: list[tuple[Rows, ...]] = []
        for ids_S, counts_S, number in zip(
            rows_BCS[:, _IDS], counts_BS, numbers_B.tolist(), strict=True
        ):
            noise_S = self._noise(len(ids_S), seed, purpose, number)
            each.append((*self._sample(ids_S, noise_S), counts_S[_told_from(noise_S)]))
        parts = zip(*each, strict=True)
        inputs, told, counted = (np.stack(part).astype(np.int32) for part in parts)
        read = np.concatenate([np.full_like(told[:, :1], self.start_id), told[:, :-1]], axis=1)
        return {
            "input_ids": inputs,
            "decoder_input_ids": read,
            "labels": told,
            "attention_mask": counted,
        }

    def _noise(self, tokens: int, seed: int, purpose: str, number: int) -> npt.NDArray[np.bool_]:
        """(S,) whether a token is cut out."""
        generator = rng.generator(seed, "corrupt spans", purpose, number)
        noise, spans = self.rule.count_spans(tokens)
        lengths_P2 = np.stack(
            [_cut(tokens - noise, spans, generator), _cut(noise, spans, generator)], axis=1
        )
        return np.repeat(np.arange(2 * spans) % 2 == 1, lengths_P2.ravel())

    def _sample(self, ids_S: Rows, noise_S: npt.NDArray[np.bool_]) -> tuple[Rows, Rows]:
        """What the encoder reads, and what the decoder tells."""
        first_S = _first(noise_S)
        sentinels_P = np.array(self.sentinels[: first_S.sum()], np.int32)
        seen_S = ids_S.copy()
        seen_S[first_S] = sentinels_P
        at_P = np.flatnonzero(first_S[noise_S])
        told = np.insert(ids_S[noise_S], at_P, sentinels_P)
        return np.append(seen_S[~noise_S | first_S], self.eos_id), np.append(told, self.eos_id)


def _first(noise_S: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    """Whether a token is the first of a span; the first of a row is never cut out."""
    return noise_S & ~np.roll(noise_S, 1)


def _told_from(noise_S: npt.NDArray[np.bool_]) -> I64:
    """(T,) the token of the row that each token told is, or stands before or behind.

    >>> _told_from(np.array([False, True, True, False, True])).tolist()
    [1, 1, 2, 4, 4, 4]
    """
    times_S = noise_S.astype(np.int64) + _first(noise_S)
    times_S[np.flatnonzero(noise_S)[-1]] += 1
    return np.repeat(np.arange(len(noise_S)), times_S)


def _cut(tokens: int, pieces: int, generator: np.random.Generator) -> I64:
    """Lengths of so many pieces, at least 1 each; all ways to cut are equally likely."""
    cuts = np.sort(generator.choice(tokens - 1, pieces - 1, replace=False)) + 1
    return np.diff(np.concatenate([[0], cuts, [tokens]]))


def resolve_corruption(
    rule: CorruptSpans, datasets: Sequence[SampleDataset], model: ModelConfig
) -> SpanCorruption:
    """The rule with the ids of the tokenizer of the data sets. Raises ConfigError where they do not
    say which token ends a document, for different tokenizers, and for too few sentinels."""
    found = [_find_ids(rule, dataset, model) for dataset in datasets]
    if len(set(found)) > 1:
        raise ConfigError(
            "data_transforms.0: the tokenizers of the data sets have different <extra_id_0>, ..., "
            "<pad> or EOS; prepare them with one tokenizer"
        )
    sentinels, eos_id, start_id = found[0]
    place, tokens = datasets[0].directory, datasets[0].max_sequence_length
    if eos_id == UNKNOWN_ID:
        raise ConfigError(
            f"{place}: the data set does not say which token ends a document, which "
            "data_transforms: corrupt_spans puts behind both texts; add eos_id to its "
            "data_params.json"
        )
    spans = rule.count_spans(tokens)[1]
    if len(sentinels) < spans:
        where = "extra_ids" if rule.extra_ids is not None else f"the tokenizer of {place}"
        raise ConfigError(
            f"data_transforms.0: {spans} spans are cut out of a row of {tokens} tokens, but "
            f"{where} gives {len(sentinels)} sentinels; give extra_ids: {max(spans, 100)}, which "
            f"model.vocab_size, {model.vocab_size} now, includes"
        )
    return SpanCorruption(rule, sentinels[:spans], eos_id, start_id)


def _find_ids(
    rule: CorruptSpans, dataset: SampleDataset, model: ModelConfig
) -> tuple[tuple[int, ...], int, int]:
    """(sentinels, EOS, what the decoder reads first): the pad token of a tokenizer that has one, as
    in T5, else the EOS. Sentinels behind the vocabulary are counted from its end, as in T5."""
    definition, sentinels = find_definition(dataset), []
    special = {} if definition is None else definition.special_ids
    start_id = dataset.eos_id if definition is None else definition.decoder_start_id
    if rule.extra_ids is not None:
        last = model.vocab_size - 1
        sentinels = list(range(last, last - rule.extra_ids, -1))
    else:
        while (name := _SENTINEL.format(len(sentinels))) in special:
            sentinels.append(special[name])
    return tuple(sentinels), dataset.eos_id, start_id


def rows_for(rule: CorruptSpans, model: ModelConfig) -> ModelConfig:
    """The model that rows of a data set would fit: as long as its samples allow, and with a
    vocabulary without sentinels behind it. Raises ConfigError where nothing is left of that."""
    if (rule.extra_ids or 0) >= model.vocab_size:
        raise ConfigError(
            f"data_transforms.0.extra_ids is {rule.extra_ids}; expected less than "
            f"model.vocab_size, {model.vocab_size}, which includes them"
        )
    told = model.tgt_max_position_embeddings
    tokens = rule.row_length(model.max_position_embeddings, told)
    vocabulary = model.vocab_size - (rule.extra_ids or 0)
    return model.model_copy(update={"max_position_embeddings": tokens, "vocab_size": vocabulary})


def check_rows(rule: CorruptSpans, dataset: SampleDataset, model: ModelConfig) -> None:
    """Raise ConfigError where the samples of its rows are not of the lengths and the vocabulary of
    the model."""
    tokens, extra = dataset.max_sequence_length, rule.extra_ids or 0
    expected = {"vocab_size": dataset.vocab_size + extra}
    if tokens > 1:
        names = "max_position_embeddings", "tgt_max_position_embeddings"
        expected |= dict(zip(names, rule.lengths(tokens), strict=True))
    wrong = [key for key in expected if getattr(model, key) != expected[key]]
    behind = model.vocab_size - dataset.vocab_size
    if wrong or tokens < 2:
        given = ", ".join(f"model.{key} is {getattr(model, key)}" for key in wrong)
        needed = ", ".join(f"{key}: {expected[key]}" for key in wrong)
        if "vocab_size" in wrong and behind > 0:
            needed += f" (or extra_ids: {behind})"
        raise ConfigError(
            f"{given}, but the data set {dataset.directory} has rows of {tokens} tokens and a "
            f"vocabulary of {dataset.vocab_size}, of which data_transforms: corrupt_spans with "
            f"{extra} extra_ids makes samples that need {needed or 'rows of 2 tokens or more'}"
        )
