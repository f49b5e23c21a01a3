"""`train` on what Model Zoo's scripts wrote, and on corpora of `prep convert`: the losses are those
of the same rows in our own format."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.hdf5.foreign.dataset import UNKNOWN_ID, open_any
from tests.forked import prep_in_fork
from tests.programs import Program
from trainer.cli import app
from trainer.config import SampleInputConfig
from trainer.data import open_training

from ..conftest import MSL, VOCABULARY, Trainer
from .conftest import Make, write

Writer = Callable[[Path, np.ndarray], None]
Make3 = Callable[..., np.ndarray]


def model_zoo_file(path: Path, rows: np.ndarray, dtype: str = "i4", name: str = "data") -> None:
    """As `create_hdf5_dataset.py` writes one: a row a chunk, gzip, `n_examples`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file.attrs["n_examples"] = len(rows)
        file.create_dataset(
            name, data=rows, dtype=dtype, chunks=(1, *rows.shape[1:]), compression="gzip"
        )


def described(directory: Path, params: dict[str, Any]) -> None:
    (directory / "data_params.json").write_text(json.dumps(params, indent=4, sort_keys=True))


def release_1_8(directory: Path, rows: np.ndarray) -> None:
    """Arguments at the top, `examples_{file}_{process}.h5`, checkpoints beside them."""
    for name, part in zip(("0_0", "1_0", "0_1"), np.array_split(rows, 3), strict=True):
        model_zoo_file(directory / f"examples_{name}.h5", part)
    (directory / "checkpoint_0.txt").write_text("120, 2")
    described(directory, {"max_seq_length": MSL, "eos_id": 0, "pad_id": 0, "pack_sequences": True})


def release_2_0(directory: Path, rows: np.ndarray) -> None:
    """Sections of arguments, and what came of it."""
    release_1_8(directory, rows)
    facts = {"n_examples": len(rows), "eos_id": 0, "pad_id": 0, "vocab_size": VOCABULARY - 4}
    described(directory, {
        "setup": {"output_dir": "elsewhere", "processes": 2, "seed": 0},
        "processing": {"max_seq_length": MSL, "short_seq_prob": 0.0, "files_per_record": 50000},
        "dataset": {"pack_sequences": True, "inverted_mask": False, "use_ftfy": False},
        "post-process": {**facts, "discarded_files": 0, "successful_files": 120},
        "h5_dataset_stats": {"num_sequences": len(rows), "num_tokens": rows[:, 0].size},
    })  # fmt: skip


def release_2_3(directory: Path, rows: np.ndarray) -> None:
    """`output_chunk_*`, `features`, ids of the tokenizer under `processing`."""
    for name, part in zip(("0_0_0", "1_0_1", "1_prefix"), np.array_split(rows, 3), strict=True):
        model_zoo_file(directory / f"output_chunk_{name}.h5", part)
    described(directory, {
        "features": ["input_ids", "attention_mask", "labels"],
        "processing": {"max_seq_length": MSL, "eos_id": 0, "pad_id": 0, "vocab_size": VOCABULARY},
        "post-process": {"num_pad_tokens": 0},
    })  # fmt: skip


def converted(directory: Path, rows: np.ndarray) -> None:
    """`convert_dataset_to_HDF5` of samples whose keys are in another order, 64 bits wide."""
    order = ["labels", "input_ids", "attention_mask"]
    for number, part in enumerate(np.array_split(rows[:, [2, 0, 1]], 3), 1):
        model_zoo_file(directory / f"dataset-partition-{number}.h5", part, "i8")
    described(directory, {"n_examples": len(rows), "features": order, "dtype": "i8",
                          "max_sequence_length": MSL, "features_len": 3})  # fmt: skip


def without_params(directory: Path, rows: np.ndarray) -> None:
    for number, part in enumerate(np.array_split(rows, 3)):
        model_zoo_file(directory / f"data-{number:05d}.h5", part)


def run(*words: object) -> Program:
    """`train …` in a process of its own."""
    done = Program(lambda: app([*map(str, words)]))
    done.wait()
    return done


def section(place: Any) -> SampleInputConfig:
    return SampleInputConfig(data_dir=place, batch_size=2)


def losses(directory: Path) -> list[str]:
    lines = (directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["loss_hex"] for line in lines]


def trained(trainer: Trainer, name: str, directory: Path, **train_input: Any) -> list[str]:
    """The losses of 4 steps, of which the last two are those of a second process."""
    params = trainer.configure(f"{name}.yaml", train_input=train_input)
    for steps in (2, 4):
        done = run("CPU", "--params", params, "--data", directory, "--mode", "train",
                   "--num_steps", steps, "--model_dir", trainer.root / name)  # fmt: skip
        assert done.returncode == 0, done.err
    return losses(trainer.root / name)


GENERATIONS = (release_1_8, release_2_0, release_2_3, converted, without_params)


@pytest.mark.parametrize("generation", GENERATIONS)
def test_files_of_model_zoo(trainer: Trainer, make_rows: Make3, generation: Writer) -> None:
    rows = make_rows(50, seed=7)
    rows[:, 0, 0] = 3  # ids of a smaller vocabulary than the model's are fine
    generation(trainer.root / "foreign", rows)
    parts = [h5py.File(p)["data"][:] for p in sorted((trainer.root / "foreign").glob("*.h5"))]
    rows = np.concatenate(parts)
    rows = rows[:, [1, 2, 0]] if generation is converted else rows
    own = write(trainer.root / "own", rows.astype(np.int32), "sample", max_sequence_length=MSL,
                vocab_size=VOCABULARY, rows_globally_shuffled=False)  # fmt: skip
    assert trained(trainer, "a", trainer.root / "foreign") == trained(trainer, "b", own)


def test_without_a_params_file(trainer: Trainer, make_rows: Make3) -> None:
    """The length of the files, and the highest id where nothing says how many there are."""
    rows = make_rows(200, seed=7)
    release_1_8(trainer.root / "foreign", rows)
    out = trainer.root / "out"
    done = run("CPU", "--data", trainer.root / "foreign", "--num_steps", "1", "--model_dir", out)
    assert done.returncode == 0, done.err
    model = json.loads((out / "run.json").read_bytes())["model"]
    assert model["max_position_embeddings"] == MSL
    assert model["vocab_size"] == max(rows[:, 0].max(), rows[:, 2].max()) + 1
    release_2_0(trainer.root / "foreign", rows)
    assert open_any(trainer.root / "foreign").vocab_size == VOCABULARY - 4


def test_a_corpus_of_prep_convert(trainer: Trainer) -> None:
    """With the row length of the params file; the numbers are those of cutting it up by hand."""
    texts = trainer.root / "texts.jsonl"
    lines = [json.dumps({"text": f"Line {n} says that {n * n} is {n} squared."}) for n in range(90)]
    texts.write_text("\n".join(lines))
    corpus = trainer.root / "corpus"
    made = prep_in_fork("convert", texts, "--to", "corpus", "--out", corpus)
    assert made.code == 0, made.err
    params = trainer.configure(model={"vocab_size": 50257}, train_input={"data_dir": str(corpus)})
    words = ("CPU", "--params", params, "--num_steps", "2", "--mode", "train", "--model_dir")
    done = run(*words, trainer.root / "a")
    assert done.returncode == 0, done.err
    (file,) = corpus.glob("*.h5")
    tokens = h5py.File(file)["data"][:].astype(np.int32)
    ids = np.stack([tokens[k : k + MSL + 1] for k in range(0, len(tokens) - MSL, MSL)])
    rows = np.stack([ids[:, :-1], np.ones_like(ids[:, 1:]), ids[:, 1:]], axis=1)
    own = write(trainer.root / "own", rows, "sample", max_sequence_length=MSL, vocab_size=50257,
                rows_globally_shuffled=False)  # fmt: skip
    trainer.configure(model={"vocab_size": 50257}, train_input={"data_dir": str(own)})
    done = run(*words, trainer.root / "b")
    assert done.returncode == 0, done.err
    assert losses(trainer.root / "a") == losses(trainer.root / "b")


def test_vsl_rows(make: Make, model: Any, trainer: Trainer) -> None:
    place = make("vsl", 12, "vsl")
    (place / "data_params.json").unlink()
    params = trainer.configure(model={"vocab_size": 5000, "max_position_embeddings": 8},
                               train_input={"use_vsl": True})  # fmt: skip
    done = run("CPU", "--params", params, "--data", place, "--mode", "train", "--num_steps", "1",
               "--model_dir", trainer.root / "out")  # fmt: skip
    assert done.returncode == 0, done.err


def test_what_is_missing_is_named(trainer: Trainer, make_rows: Make3, tmp_path: Path) -> None:
    def refused(*more: object, code: int = 3, listed: bool = False) -> str:
        done = run("CPU", "--params", trainer.params, "--mode", "train", "--num_steps", "2",
                   "--model_dir", tmp_path / "out", *more)  # fmt: skip
        assert done.returncode == code and ("Job id" in done.out) is listed
        assert done.err.count("\n") == 1 and done.err.startswith("error: ")
        return done.err

    rows = make_rows(8, seed=1)
    missing = tmp_path / "nowhere"
    assert f"--data {missing}: no such directory or file" in refused("--data", missing, code=2)
    deep = tmp_path / "deep"
    model_zoo_file(deep / "part" / "examples_0_0.h5", rows)
    trainer.configure(train_input={"data_dir": str(deep)})
    assert f"{deep / 'part'} has some: name that directory" in refused()
    one = tmp_path / "one"
    model_zoo_file(one / "a.h5", rows.reshape(8, -1))
    assert "48 features, but 0 are named ('data' is int32 (rows, 48))" in refused("--data", one)
    described(one, {"features": ["x"] * 48})
    assert "expects integers (rows, 3 or 5, MSL)" in refused("--data", one)
    four = tmp_path / "four"
    model_zoo_file(four / "a.h5", np.concatenate([rows, rows[:, :1]], axis=1))
    assert "rows hold 4 features, but 0 are named" in refused("--data", four)
    described(four, {"features": ["ids", "mask", "labels", "x"]})
    assert "training needs input_ids, attention_mask, labels" in refused("--data", four)
    larger = rows.copy()
    larger[5, 2, 3] = VOCABULARY + 40
    too_large = tmp_path / "large"
    model_zoo_file(too_large / "a.h5", larger)
    message = refused("--data", too_large, listed=True)
    assert "a.h5: row 5: id 101 is outside the vocabulary of 61" in message
    assert "set model.vocab_size of the params file to 102 or more" in message


def test_another_data_set_in_the_place_of_one(trainer: Trainer, make_rows: Make3) -> None:
    """Nothing is recorded about the files, so their bytes tell."""
    place = trainer.root / "foreign"
    without_params(place, make_rows(50, seed=7))
    trained(trainer, "a", place)
    changed = make_rows(50, seed=7)
    changed[0, 1] = 0
    without_params(place, changed)
    done = run("CPU", "--params", trainer.root / "a.yaml", "--data", place, "--mode", "train",
               "--num_steps", "5", "--model_dir", trainer.root / "a")  # fmt: skip
    assert done.returncode == 2 and "datasets" in done.err


def test_what_a_foreign_set_does_not_say(make: Make, model: Any) -> None:
    own, foreign = make("own", 6), make("foreign", 6, first=900)
    (foreign / "data_params.json").unlink()
    source = open_training(section([own, foreign]), model)
    assert source.datasets[1].eos_id == UNKNOWN_ID
    described(foreign, {"processing": {"vocab_size": 6000}})
    with pytest.raises(ConfigError, match=r"vocab_size is 5000 .* has vocab_size 6000"):
        open_training(section(foreign), model)
    described(foreign, {"dataset": {"inverted_mask": True}})
    with pytest.raises(InputError, match=r"dataset.inverted_mask is true"):
        open_training(section(foreign), model)
