"""Files and texts with a listed digest."""

import hashlib
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from pipeline.core.errors import InputError
from pipeline.screening.detectors.lists import ArtefactList, load_shipped_artefacts
from pipeline.screening.detectors.origin import (
    detect_artefacts,
    digest_file,
    digest_text,
)

MakeBatch = Callable[..., pa.Table]


def list_of(files: list[str] | None = None, texts: list[str] | None = None) -> ArtefactList:
    def entries(digests: list[str] | None) -> tuple[dict[str, str], ...]:
        about = {"family": "acme", "basis": "Order of 1 May 2031"}
        return tuple({"sha256": digest, **about} for digest in digests or [])

    return ArtefactList.model_validate(
        {"name": "own", "version": "2", "files": entries(files), "texts": entries(texts)}
    )


def test_documents_of_a_listed_file(make_batch: MakeBatch, tmp_path: Path) -> None:
    (tmp_path / "raw").write_bytes(b"archive" * 1000)
    digest = digest_file(tmp_path / "raw")
    assert digest == hashlib.sha256(b"archive" * 1000).hexdigest()
    digests = {3: digest, 4: "0" * 64}
    batch = make_batch(["a"] * 4, path_ids=[3, 4, 3, 5])
    table = detect_artefacts(batch, (list_of(files=[digest]),), digests)
    assert table["row"].to_pylist() == [0, 2]
    assert set(table["kind"].to_pylist()) == {"file"}
    assert set(table["target"].to_pylist()) == {"acme"}
    assert set(table["seen"].to_pylist()) == {digest}
    assert set(table["attributes"].to_pylist()) == {'{"list":"own","list_version":"2"}'}


def test_listed_texts_whatever_their_white_space(make_batch: MakeBatch) -> None:
    lists = (list_of(texts=[digest_text("One é line.")]),)
    batch = make_batch(["one é line.", " One\té \n line.\N{NO-BREAK SPACE}", "One é line"])
    table = detect_artefacts(batch, lists, {})
    assert list(zip(table["row"].to_pylist(), table["kind"].to_pylist(), strict=True)) == [
        (1, "text")
    ]


def test_the_shipped_list_finds_nothing(make_batch: MakeBatch) -> None:
    assert detect_artefacts(make_batch(["a"]), (load_shipped_artefacts(),), {}).num_rows == 0


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot read it to compare its digest"):
        digest_file(tmp_path / "none")
