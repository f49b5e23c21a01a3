"""Loss over data sets, in file order, overall and by source, written to eval.jsonl.

Every leaf adds up the losses of its labels by group in float64 as its forward pass runs, and leaves
are added in their order, so the sums are the same for any number of systems, transport or rank. The
loss that the backend reduces is not touched.

Shapes: B sequences of a batch, S tokens (MSL), G groups.


The loss of a checkpoint on a split of a prep run (`train evaluate`), and tables of what
evaluations measured."""

import contextlib
import functools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.words import pluralise
from pipeline.hdf5.foreign.dataset import holds_shards, open_any
from pipeline.hdf5.format import VSL
from pipeline.tokenizers.definition import GPT2, TokenizerDefinition, load_definition
from trainer.config import EvalInput, ModelConfig
from trainer.config.sections import CorruptSpans, MaskTokens
from trainer.data import Batch, SampleSource, open_evaluation, to_batch
from trainer.data.source import model_of_rows
from trainer.evaluation.labels import Amount, KnownLabels, find_known_labels
from trainer.generation.loaded import find_checkpoint, load_model
from trainer.model.decoder import LabelLosses
from trainer.runs import console, metrics
from trainer.runs.checkpoint import Checkpoint
from trainer.runs.metrics import Events
from wafer_backend.compiled import BackendConfig, CompiledModule, Target
from wafer_backend.strict import on_host

GROUP, SAMPLE = "label_group", "sample"
_NOWHERE = 1
"""Groups before the first one: labels that belong to none."""
_BEYOND = 1 << 40
"""The place of a leaf that is none, after all others."""

LeafSums = tuple[Tensor, Tensor]


class GroupSums:
    """Adds up what leaves of `compiled` find while `listening`. `loss` (nats) and `counted`,
    both (G,): float64 and int64 sums over all batches taken."""

    def __init__(self, compiled: CompiledModule, groups: int) -> None:
        self._compiled = compiled
        self._leaves: dict[int, LeafSums] = {}
        self._loss = torch.zeros(groups + _NOWHERE, dtype=torch.float64)
        self._counted = torch.zeros(groups + _NOWHERE, dtype=torch.int64)

    @property
    def loss(self) -> npt.NDArray[np.float64]:
        """Nats of every group."""
        return self._loss[_NOWHERE:].numpy()

    @property
    def counted(self) -> npt.NDArray[np.int64]:
        """Counted labels of every group."""
        return self._counted[_NOWHERE:].numpy()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Leaves of tagged batches are heard inside."""
        (losses,) = (m for m in self._compiled.module.modules() if isinstance(m, LabelLosses))
        handle = losses.register_forward_hook(self._hear)
        try:
            yield
        finally:
            handle.remove()

    def tagged(self, batch: Batch, group_BS: npt.NDArray[np.int64]) -> Batch:
        """The batch with the group of every label, -1 for none; the model looks at neither."""
        samples = torch.arange(len(group_BS))
        return {**batch, GROUP: torch.from_numpy(group_BS), SAMPLE: samples}

    def take(self) -> None:
        """Add what leaves have found since the last time; every rank calls it. Raises
        IntegrityError when a label counts that belongs to no group."""
        transport = self._compiled.transport
        if transport.processes > 1:
            # A rank that ran no leaf of a short batch gives a leaf of nothing.
            nothing = (torch.zeros_like(self._loss), torch.zeros_like(self._counted))
            leaves = transport.gather({**self._leaves, _BEYOND: nothing})
        else:
            leaves = [self._leaves[first] for first in sorted(self._leaves)]
        for loss, labels in leaves:
            self._loss += loss
            self._counted += labels
        self._leaves.clear()
        strays = int(self._counted[0])
        if strays:
            raise IntegrityError(
                f"the lineage has no document for {pluralise(strays, 'label')} of the data set; "
                "`prep verify` reports what is damaged"
            )

    @on_host
    def _hear(
        self, module: nn.Module, arguments: tuple[Tensor, Mapping[str, Tensor]], losses: Tensor
    ) -> None:
        batch = arguments[1]
        group_N = batch[GROUP].flatten().cpu() + _NOWHERE
        mask_N = batch["attention_mask"].flatten().cpu()
        nats_N = losses.cpu().to(torch.float64) * mask_N
        sums = (
            torch.zeros_like(self._loss).index_add_(0, group_N, nats_N),
            torch.zeros_like(self._counted).index_add_(0, group_N, mask_N),
        )
        self._leaves[int(batch[SAMPLE][0])] = sums


@dataclass(frozen=True)
class Evaluation:
    """`total`: of all counted labels; `samples`: sequences read; `per_source`: by name, of
    sources with labels that count, empty where no sources are known."""

    total: Amount
    samples: int
    per_source: dict[str, Amount] = field(default_factory=dict)

    @property
    def loss(self) -> float:
        """Nats per counted label."""
        return self.total.loss

    @property
    def n_counted(self) -> int:
        """Labels that count."""
        return self.total.n_counted

    def described(self) -> dict[str, Any]:
        """As JSON values, with the exact loss in hexadecimal."""
        total = self.total.described()
        line = {"loss": total.pop("loss"), "loss_hex": self.loss.hex()}
        line |= {"n_counted": total.pop("n_counted"), "samples": self.samples, **total}
        if self.per_source:
            line["per_source"] = {n: amount.described() for n, amount in self.per_source.items()}
        return line


@dataclass(frozen=True, kw_only=True)
class Evaluator:
    """Evaluates the weights in MemoryX on all rows of its data sets.

    `batch_size`, `micro_batch_size`: sequences of a batch and of a leaf; `max_batches`: None for
    all rows; `between_leaves` may raise to give up; `writes`: whether this process adds to
    eval.jsonl; `events`: None where TensorBoard is not fed; `reference`: a vocabulary in whose
    tokens losses are reported too.
    """

    compiled: CompiledModule
    source: SampleSource
    model_dir: Path
    batch_size: int
    micro_batch_size: int
    max_batches: int | None
    between_leaves: Callable[[], None]
    writes: bool
    say: Callable[[str], None]
    events: Events | None = None
    reference: TokenizerDefinition | None = None

    def run(self, step: int) -> Evaluation:
        """Evaluate after `step`, print the Model Zoo line and add one line to eval.jsonl."""
        started = time.monotonic()
        evaluation = self.measure()
        seconds = time.monotonic() - started
        if self.writes:
            line = {"step": step, **evaluation.described()}
            metrics.append_metrics(self.model_dir / metrics.EVALUATION, line)
        if self.events is not None:
            by_source = {
                f"loss/{name}": amount.loss for name, amount in evaluation.per_source.items()
            }
            bits = {"bits_per_byte": evaluation.total.bits_per_byte}
            self.events.add(step, {"loss": evaluation.loss, **bits, **by_source})
        self.say(
            f"| Eval Device={self.compiled.config.target}, GlobalStep={step}, "
            f"Loss={evaluation.loss:.5f}, Rate={evaluation.samples / seconds:.2f} samples/sec"
        )
        return evaluation

    def close(self) -> None:
        """Close the file of events."""
        if self.events is not None:
            self.events.close()

    def measure(self) -> Evaluation:
        """Measure the mean loss. Raises InputError when no label counts, IntegrityError when
        lineage does not know one."""
        labels, rows, size = self._known, self.source.rows, self.batch_size
        masking = self.source.masking
        if self.max_batches is not None:
            rows = min(rows, self.max_batches * size)
        sums = GroupSums(self.compiled, labels.groups)
        text_2G = np.zeros((2, labels.groups), np.int64)
        loss_sum, counted, samples = 0.0, 0, 0
        with sums.listening():
            for first in range(0, rows, size):
                console.doing(f"evaluating, row {first + 1:,} of {rows:,}")
                rows_B = np.arange(first, min(first + size, rows), dtype=np.int64)
                rows_BCS, group_BS = self.source.read(rows_B), labels.group_of(rows_B)
                text_2G += labels.measure_text(rows_BCS, group_BS)
                if masking is None:
                    batch = to_batch(rows_BCS)
                else:
                    batch = to_batch(masking.of_evaluation(rows_BCS, rows_B))
                    group_BS = masking.of_told(group_BS, rows_BCS, rows_B)
                batch_loss, batch_counted = self.compiled.evaluate(
                    sums.tagged(batch, group_BS),
                    micro_batch_size=self.micro_batch_size,
                    between_leaves=self.between_leaves,
                )
                sums.take()
                loss_sum += batch_loss
                counted += batch_counted
                samples += len(rows_B)
        if counted == 0:
            places = ", ".join(str(dataset.directory) for dataset in self.source.datasets)
            raise InputError(f"{places}: no token counts towards the loss: every loss mask is zero")
        total = labels.amount(loss_sum, counted, text_2G.sum(axis=1))
        per_source = {
            name: labels.amount(float(sums.loss[g]), int(sums.counted[g]), text_2G[:, g])
            for g, name in enumerate(labels.names)
            if sums.counted[g]
        }
        return Evaluation(total, samples, per_source)

    @functools.cached_property
    def _known(self) -> KnownLabels:
        return find_known_labels(self.source, self.reference, self.say)


@dataclass(frozen=True, kw_only=True)
class LossOptions:
    """What the command line asked for; `path`: a model directory or checkpoint; `data`: a prep
    run directory or a directory of shards."""

    path: Path
    data: Path
    split: str = "validation"
    target: Target = "CPU"
    batch_size: int = 8
    threads: int = 1
    eval_steps: int | None = None
    reference_tokenizer: Path | None = None


@dataclass(frozen=True)
class LossMeasurement:
    """A loss, of which checkpoint (step and content hash) and on which data set."""

    step: int
    checkpoint_hash: str
    dataset_hash: str
    evaluation: Evaluation


def evaluate_checkpoint(request: LossOptions, say: Callable[[str], None]) -> LossMeasurement:
    """Measure the loss; nothing is written. Raises PrepError."""
    saved = find_checkpoint(request.path)
    loaded = load_model(saved)
    directory = split_directory(request.data, request.split)
    model = loaded.config
    masking = _masking_of(saved, model)
    of_rows = model_of_rows(model, masking)
    dataset = open_any(directory, of_rows.max_position_embeddings, of_rows.vocab_size)
    section = EvalInput(
        data_dir=directory,
        batch_size=request.batch_size,
        use_vsl=dataset.layout is VSL and not isinstance(masking, CorruptSpans),
        data_transforms=() if masking is None else (masking,),
    )
    source = open_evaluation(section, loaded.config)
    compiled = CompiledModule(
        loaded.model.requires_grad_(True),
        BackendConfig(
            target=request.target,
            micro_batch_size=request.batch_size,
            threads=request.threads,
            precision=loaded.config.precision,
        ),
    )
    named = request.reference_tokenizer
    reference = None
    if named is not None:
        reference = load_definition(GPT2 if str(named) == GPT2 else named)
    evaluator = Evaluator(
        compiled=compiled,
        source=source,
        model_dir=request.path,
        batch_size=request.batch_size,
        micro_batch_size=request.batch_size,
        max_batches=request.eval_steps,
        between_leaves=lambda: None,
        writes=False,
        say=say,
        reference=reference,
    )
    measured = evaluator.measure()
    return LossMeasurement(saved.step, saved.hash, source.datasets[0].dataset_hash, measured)


def _masking_of(saved: Checkpoint, model: ModelConfig) -> MaskTokens | CorruptSpans | None:
    """How the tokens that an encoder was trained to guess were chosen; the default rule for one
    whose training is not known. None for a decoder."""
    if not model.bidirectional:
        return None
    trained = saved.state.get("masking", {})
    kind = MaskTokens if model.decoder_num_hidden_layers is None else CorruptSpans
    keys = kind.model_fields.keys() & trained.keys()
    name = "mask_tokens" if kind is MaskTokens else "corrupt_spans"
    return kind.model_validate({"name": name, **{key: trained[key] for key in keys}})


def split_directory(data: Path, split: str) -> Path:
    """The directory of shards of a split. Raises ConfigError when there is no such split."""
    if holds_shards(data):
        return data
    if not (data / "hdf5").is_dir():
        missing = "" if data.is_dir() else "no such directory; "
        raise InputError(
            f"--data {data}: {missing}expected a prep run directory with hdf5/ inside, or a "
            "directory of .h5 files"
        )
    directory = data / "hdf5" / split
    if not directory.is_dir():
        splits = ", ".join(sorted(d.name for d in (data / "hdf5").iterdir() if d.is_dir()))
        raise ConfigError(f"--split {split}: not in {data}, which has {splits or 'no splits'}")
    return directory
