"""Croissant: mlcroissant takes it without remarks and loads the tables it describes."""

import hashlib
import json
import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.disclosure.disclosure import Disclosure
from pipeline.disclosure.json_ld import CONFORMS_TO, croissant

from .conftest import RichRun

SPEC_NAMES = (
    "rai:dataCollection", "rai:dataCollectionType", "rai:dataCollectionTimeframe",
    "rai:dataCollectionRawData", "rai:dataPreprocessingProtocol", "rai:dataManipulationProtocol",
    "rai:dataReleaseMaintenancePlan", "rai:personalSensitiveInformation", "rai:dataBiases",
    "rai:dataLimitations", "rai:dataUseCases", "rai:dataSocialImpact",
)  # fmt: skip


@pytest.fixture(scope="module")
def published(rich_run: RichRun, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data set as it would be handed on: its files, and croissant.json beside hdf5/."""
    root = tmp_path_factory.mktemp("published")
    disclosure = rich_run.disclosure()
    for file in disclosure.files:
        (root / file.path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(rich_run.directory / file.path, root / file.path)
    (root / "croissant.json").write_text(json.dumps(croissant(disclosure)))
    return root


def load(path: Path) -> Any:
    mlcroissant = pytest.importorskip("mlcroissant")
    return mlcroissant.Dataset(str(path))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_it_validates_without_errors_or_warnings(published: Path) -> None:
    issues = load(published / "croissant.json").metadata.ctx.issues
    assert (list(issues.errors), list(issues.warnings)) == ([], [])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_lineage_and_documents_load(published: Path) -> None:
    dataset = load(published / "croissant.json")
    for split in ("train", "validation"):
        paths = sorted((published / "hdf5" / split).glob("*.lineage.parquet"))
        expected = [row for path in paths for row in pq.read_table(path).to_pylist()]
        records = [
            {key.rpartition("/")[2]: int(value) for key, value in record.items()}
            for record in islice(dataset.records(f"lineage-{split}"), 150)
        ]
        assert records == expected[: len(records)]
        assert len(records) == min(150, len(expected))
    record = next(iter(dataset.records("documents")))
    first = pq.read_table(published / "documents.parquet").slice(0, 1).to_pylist()[0]
    assert record["documents/source"].decode() == first["source"]
    assert int(record["documents/tokens"]) == first["tokens"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_names_of_the_specification_survive_a_round_trip(published: Path) -> None:
    """mlcroissant 1.1.1 names two of them otherwise; both must come back as the spec has them."""
    document = json.loads((published / "croissant.json").read_bytes())
    assert set(SPEC_NAMES) <= set(document)
    again = load(published / "croissant.json").metadata.to_json()
    assert again["conformsTo"] == list(CONFORMS_TO)
    for name in SPEC_NAMES:
        given = document[name]
        wanted = given[0] if isinstance(given, list) and len(given) == 1 else given
        assert again[name] == wanted, name
    assert "rai:dataDataManipulationProtocol" not in again


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_document_with_todos_still_loads(
    plain_disclosure: Callable[..., Disclosure], tmp_path: Path
) -> None:
    document = croissant(plain_disclosure())
    (tmp_path / "croissant.json").write_text(json.dumps(document))
    issues = load(tmp_path / "croissant.json").metadata.ctx.issues
    assert list(issues.errors) == []
    assert "datePublished" not in document
    assert "TODO(dates.published: " in document["description"]


def test_every_file_has_its_sha256(rich_run: RichRun, published: Path) -> None:
    document = json.loads((published / "croissant.json").read_bytes())
    files = [one for one in document["distribution"] if one["@type"] == "cr:FileObject"]
    assert {f["encodingFormat"] for f in files if f["@id"].endswith(".h5")} == {
        "application/x-hdf5"
    }
    on_disk = {p.relative_to(rich_run.directory).as_posix()
               for p in (rich_run.directory / "hdf5").rglob("*") if p.is_file()}  # fmt: skip
    assert on_disk <= {file["@id"] for file in files}
    for file in files:
        data = (rich_run.directory / file["contentUrl"]).read_bytes()
        assert file["sha256"] == hashlib.sha256(data).hexdigest()
        assert file["contentSize"] == f"{len(data)} B"
    names = {file["@id"] for file in files}
    assert not {name for name in names if name.startswith(("documents/", "screen/", "drops/"))}
    assert "evidence.parquet" not in names
