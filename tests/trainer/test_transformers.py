"""Rows of `HDF5Dataset(labels="hf")` through models of transformers: the loss is ours."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from pipeline.core.errors import InputError
from pipeline.hdf5 import HDF5Dataset
from tests.scripts import load

from .data.conftest import sample_rows, vsl_rows, write

EXAMPLES = Path(__file__).parents[2] / "examples"
transformers = pytest.importorskip("transformers")


def random_rows(count: int, length: int, vocabulary: int) -> np.ndarray:
    """Rows of every kind: full, padded, masked inside, masked wholly."""
    random = np.random.default_rng(0)
    tokens = random.integers(1, vocabulary, (count, length + 1))
    mask = random.random((count, length)) > 0.3
    for row in range(0, count, 3):
        end = int(random.integers(0, length))
        mask[row, :end], mask[row, end:], tokens[row, end + 1 :] = True, False, 0
    mask[1] = False
    return np.stack([tokens[:, :-1], mask, tokens[:, 1:]], axis=1).astype(np.int32)


@pytest.mark.parametrize("family", ["GPT2", "Llama", "GPTNeoX"])
def test_the_loss_is_that_of_every_label_that_counts(family: str, tmp_path: Path) -> None:
    """Against cross-entropy over the stored labels and loss mask, from the bare logits. Positions
    end with the row: a model that was trained on these rows has no more."""
    rows = random_rows(24, 16, 50)
    write(tmp_path / "rows", rows, "sample", max_sequence_length=16)
    shape = {"vocab_size": 50, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
             "max_position_embeddings": 16, "intermediate_size": 32}  # fmt: skip
    config = getattr(transformers, f"{family}Config")(**shape)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    dataset = HDF5Dataset(tmp_path / "rows", labels="hf")
    for start, batch in enumerate(DataLoader(dataset, batch_size=8)):
        stored = torch.from_numpy(rows[start * 8 : start * 8 + 8].astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=stored[:, 0]).logits
            found = model(**batch).loss
        each = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), stored[:, 2].flatten(), reduction="none"
        )
        mask = stored[:, 1].flatten()
        assert found.item() == pytest.approx(((each * mask).sum() / mask.sum()).item(), rel=1e-6)


def test_the_loss_of_an_exported_model_is_that_of_train(trainer: Any) -> None:
    """The same validation rows and weights, by `train` and by transformers."""
    assert trainer.train("out", params=None, mode=None, num_csx=None, num_steps=2) == 0
    ours = json.loads((trainer.root / "out" / "eval.jsonl").read_text())["loss"]
    place = trainer.root / "out" / "export" / "step_0000002"
    model = transformers.AutoModelForCausalLM.from_pretrained(place).eval()
    dataset = HDF5Dataset(trainer.data / "hdf5" / "validation", labels="hf")
    (batch,) = DataLoader(dataset, batch_size=len(dataset))
    with torch.no_grad():
        assert model(**batch).loss.item() == pytest.approx(ours, rel=1e-5)


def test_values(tmp_path: Path) -> None:
    """Row by row in plain Python."""
    rows = random_rows(9, 8, 50)
    write(tmp_path / "rows", rows, "sample", max_sequence_length=8)
    dataset = HDF5Dataset(tmp_path / "rows", labels="hf")
    for (ids, mask, following), found in zip(rows.tolist(), map(dataset.__getitem__, range(9)),
                                             strict=True):  # fmt: skip
        counted = [token if one else -100 for token, one in zip(following, mask, strict=True)]
        assert found["input_ids"].tolist() == ids
        assert found["shift_labels"].tolist() == counted
        assert found["labels"].tolist() == [-100, *counted[:-1]]
        assert all(token in (-100, own) for token, own in zip(found["labels"], ids, strict=True))
        tokens = max((place + 2 for place, one in enumerate(mask) if one), default=1)
        assert found["attention_mask"].tolist() == [int(p < tokens) for p in range(8)]
        assert {array.dtype for array in found.values()} == {np.dtype(np.int64)}


def test_what_has_no_such_labels(tmp_path: Path) -> None:
    write(tmp_path / "vsl", vsl_rows(4), "vsl")
    with pytest.raises(InputError, match="prep repack RUN --out DIR --format sample"):
        HDF5Dataset(tmp_path / "vsl", labels="hf")
    write(tmp_path / "few", sample_rows(4), "sample", features=["input_ids", "mask", "labels"])
    with pytest.raises(InputError, match=r'labels="hf" needs input_ids, attention_mask, labels'):
        HDF5Dataset(tmp_path / "few", labels="hf")
    with pytest.raises(ValueError, match='expected "shifted" or "hf"'):
        HDF5Dataset(tmp_path / "few", labels="HF")  # type: ignore[arg-type]
    write(tmp_path / "corpus", np.arange(30, dtype=np.uint16), "corpus")
    found = HDF5Dataset(tmp_path / "corpus", max_sequence_length=4, labels="hf")[1]
    assert found["labels"].tolist() == [-100, 5, 6, 7]
    assert found["shift_labels"].tolist() == [5, 6, 7, 8]


@pytest.mark.filterwarnings("ignore")
def test_the_example_with_trainer(trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of transformers learns from our rows."""
    pytest.importorskip("accelerate", reason="transformers.Trainer needs accelerate")
    example = load(EXAMPLES / "train_with_transformers.py")
    first = example.main(trainer.data, 1)["eval_loss"]
    assert example.main(trainer.data, 40)["eval_loss"] < first - 0.5
