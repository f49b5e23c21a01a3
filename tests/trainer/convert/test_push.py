"""`train push`, by the Hub's own client against a server that speaks its protocol."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.hub_server import Hub, serve_hub
from tests.trainer.convert.models import make, state_of
from trainer.convert.conversion import CheckpointConvertOptions, convert_checkpoint
from trainer.convert.targets import write_wafermill

TO = "hf://me/tiny"


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub() as server:
        yield server


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    model, config = make()
    write_wafermill(tmp_path / "ours", state_of(model), config)
    options = CheckpointConvertOptions(
        checkpoint=tmp_path / "ours", source="wafermill", target="hf", out=tmp_path / "exported"
    )
    convert_checkpoint(options, lambda _: None)
    return tmp_path / "exported"


def test_a_conversion_goes_and_its_card_is_last(exported: Path, hub: Hub) -> None:
    (exported / "README.md").write_text("# tiny\n")
    (exported / "notes.txt").write_text("not part of the conversion")
    done = hub.push("trainer", exported, TO)
    assert done.returncode == 0, done.stderr
    (files,) = hub.commits
    assert list(files)[-1] == "README.md"
    assert {"model.safetensors", "config.json", "conversion.json"} <= set(files)
    assert files == {name: (exported / name).read_bytes() for name in files}
    assert "notes.txt" not in files
    assert done.stdout.splitlines()[-1] == f"{len(files)} files uploaded to {TO}"


def test_a_dry_run_uploads_nothing_and_says_that_there_is_no_card(exported: Path, hub: Hub) -> None:
    done = hub.push("trainer", exported, TO, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert hub.made == []
    assert "train card MODEL_DIR" in done.stdout
    assert done.stdout.splitlines()[-1].endswith(f"would be uploaded to {TO}")


def test_damage_and_other_directories_are_refused(exported: Path, hub: Hub, tmp_path: Path) -> None:
    weights = exported / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    for directory, code, expected in ((exported, 4, "damaged"), (tmp_path, 3, "train convert")):
        done = hub.push("trainer", directory, TO)
        assert (done.returncode, done.stderr.count("\n")) == (code, 1)
        assert expected in done.stderr
    assert hub.made == []
