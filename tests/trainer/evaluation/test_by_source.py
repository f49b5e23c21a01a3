"""Losses by source, against a plain forward pass and the letters of the text itself."""

import json
import math
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pipeline.core.errors import IntegrityError
from pipeline.hdf5.read import open_dataset
from trainer.data import SampleSource, open_checked, to_batch
from trainer.evaluation.loss import Evaluation, Evaluator, GroupSums
from trainer.generation.loaded import LoadedModel, find_checkpoint, load_model
from wafer_backend.compiled import BackendConfig, CompiledModule

from .conftest import MSL

Make = Callable[..., Path]
LOWER = ("a", "b", "c", "d", "ab", "Ã", "©")
"""Tokens of the source `lower`; the last two are the bytes of "é"."""


def evaluator(loaded: LoadedModel, source: SampleSource, **backend: Any) -> Evaluator:
    wanted = {"target": "CPU", "micro_batch_size": 2, **backend}
    said: list[str] = []
    return Evaluator(
        compiled=CompiledModule(loaded.model.requires_grad_(True), BackendConfig(**wanted)),
        source=source,
        model_dir=Path(),
        batch_size=4,
        micro_batch_size=2,
        max_batches=None,
        between_leaves=lambda: None,
        writes=False,
        say=said.append,
    )


def source_of(run: Path, loaded: LoadedModel, split: str = "validation") -> SampleSource:
    directory = run / "hdf5" / split
    is_vsl = open_dataset(directory).layout.name == "vsl"
    return SampleSource.of(open_checked(directory, loaded.config, is_vsl))


def expected(loaded: LoadedModel, source: SampleSource) -> dict[str, tuple[float, int, int]]:
    """Source -> (nats, labels, bytes), told by the letters, not by lineage; row by row."""
    characters = json.loads(
        (source.datasets[0].directory.parents[1] / "tokenizer.json").read_text()
    )
    token_of = {number: token for token, number in characters["model"]["vocab"].items()}
    found: dict[str, list[float]] = defaultdict(lambda: [0.0, 0, 0])
    for row in range(source.rows):
        batch = to_batch(source.read(np.array([row])))
        logits_SV = loaded.model.logits(
            batch["input_ids"],
            position_ids_BS=batch.get("position_ids"),
            attention_span_BS=batch.get("attention_span"),
        )[0]
        for column in range(MSL):
            if not batch["attention_mask"][0, column]:
                continue
            label = int(batch["labels"][0, column])
            is_eos = label == source.datasets[0].eos_id
            letter = token_of[int(batch["input_ids"][0, column]) if is_eos else label]
            name = "lower" if letter in LOWER else "upper"
            nats = F.cross_entropy(logits_SV[column].double(), torch.tensor(label))
            sums = found[name]
            sums[0] += float(nats)
            sums[1] += 1
            sums[2] += 0 if is_eos else len(token_of[label])
    return {name: (sums[0], int(sums[1]), int(sums[2])) for name, sums in found.items()}


def test_every_source_has_its_own_labels(run_directory: Path, make_model: Make) -> None:
    loaded = load_model(find_checkpoint(make_model()))
    source = source_of(run_directory, loaded)
    wanted = expected(loaded, source)
    found = evaluator(loaded, source).measure()
    assert set(found.per_source) == {"lower", "upper"} == set(wanted)
    for name, amount in found.per_source.items():
        nats, labels, n_bytes = wanted[name]
        assert amount.loss_sum == pytest.approx(nats, rel=1e-5)
        assert (amount.n_counted, amount.n_bytes) == (labels, n_bytes)
        assert amount.bits_per_byte == pytest.approx(nats / math.log(2) / n_bytes, rel=1e-5)


def test_counts_add_up_and_the_whole_keeps_its_bits(run_directory: Path, make_model: Make) -> None:
    loaded = load_model(find_checkpoint(make_model()))
    source = source_of(run_directory, loaded, "test")
    made = evaluator(loaded, source)
    found = made.measure()
    assert sum(a.n_counted for a in found.per_source.values()) == found.n_counted
    assert sum(a.n_bytes or 0 for a in found.per_source.values()) == found.total.n_bytes
    sums = sum(a.loss_sum for a in found.per_source.values())
    assert sums == pytest.approx(found.total.loss_sum, rel=1e-6)
    nats, counted = 0.0, 0
    for first in range(0, source.rows, 4):
        rows = np.arange(first, min(first + 4, source.rows))
        pair = made.compiled.evaluate(to_batch(source.read(rows)), micro_batch_size=2)
        nats, counted = nats + pair[0], counted + pair[1]
    assert found.loss.hex() == (nats / counted).hex()


def described(made: Evaluator) -> dict[str, Any]:
    found: Evaluation = made.measure()
    return found.described()


def test_the_cluster_changes_no_bit(run_directory: Path, make_model: Make) -> None:
    place = find_checkpoint(make_model())
    lines = []
    for backend in (
        {"num_csx": 1},
        {"num_csx": 2},
        {"num_csx": 2, "transport": "simulated"},
    ):
        loaded = load_model(place)
        source = source_of(run_directory, loaded)
        lines.append(described(evaluator(loaded, source, target="CSX", **backend)))
    assert lines[0] == lines[1] == lines[2]


def test_nothing_listens_after_an_evaluation(run_directory: Path, make_model: Make) -> None:
    loaded = load_model(find_checkpoint(make_model()))
    made = evaluator(loaded, source_of(run_directory, loaded))
    made.measure()
    assert not loaded.model.label_losses._forward_hooks


def test_a_label_of_no_document_is_an_error(loaded: LoadedModel) -> None:
    compiled = CompiledModule(
        loaded.model.requires_grad_(True), BackendConfig(target="CPU", micro_batch_size=1)
    )
    rows = np.ones((1, 3, MSL), np.int32)
    sums = GroupSums(compiled, groups=1)
    group_BS = np.zeros((1, MSL), np.int64)
    group_BS[0, 3] = -1
    with sums.listening():
        compiled.evaluate(sums.tagged(to_batch(rows), group_BS))
        with pytest.raises(IntegrityError, match="the lineage has no document for 1 label"):
            sums.take()


def test_data_without_lineage_is_one_source(trainer: Any) -> None:
    """A bare directory of shards, in a run of `train_and_eval`."""
    trainer.train("out", mode="train_and_eval")
    lines = (trainer.root / "out" / "eval.jsonl").read_text().splitlines()
    last = json.loads(lines[-1])
    (name,) = last["per_source"]
    assert name == "validation"
    assert last["per_source"][name]["n_counted"] == last["n_counted"]
    assert last["per_source"][name]["loss"] == pytest.approx(last["loss"], rel=1e-6)
    assert "bits_per_byte" not in last
