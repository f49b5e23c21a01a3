"""Licences, opt-outs and titles are the same however the columns of a batch are chunked."""

from collections.abc import Callable

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pipeline.screening.detectors.captures import Capture, arrange_captures
from pipeline.screening.detectors.licences import detect_licences
from pipeline.screening.detectors.optout import detect_optouts
from pipeline.screening.detectors.title_index import build_title_index
from pipeline.screening.detectors.titles import detect_titles
from pipeline.screening.evidence import FINDINGS
from pipeline.screening.registry.works import Work, make_works_table

MakeBatch = Callable[..., pa.Table]
_DAY = "2024-05-01"
CAPTURES = arrange_captures([
    Capture(kind="robots", host="example.org", captured_at=_DAY, body="User-agent: *\nDisallow: /"),
    Capture(kind="author", value="Ada Brontë", captured_at=_DAY),
    Capture(kind="document", value="00" * 15 + "01", captured_at=_DAY),
])  # fmt: skip
WORKS = make_works_table(
    [Work(work_id="w", title_raw="Quimbledon", title_norm="quimbledon", authors=("Ada Brontë",))]
)
DETECTORS: dict[str, Callable[[pa.Table], pa.Table]] = {
    "licence": detect_licences,
    "optout": lambda batch: detect_optouts(batch, CAPTURES),
    "title_author": lambda batch: detect_titles(batch, build_title_index(WORKS)),
}
TEXTS = st.sampled_from([
    "", "x", "QUIMBLEDON\nby Ada Brontë\n", "© Ünï Roe. All rights reserved.",
    "# SPDX-License-Identifier: GPL-3.0-only",
])  # fmt: skip
METAS = st.sampled_from([
    "{}", "[", '{"url": "https://example.org/x"}', '{"author": "Ada Bront\\u00eb"}',
    '{"title": "Quimbledon", "author": "Brontë, Ada", "url": "http://example.org"}',
])  # fmt: skip
LICENCES = st.sampled_from(["", "mit", "zzz", "cc-by-nc-4.0"])
DOCUMENTS = st.lists(st.tuples(TEXTS, METAS, LICENCES), max_size=6)


@pytest.mark.parametrize("name", DETECTORS)
@given(DOCUMENTS, st.lists(st.integers(0, 3), max_size=4))
@settings(max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_chunking_gives_the_same(
    name: str, make_batch: MakeBatch, documents: list[tuple[str, str, str]], chunks: list[int]
) -> None:
    texts, metas, licences = (list(column) for column in zip(*documents, strict=True)) if (
        documents
    ) else ([], [], [])  # fmt: skip

    def batch(cut: list[int]) -> pa.Table:
        made = make_batch(texts, metas, chunks=cut)
        place = made.column_names.index("licence")
        return made.set_column(place, "licence", pa.array(licences, pa.string()))

    whole = DETECTORS[name](batch([]))
    assert whole.schema == FINDINGS
    assert DETECTORS[name](batch(chunks)).equals(whole)
