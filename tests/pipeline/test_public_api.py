"""What other programs rely on: the two functions of `pipeline`, and data that cannot harm them."""

import hashlib
import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pytest

import pipeline
from pipeline.core.errors import InputError
from pipeline.core.hashes import hash_bytes
from pipeline.hdf5.chunks import sample_shard
from pipeline.hdf5.read import open_dataset


def test_public_names() -> None:
    """`pipeline.run` stays the function whatever modules are imported."""
    import pipeline.stories.preparation

    assert {"clean_texts", "run", "tokenize_texts"} <= set(pipeline.__all__)
    assert callable(pipeline.run)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string()])
def test_clean_texts_takes_lists_and_arrow(kind: pa.DataType) -> None:
    texts, clean = ["schÃ¶n", "a &amp; b"], ["schön", "a & b"]
    assert pipeline.clean_texts(texts) == clean
    array = pipeline.clean_texts(pa.array(texts, kind))
    assert array.type == kind and array.to_pylist() == clean


def test_another_row_length_tokenizes_nothing_again(small_run: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    config = small_run.corpus.config
    pipeline.run(config, out, 0)
    longer = ("pack.max_sequence_length=64",)
    assert {"tokenize", "gather"} <= set(pipeline.run(config, out, 0, overrides=longer).reused)
    seed = (*longer, "seed=12345", "pack.validation_share=0.2")
    again = set(pipeline.run(config, out, 0, overrides=seed).reused)
    assert {"clean", "signatures", "bands"} <= again
    assert not {"tokenize", "gather", "rows", "pack"} & again


def test_labels_cannot_write_markup_or_escapes_to_the_terminal(
    tmp_path: Path, prep: Callable[..., Any]
) -> None:
    """A source label is shown as text: no rich markup, no control characters."""
    words = [hashlib.sha256(str(i).encode()).hexdigest() for i in range(40)]
    meta = {"pile_set_name": "A[/b]\x1b[31m", "license": "[bold]\x1b]0;title\x07"}
    records = [json.dumps({"text": " ".join(words[n:] + words[:n]), "meta": meta}) for n in (0, 20)]
    (tmp_path / "raw.jsonl").write_text("\n".join(records) + "\n")
    (tmp_path / "c.yaml").write_text("name: c\ninputs: [{name: raw, path: raw.jsonl}]\n")
    out = tmp_path / "run"
    options = ("--set", "pack.max_sequence_length=16", "--set", "dedup.preset=none")
    ended = prep("run", tmp_path / "c.yaml", "--out", out, "--workers", 0, *options)
    assert ended.code == 0, ended.err
    traced = prep("trace", out, "--file", "hdf5/train/examples_000000.h5", "--row", 0)
    assert traced.code == 0, traced.err
    for shown in (ended.out, traced.out):
        assert "A[/b]\\x1b[31m" in shown
        assert "\x1b" not in shown and "\x07" not in shown
    assert "[bold]\\x1b]0;title\\x07" in traced.out


def write_dataset(directory: Path, image: bytes, name: str = "a.h5") -> Path:
    """A data set of one shard of 2 rows of 8 tokens, with parameters that vouch for its bytes."""
    directory.mkdir()
    (directory / "a.h5").write_bytes(image)
    file = {"name": name, "n_examples": 2, "hash": hash_bytes(image), "content_hash": ""}
    params = {"files": [file], "n_examples": 2, "max_sequence_length": 8, "vocab_size": 50257,
              "eos_id": 50256, "rows_globally_shuffled": True, "dataset_hash": "x"}  # fmt: skip
    (directory / "data_params.json").write_text(json.dumps(params))
    return directory


def test_a_shard_that_points_elsewhere_is_refused(tmp_path: Path) -> None:
    rows = np.zeros((2, 3, 8), np.int32)
    (tmp_path / "secret.h5").write_bytes(sample_shard(rows))
    sound = open_dataset(write_dataset(tmp_path / "sound", sample_shard(rows)))
    assert (sound.read(np.arange(2)) == rows).all()
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        file["data"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "data")
    linked = open_dataset(write_dataset(tmp_path / "linked", buffer.getvalue()))
    with pytest.raises(InputError, match="ExternalLink"):
        linked.read(np.arange(2))


def test_a_file_name_may_not_leave_the_directory(tmp_path: Path) -> None:
    rows = np.zeros((2, 3, 8), np.int32)
    directory = write_dataset(tmp_path / "d", sample_shard(rows), "../d/a.h5")
    with pytest.raises(InputError, match="leaves the directory"):
        open_dataset(directory)
