"""Where a run's samples come from: one data set, several one after the other, or a mixture; their
rows as tensors in the model's format; which of them the steps read.

A row is counted over all data sets, in the order of the config. `weight` is how often an epoch of
the mixture reads the rows of a data set, fractions included (`pipeline.core.order`).

`datasets` of run.json lists what steps read: an entry gives the step from which on; those of a
mixture name their `part`. A data set may become another one by masking alone: the same rows in the
same order.

Shapes: B sequences, C channels (3, of VSL 5), S tokens (MSL).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from dedup.arrays import I64
from pipeline.core.errors import ConfigError, InputError
from pipeline.core.growth import GrownOrder
from pipeline.core.order import OrderPart, TrainingOrder, samples_of_weight
from pipeline.core.words import pluralise
from pipeline.hdf5.foreign.dataset import UNKNOWN_ID, open_any
from pipeline.hdf5.format import DATA_PARAMS, SAMPLE_FEATURES, VSL, VSL_FEATURES
from pipeline.hdf5.read import SampleDataset
from pipeline.hdf5.sampler import OrderName, training_order
from pipeline.lineage.forward import NO_SOURCE, LabelSources, has_lineage
from pipeline.runs.generations import list_split_directories
from trainer.config import ModelConfig, SampleInputConfig
from trainer.config.sections import CorruptSpans, DataTransform, SinkTokens, TrainInput
from trainer.data import span_corruption
from trainer.data.masking import TokenMasking, resolve_masking
from trainer.data.span_corruption import SpanCorruption, resolve_corruption

Batch = dict[str, torch.Tensor]
_IDS, _LABELS = (SAMPLE_FEATURES.index(name) for name in ("input_ids", "labels"))


def open_checked(
    directory: Path,
    model: ModelConfig,
    use_vsl: bool = False,
    transform: DataTransform | None = None,
) -> SampleDataset:
    """Open a data set of any format, whose rows `transform` will change. Raises ConfigError naming
    both values when MSL, vocabulary or use_vsl do not fit the model; InputError without rows."""
    of_rows = model_of_rows(model, transform)
    dataset = open_any(directory, of_rows.max_position_embeddings, of_rows.vocab_size)
    if transform is not None:
        _check_transformed(dataset, transform)
    _check_layout(dataset, use_vsl)
    if isinstance(transform, CorruptSpans):
        span_corruption.check_rows(transform, dataset, model)
    has_params = (dataset.directory / DATA_PARAMS).exists()
    where = f"in its {DATA_PARAMS}" if has_params else "by its files"
    names = {"max_position_embeddings": "max_sequence_length", "vocab_size": "vocab_size"}
    for ours, theirs in names.items():
        expected, actual = getattr(of_rows, ours), getattr(dataset, theirs)
        if expected != actual:
            raise ConfigError(
                f"model.{ours} is {expected} but the data set {directory} has {theirs} {actual} "
                f"({where}); change one of them"
            )
    if dataset.rows == 0:
        raise InputError(
            f"{directory}: the data set has no rows of {dataset.max_sequence_length} tokens"
        )
    return dataset


def model_of_rows(model: ModelConfig, transform: DataTransform | None) -> ModelConfig:
    """The model that the rows of the data set would fit as they are."""
    if isinstance(transform, SinkTokens):
        return _without_sinks(model, transform)
    if isinstance(transform, CorruptSpans):
        return span_corruption.rows_for(transform, model)
    return model


def _without_sinks(model: ModelConfig, sinks: SinkTokens) -> ModelConfig:
    if sinks.sink_token_id >= model.vocab_size:
        raise ConfigError(
            f"data_transforms.0.sink_token_id is {sinks.sink_token_id}, but model.vocab_size is "
            f"{model.vocab_size}; expected an id below it"
        )
    length = model.max_position_embeddings - sinks.num_sink_tokens
    if length < 1:
        raise ConfigError(
            f"data_transforms.0.num_sink_tokens is {sinks.num_sink_tokens}; expected less than "
            f"model.max_position_embeddings, {model.max_position_embeddings}"
        )
    return model.model_copy(update={"max_position_embeddings": length})


def _check_transformed(dataset: SampleDataset, transform: DataTransform) -> None:
    """Refuse formats that a change of rows is not for."""
    formats = {"add_sink_tokens": ("sample",), "corrupt_spans": ("sample", "corpus")}
    needed = formats.get(transform.name)
    if needed is not None and dataset.layout.name not in needed:
        raise ConfigError(
            f"{dataset.directory}: format {dataset.layout.name}, but data_transforms: "
            f"{transform.name} needs {' or '.join(needed)}; write the same tokens in that format "
            "with `prep repack RUN --out DIR --format sample`"
        )


def _check_layout(dataset: SampleDataset, use_vsl: bool) -> None:
    is_vsl = dataset.layout is VSL
    if use_vsl and not is_vsl:
        raise ConfigError(
            f"{dataset.directory}: format {dataset.layout.name}, but use_vsl is true, which needs "
            "vsl; leave use_vsl out, or write the same tokens in that format with "
            "`prep repack RUN --out DIR --format vsl`"
        )
    if is_vsl and not use_vsl:
        raise ConfigError(
            f"{dataset.directory}: format vsl, but training needs sample or corpus while use_vsl "
            "is false; set use_vsl: true, or write the same tokens in another format with "
            "`prep repack RUN --out DIR --format sample`"
        )


def to_batch(rows_BCS: npt.NDArray[np.int32] | span_corruption.Features) -> Batch:
    """(B, C, S) int32 rows -> feature name -> (B, S) int64 tensor; the five channels of VSL are
    features too. Features that have names already keep them, and their lengths."""
    if isinstance(rows_BCS, dict):
        return {name: torch.from_numpy(v.astype(np.int64)) for name, v in rows_BCS.items()}
    names = VSL_FEATURES if rows_BCS.shape[1] == len(VSL_FEATURES) else SAMPLE_FEATURES
    # numpy casts in the calling thread alone: torch would start a pool for a thread that reads
    # ahead.
    tensor = torch.from_numpy(rows_BCS.astype(np.int64))
    return {name: tensor[:, channel] for channel, name in enumerate(names)}


@dataclass(frozen=True)
class SampleSource:
    """Data sets one after the other. `parts`: rows of each, and samples of an epoch that read
    them. `joins`: of generations of one data set, the sample from which on each is read. `sinks`:
    tokens before every row. `masking`: how tokens to guess are chosen, which `read` does not do: it
    depends on when a row is read."""

    datasets: tuple[SampleDataset, ...]
    parts: tuple[OrderPart, ...]
    joins: tuple[int, ...] | None = None
    sinks: SinkTokens | None = None
    masking: TokenMasking | SpanCorruption | None = None

    @staticmethod
    def of(*datasets: SampleDataset) -> "SampleSource":
        """All rows of every data set, once in an epoch."""
        return SampleSource(
            datasets, tuple(OrderPart(dataset.rows, dataset.rows) for dataset in datasets)
        )

    @property
    def rows(self) -> int:
        """Rows of all data sets."""
        return sum(part.rows for part in self.parts)

    @property
    def epoch_samples(self) -> int:
        """R, the samples of an epoch; `rows` where every weight is 1."""
        return sum(part.per_epoch for part in self.parts)

    @property
    def max_sequence_length(self) -> int:
        """MSL in tokens, sinks included, the same of all."""
        return self.datasets[0].max_sequence_length + self.sink_count

    @property
    def sink_count(self) -> int:
        """Tokens that are put before every row."""
        return 0 if self.sinks is None else self.sinks.num_sink_tokens

    @property
    def takedowns(self) -> tuple[str, ...]:
        """Takedowns that masked documents in any of the data sets, each once."""
        return tuple(dict.fromkeys(name for d in self.datasets for name in d.takedowns))

    def split_rows(self, rows_B: I64) -> Iterator[tuple[int, npt.NDArray[np.bool_], I64]]:
        """For every data set that some of these rows are of: its place, which rows they are, and
        their rows in it."""
        starts = np.cumsum([0, *(part.rows for part in self.parts)])
        part_B = np.searchsorted(starts, rows_B, side="right") - 1
        for part in np.unique(part_B).tolist():
            here = part_B == part
            yield part, here, rows_B[here] - starts[part]

    def paths(self, rows_B: I64) -> list[Path]:
        """The shards that `read` opens for these rows."""
        return [
            p for part, _, own in self.split_rows(rows_B) for p in self.datasets[part].paths(own)
        ]

    def read(self, rows_B: I64) -> npt.NDArray[np.int32]:
        """Rows in the order asked for; rows_B (B,) int64 -> (B, 3 or 5, MSL) int32."""
        if len(self.datasets) == 1 and self.sinks is None:
            return self.datasets[0].read(rows_B)
        features = VSL_FEATURES if self.datasets[0].layout is VSL else SAMPLE_FEATURES
        out = np.zeros((len(rows_B), len(features), self.max_sequence_length), np.int32)
        first = self.sink_count
        if self.sinks is not None:  # their loss mask stays 0
            out[:, [_IDS, _LABELS], :first] = self.sinks.sink_token_id
        for part, here, own in self.split_rows(rows_B):
            out[here, :, first:] = self.datasets[part].read(own)
        return out

    def order(self, name: OrderName, seed: int) -> TrainingOrder | GrownOrder:
        """The order in which these rows are trained on. Raises ConfigError for a modelzoo order of
        too many rows."""
        if self.joins is not None:
            return GrownOrder(self.parts, self.joins, seed)
        shuffled = [dataset.rows_globally_shuffled for dataset in self.datasets]
        return training_order(name, self.parts, seed, shuffled)

    def describe(self) -> list[dict[str, Any]]:
        """The data sets as `datasets` of run.json has them, all from step 1; those of a mixture
        with their place in it and their samples per epoch."""
        plain = len(self.parts) == 1 and self.parts[0].per_epoch == self.parts[0].rows
        joins = self.joins or (None,) * len(self.parts)
        entries = []
        parts = zip(self.datasets, self.parts, joins, strict=True)
        for place, (dataset, part, joined) in enumerate(parts):
            entry: dict[str, Any] = {
                "from_step": 1,
                "dataset_hash": dataset.dataset_hash,
                "rows": dataset.rows,
                "rows_globally_shuffled": dataset.rows_globally_shuffled,
            }
            if not plain:
                entry |= {"part": place, "rows_per_epoch": part.per_epoch}
            if joined is not None:
                entry["joined"] = joined
            entries.append(entry)
        return entries


TRAIN_INPUT = "train_input"


def open_training(
    section: TrainInput, model: ModelConfig, override: Path | None = None
) -> SampleSource:
    """The data sets of a section, or `override`; of a run that was appended to, all generations.
    Raises ConfigError when nothing is named, one does not fit the model or the others, is named
    twice, or has a weight that reads no row; InputError for one that cannot be read."""
    places = _list_places(section, override, TRAIN_INPUT)
    source = _open(places, section, model)
    is_grown = len(source.datasets) > len(places) == 1 and places[0][1] == 1
    shuffled = all(dataset.rows_globally_shuffled for dataset in source.datasets)
    if is_grown and shuffled and section.order == "keyed":
        return replace(source, joins=(0,) * len(source.datasets))
    return source


def open_evaluation(
    section: SampleInputConfig, model: ModelConfig, override: Path | None = None
) -> SampleSource:
    """The data sets that a section evaluates on. Raises as `open_training`, and ConfigError for
    weights."""
    if section.mixture and override is None:
        raise ConfigError(
            "eval_input.mixture: evaluation reads every row once, without weights; list the "
            "directories in data_dir"
        )
    return _open(_list_places(section, override, "eval_input"), section, model)


def _open(
    places: Sequence[tuple[Path, float]], section: SampleInputConfig, model: ModelConfig
) -> SampleSource:
    """Data sets with their weights; each generation of a run is one."""
    opened, parts = [], []
    transform = next(iter(section.data_transforms), None)
    own_length = model_of_rows(model, transform).max_position_embeddings
    for place, weight in places:
        first, *later = list_split_directories(place)
        datasets = [open_checked(first, model, section.use_vsl, transform)]
        for directory in later:
            if open_any(directory, own_length).rows:
                datasets.append(open_checked(directory, model, section.use_vsl, transform))
        opened += datasets
        parts += [_make_part(dataset, weight) for dataset in datasets]
    _check_together(opened)
    masking: TokenMasking | SpanCorruption | None = None
    if isinstance(rule := section.masking, CorruptSpans):
        masking = resolve_corruption(rule, opened, model)
    elif rule is not None:
        masking = resolve_masking(rule, opened, model)
    return SampleSource(tuple(opened), tuple(parts), sinks=section.sinks, masking=masking)


def _make_part(dataset: SampleDataset, weight: float) -> OrderPart:
    part = OrderPart(dataset.rows, samples_of_weight(dataset.rows, weight))
    if part.per_epoch < 1:
        raise ConfigError(
            f"mixture: weight {weight} of {dataset.directory} reads none of its "
            f"{pluralise(dataset.rows, 'row')}; a weight is how many times an epoch reads the "
            f"rows, so give {1 / dataset.rows:.2g} or more"
        )
    return part


def _list_places(
    section: SampleInputConfig, override: Path | None, name: str
) -> list[tuple[Path, float]]:
    if override is not None:
        return [(override, 1.0)]
    if section.mixture:
        return [(part.data_dir, part.weight) for part in section.mixture]
    if not section.data_dir:
        raise ConfigError(
            f"no data: give --data PREP_CONFIG_OR_DIR, or {name}.data_dir"
            f"{' or mixture' if name == TRAIN_INPUT else ''} in the params file"
        )
    given = section.data_dir
    return [(place, 1.0) for place in ([given] if isinstance(given, Path) else given)]


def _check_together(datasets: Sequence[SampleDataset]) -> None:
    seen: dict[str, Path] = {}
    ending = [dataset for dataset in datasets if dataset.eos_id != UNKNOWN_ID]
    for dataset in datasets:
        origin = (*dataset.ancestors, dataset.dataset_hash)[0]
        if origin in seen:
            raise ConfigError(
                f"{dataset.directory} and {seen[origin]} are the same data set, {origin}; name it "
                "once, with a weight of 2 to read it twice (mixture: [{data_dir: …, weight: 2}])"
            )
        seen[origin] = dataset.directory
    for dataset in ending:
        if dataset.eos_id != ending[0].eos_id:
            raise ConfigError(
                f"{dataset.directory} ends documents with token {dataset.eos_id}, "
                f"{ending[0].directory} with {ending[0].eos_id}: they were made with "
                "different tokenizers; prepare both with the same one"
            )


class SourcesOfLabels:
    """The source of every label; `names`: all sources, sorted. Raises as `LabelSources`."""

    def __init__(self, source: SampleSource) -> None:
        self._source = source
        self._labels = [LabelSources(d) if has_lineage(d) else None for d in source.datasets]
        by_set = [
            labels.names if labels else (dataset.directory.name,)
            for dataset, labels in zip(source.datasets, self._labels, strict=True)
        ]
        self.names = tuple(sorted({name for names in by_set for name in names}))
        self._index = [np.array([self.names.index(n) for n in names], np.int16) for names in by_set]

    def of(self, rows_B: npt.NDArray[np.int64]) -> npt.NDArray[np.int16]:
        """For every label of these rows the index of its source in `names`, (B, S); NO_SOURCE for
        padding, where lineage tells it, and for sink tokens."""
        out = np.full((len(rows_B), self._source.max_sequence_length), NO_SOURCE, np.int16)
        first = self._source.sink_count
        for part, here, own in self._source.split_rows(rows_B):
            labels, index = self._labels[part], self._index[part]
            if labels is None:
                out[here, first:] = index[0]
            else:
                source = labels.of(own)
                out[here, first:] = np.where(source == NO_SOURCE, NO_SOURCE, index[source])
        return out
