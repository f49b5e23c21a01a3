"""Preprocessing files of Model Zoo: `train data_preprocess run --config FILE`."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import ftfy
import h5py
import numpy as np
import numpy.typing as npt
import pytest
import yaml
from tokenizers import Tokenizer
from typer.testing import CliRunner

from trainer.cli import app
from trainer.data.preprocessing import read_preprocessing, to_prep

EOS = 50256
TEXTS = [f"document {n}: schÃ¶n, “quoted” " + "and so on " * (n % 7) for n in range(40)]


def write(path: Path, **changes: Any) -> Path:
    """A preprocessing file with values at dotted keys, booleans in the spelling of YAML 1.1."""
    file: dict[str, Any] = {
        "setup": {
            "data": {"source": str(path.parent / "raw"), "type": "local"},
            "mode": "pretraining",
            "output_dir": str(path.parent / "out"),
            "processes": 0,
        },
        "processing": {
            "custom_tokenizer": "gpt2tokenizer",
            "tokenizer_params": {"vocab_file": "vocab.bpe", "encoder_file": "encoder.json"},
            "max_seq_length": 16,
            "short_seq_prob": 0.0,
            "write_in_batch": True,
            "read_hook": "a.package.hooks:text_read_hook",
            "read_hook_kwargs": {"text_key": "content"},
            "use_ftfy": True,
        },
        "dataset": {"pack_sequences": True},
    }
    for dotted, value in changes.items():
        *parents, last = dotted.split("__")
        target = file
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
    path.write_text(yaml.safe_dump(file).replace("true", "True").replace("false", "False"))
    return path


def run(config: Path, *more: str):
    return CliRunner().invoke(app, ["data_preprocess", "run", "--config", str(config), *more])


@pytest.mark.parametrize("use_ftfy", [True, False])
def test_rows_hold_every_text_once(use_ftfy: bool, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    lines = (json.dumps({"content": text}) for text in TEXTS)
    (tmp_path / "raw" / "a.jsonl").write_text("\n".join(lines))
    options = {"processing__use_ftfy": use_ftfy, "processing__max_seq_length": 2048}
    done = run(write(tmp_path / "p.yaml", **options))
    assert done.exit_code == 0, done.output
    assert "Without effect here: processing.write_in_batch" in done.output
    [shard] = (tmp_path / "out" / "hdf5" / "train").glob("*.h5")
    with h5py.File(shard) as file:
        [(inputs, mask, labels)] = file["data"][:]
    assert len(inputs) == 2048
    length = int(mask.sum())
    assert (inputs[1:length] == labels[: length - 1]).all()
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    fixed = [ftfy.fix_text(text) if use_ftfy else text for text in TEXTS]
    expected = Counter(tuple(tokenizer.encode(text).ids) for text in fixed)
    tokens = np.concatenate([inputs[:1], labels[:length]])
    assert Counter(map(tuple, split(tokens))) == expected


def split(tokens: npt.NDArray[np.int32]) -> list[list[int]]:
    ends = np.flatnonzero(tokens == EOS)
    return [part[:-1].tolist() for part in np.split(tokens, ends + 1) if len(part)]


def test_what_becomes_of_the_keys(tmp_path: Path) -> None:
    config = write(
        tmp_path / "p.yaml",
        dataset__use_vsl=True,
        processing__shuffle_seed=7,
        processing__ftfy_normalizer="NFKC",
        processing__eos_id=5,
        processing__UNSAFE_skip_jsonl_decoding_errors=True,
        setup__data_splits={"train": {"split_fraction": 0.8}, "val": {"split_fraction": 0.2}},
    )
    prep = to_prep(read_preprocessing(config))
    assert prep["pack"] == {"max_sequence_length": 16, "validation_share": 0.2, "format": "vsl"}
    assert prep["seed"] == 7
    assert prep["read"] == {"on_bad_record": "drop"}
    assert prep["clean"]["ftfy"] == {"normalization": "NFKC"}
    assert prep["tokenize"] == {"tokenizer": "gpt2", "eos": 5}
    assert prep["inputs"][0]["text_key"] == "content"


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("setup__mode", "finetuning", "setup.mode: expected 'pretraining'"),
        ("setup__data__type", "huggingface", "setup.data.type: expected 'local'"),
        ("processing__max_seq_lenght", 8, "did you mean 'max_seq_length'?"),
        ("processing__short_seq_prob", 0.5, "processing.short_seq_prob: "),
        ("processing__wikitext_detokenize", True, "processing.wikitext_detokenize: "),
        ("dataset__pack_sequences", False, "dataset.pack_sequences: "),
        ("dataset__training_objective", "fim", "dataset.training_objective: unknown key"),
        ("processing__read_hook", "hooks:chat_read_hook", "only text_read_hook is supported"),
        (
            "setup__data_splits",
            {"test": {"split_fraction": 0.5}},
            "setup.data_splits.test: expected train and val",
        ),
        ("setup__data_splits", {"val": {"context_splits": {}}}, "context_splits: unknown key"),
    ],
)
def test_what_is_refused_by_name(key: str, value: Any, message: str, tmp_path: Path) -> None:
    done = run(write(tmp_path / "p.yaml", **{key: value}))
    assert done.exit_code == 2
    assert message in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_tokenizer_that_is_not_here(tmp_path: Path) -> None:
    config = write(
        tmp_path / "p.yaml",
        processing__custom_tokenizer=None,
        processing__huggingface_tokenizer="tiiuae/falcon-7b",
    )
    done = run(config)
    assert done.exit_code == 2
    assert "tokenizer tiiuae/falcon-7b: there is no such file or directory" in done.stderr
