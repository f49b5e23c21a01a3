"""Every detector tells the same of a batch however its columns are chunked, and of no documents."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.screening.detectors.lists import ArtefactList, load_shipped_origins
from pipeline.screening.detectors.markers import MarkerIndex, detect_markers
from pipeline.screening.detectors.notices import (
    detect_identifiers,
    detect_notices,
)
from pipeline.screening.detectors.origin import (
    OriginIndex,
    detect_artefacts,
    detect_origin,
    digest_text,
)
from pipeline.screening.evidence import FINDINGS

MakeBatch = Callable[..., pa.Table]
Detect = Callable[[pa.Table], pa.Table]
PIECES = st.sampled_from([
    "Downloaded from Bibliotik\n", "[libgen.rs]", "Sci-Hub", "library\ngenesis ", "z-lib.org ",
    "© 1999 Ünï Doe\n", "All rights reserved. ", "ISBN 0-306-40615-2 ", "doi:10.1000/182 ", "\n",
    "ordinary words, ", "é", "\U0001f600", "Copyright ", "ISBN", "libgen.",
])  # fmt: skip
TEXTS = st.lists(PIECES, max_size=6).map("".join)
METAS = st.sampled_from(
    ["{}", '{"url": "https://libgen.is/x"}', '{"pile_set_name": "Books3"}', "["]
)
SOURCES = st.sampled_from(["", "Books3", "libgen.rs", "Wikipedia (en)"])
DOCUMENTS = st.lists(st.tuples(TEXTS, METAS, SOURCES, st.integers(0, 2)), max_size=6)
LISTED = ArtefactList.model_validate({
    "name": "own", "version": "1",
    "texts": ({"sha256": digest_text("é"), "family": "acme", "basis": "Order of 2031"},),
})  # fmt: skip
ORIGINS, MARKERS = OriginIndex((load_shipped_origins(),)), MarkerIndex((load_shipped_origins(),))
DETECTORS: dict[str, Detect] = {
    "artefact": lambda batch: detect_artefacts(batch, (LISTED,), {}),
    "origin": lambda batch: detect_origin(batch, ORIGINS, {1: "books3/x.txt"}),
    "marker": lambda batch: detect_markers(batch, MARKERS),
    "identifier": lambda batch: detect_identifiers(batch, {"10.1000/182": "w"}),
    "notice": detect_notices,
}


@pytest.mark.parametrize("name", DETECTORS)
@given(DOCUMENTS, st.lists(st.integers(0, 3), max_size=4))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunking_gives_the_same(
    name: str,
    make_batch: MakeBatch,
    documents: list[tuple[str, str, str, int]],
    chunks: list[int],
) -> None:
    columns = [list(column) for column in zip(*documents, strict=True)] or [[], [], [], []]
    whole = DETECTORS[name](make_batch(*columns))
    assert whole.schema == FINDINGS
    assert DETECTORS[name](make_batch(*columns, chunks=chunks)).equals(whole)
    assert DETECTORS[name](make_batch(*columns)).equals(whole)
    order = [(f["row"], f["byte_offset"], f["kind"], f["target"]) for f in whole.to_pylist()]
    assert order == sorted(order)


@pytest.mark.parametrize("name", DETECTORS)
def test_each_document_by_itself_gives_the_same(name: str, make_batch: MakeBatch) -> None:
    texts = [
        "Downloaded from Bibliotik\nISBN 0-306-40615-2",
        "© 1999 Doe, doi:10.1000/182",
        "é",
        "",
    ]
    sources = ["Books3", "", "Books3", ""]
    together = DETECTORS[name](make_batch(texts, sources=sources)).to_pylist()
    alone = [
        {**finding, "row": row}
        for row in range(len(texts))
        for finding in DETECTORS[name](make_batch([texts[row]], sources=[sources[row]])).to_pylist()
    ]
    assert together == alone


@pytest.mark.parametrize("name", DETECTORS)
def test_no_documents(name: str, make_batch: MakeBatch) -> None:
    assert DETECTORS[name](make_batch([])).equals(FINDINGS.empty_table())
    batch = make_batch(["a"])
    no_chunks = pa.table({field.name: pa.chunked_array([], field.type) for field in batch.schema})
    assert DETECTORS[name](no_chunks).equals(FINDINGS.empty_table())
