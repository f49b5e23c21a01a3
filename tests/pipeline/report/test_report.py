"""The HTML pages of the report: stable bytes, hostile texts, nothing loaded, sums, empty runs."""

import dataclasses
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.core.ledger import SplitLedger
from pipeline.report import html, model
from pipeline.report.cluster_summary import (
    Cluster,
    ClusterSummary,
    Matrix,
    MatrixColumn,
    SimilarityBin,
    SizeBin,
)
from pipeline.report.document_counts import DocumentCounts, count_reasons
from pipeline.report.html import render_report
from pipeline.report.page import ChartColumn, chart

ROOT = Path(__file__).resolve().parents[3]
HOSTILE = (
    '<script>alert(1)</script>" onmouseover="x\x1b[31m\x00\u202e\u2028\ud83d</style>&amp;{{ 7*7 }}'
)

LOADING = {"script", "link", "img", "iframe", "object", "embed", "base"}


class Page(HTMLParser):
    """Collects tags, attributes and visible text."""

    def __init__(self, page: bytes) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.text = ""
        self._hidden = False
        self.feed(page.decode())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        self._hidden = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._hidden = self._hidden and tag != "style"

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.text += data


def sample_summary(text: str) -> ClusterSummary:
    return ClusterSummary(
        clusters=13,
        documents=4_330,
        kinds={"near": 4_300, "exact": 20, text: 10},
        states={"duplicate": 4_329, text: 1},
        sizes=(SizeBin(2, 2, 10), SizeBin(3, 3, 0), SizeBin(4, 4, 0), SizeBin(5, 8, 3)),
        similarities=(SimilarityBin(0.98, 1.0, 4_000, 20), SimilarityBin(1.0, 1.0, 300, 0)),
        not_computed=10,
        matrix=Matrix(
            rows=(text, "second", "third"),
            columns=(MatrixColumn("second"), MatrixColumn(text), MatrixColumn("", text)),
            counts=((4_000, 300, 20), (5, 0, 0), (0, 3, 1)),
            rest_rows=4,
        ),
    )


def sample_page(text: str = "plain") -> html.ClusterPage:
    """A page with every kind of member and `text` in every string."""
    sample = model.Sample(text, text, text, 1234, text)
    equal = html.MemberExcerpt(
        sample=sample,
        kind="exact",
        state="duplicate",
        bands=(0, 8),
        estimate=1.0,
        jaccard=1.0,
        equal=True,
    )
    near = html.MemberExcerpt(
        sample=sample,
        kind=text,
        state=text,
        bands=(1,),
        estimate=0.9,
        jaccard=None,
        equal=False,
        kept_passage=((text, True),),
        passage=((text, False), (text, True)),
    )
    chain = html.MemberExcerpt(
        sample=sample, kind="chain", state="duplicate", bands=(), estimate=None, jaccard=None
    )
    cluster = Cluster(
        kept=text,
        index="",
        size=4_321,
        kinds={text: 4_320},
        sources={text: 4_320},
        lowest_jaccard=0.8123,
        lowest_estimate=None,
    )
    elsewhere = dataclasses.replace(cluster, index=text, lowest_estimate=0.7)
    return html.ClusterPage(
        config_name=text,
        manifest_hash=text,
        recipe=text,
        bands=9,
        summary=sample_summary(text),
        shares=(html.SourceShare(text, 8_000, 4_320), html.SourceShare("second", 10, 5)),
        clusters=(
            html.ClusterExcerpt(cluster, sample, text, (near, equal, chain)),
            html.ClusterExcerpt(elsewhere, None, "kept", (chain,)),
        ),
    )


def both_pages(text: str = "plain") -> list[bytes]:
    """The report and the page of clusters."""
    return [render_report(sample_report(text)), html.render_clusters(sample_page(text))]


def sample_report(text: str = "plain") -> model.Report:
    """A report with something in every section and `text` in every string."""
    sample = model.Sample(text, text, text, 1234, text)
    row = model.SourceRow(
        label=text,
        records=12_345,
        bad=45,
        dropped={text: 200, "b": 100},
        quarantined=300,
        duplicates=1_700,
        kept=10_000,
        bytes_in=9,
        bytes_kept=8,
        tokens=7_654,
    )
    return model.Report(
        config_name=text,
        manifest_hash=text,
        stages=((text, text, text),),
        software=((text, text),),
        sources=(row, dataclasses.replace(row, label="second")),
        reasons=(model.DropReason(text, text, 400, 5_000_000, (sample, sample, sample)),),
        clusters=sample_summary(text),
        decisions=(model.Decision(text, text, 5_432, text),),
        document_bytes=model.LogBins().add([0, 1, 300, 5000], [False, True, True, True]).bins(),
        document_tokens=model.LogBins().add([100, 1000]).bins(),
        splits={
            text: SplitLedger(
                documents=19,
                tokens=3_350_000,
                streams=1,
                rows=6_543,
                mask_sum=3_350_000,
                padding=16,
                max_sequence_length=512,
            ),
        },
        notes=(text,),
    )


def test_same_report_same_bytes() -> None:
    assert both_pages() == both_pages()


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Hash seed, locale, time zone and working directory do not matter."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t;"
        "sys.stdout.buffer.write(b'|'.join(t.both_pages(t.HOSTILE)))"
    )
    settings = {"PYTHONHASHSEED": "5", "LC_ALL": "C", "TZ": "Asia/Tokyo", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, **settings},
        cwd=tmp_path,
        capture_output=True,
        check=True,
        timeout=60,
    )
    assert done.stdout == b"|".join(both_pages(HOSTILE))


@pytest.mark.parametrize("number", [0, 1])
def test_hostile_text_stays_text(number: int) -> None:
    page = both_pages(HOSTILE)[number]
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", page)
    for character in "\u202e\u2028":
        assert character not in page.decode()
    parsed = Page(page)
    plain = Page(both_pages("plain")[number])
    assert "script" not in parsed.tags
    assert parsed.tags == plain.tags | {"span"}
    assert {name for name, _ in parsed.attributes} == {name for name, _ in plain.attributes}
    assert r"<script>alert(1)</script>" in parsed.text
    assert r"\x1b[31m\x00\u202e\u2028\ud83d</style>&amp;{{ 7*7 }}" in parsed.text


def test_loads_nothing() -> None:
    text = 'see <a href="https://example.org/x.png"> or url(https://example.org)'
    for page in both_pages(text):
        parsed = Page(page)
        assert parsed.tags.isdisjoint(
            {"script", "link", "img", "iframe", "object", "embed", "base"}
        )
        for name, value in parsed.attributes:
            assert name not in {"src", "srcset", "data", "action", "poster"}
            if name == "href":
                assert value.startswith("#") or value in ("report.html", "clusters.html")
        style = page.split(b"<style>")[1].split(b"</style>")[0]
        assert b"url(" not in style
        assert b"@import" not in style


def test_anchors_exist() -> None:
    for page in both_pages():
        attributes = Page(page).attributes
        ids = [value for name, value in attributes if name == "id"]
        assert len(ids) == len(set(ids))
        anchors = {value for name, value in attributes if name == "href" and value[0] == "#"}
        assert {value[1:] for value in anchors} <= set(ids)


def test_numbers_and_balance() -> None:
    text = Page(render_report(sample_report())).text
    assert "24,690 records = 24,600 documents + 90 bad" in text
    assert "600 dropped + 600 quarantined + 3,400 duplicates + 20,000 kept" in text
    assert "15,308" in text  # tokens of both sources
    assert "5 to 8" in text
    assert "Does not balance" not in text


def test_the_tile_of_tokens_says_its_number_once() -> None:
    page = render_report(sample_report()).decode()
    tile = page.partition('<div class="label">Tokens</div>')[2].partition('<div class="card')[0]
    said = Page(tile.encode()).text
    assert said.split() == ["15,308", "1", "per", "document", "kept"]
    empty = model.Report(config_name="empty", manifest_hash="0" * 32)
    assert "no document was kept" in Page(render_report(empty)).text


@pytest.mark.parametrize("buckets", [1, 2, 12])
def test_a_chart_of_few_buckets_has_narrow_columns(buckets: int) -> None:
    columns = [ChartColumn(str(n), str(n), n + 1, n) for n in range(buckets)]
    drawn = chart(columns)
    assert drawn is not None
    assert all(float(bar.width) < drawn.width / 7 for bar in drawn.bars)
    assert float(drawn.bars[-1].x) + float(drawn.bars[-1].width) < drawn.width


def test_imbalance_is_named() -> None:
    row = model.SourceRow(
        label="leaky",
        records=10,
        bad=0,
        dropped={},
        quarantined=0,
        duplicates=0,
        kept=9,
        bytes_in=1,
        bytes_kept=1,
        tokens=1,
    )
    text = Page(
        render_report(model.Report(config_name="x", manifest_hash="y", sources=(row,)))
    ).text
    assert "Does not balance: leaky" in " ".join(text.split())


@pytest.mark.parametrize("bins", [(), model.LogBins().add([]).bins(), (model.Bin(0, 1, 0, 0),)])
def test_zero_rows(bins: tuple[model.Bin, ...]) -> None:
    report = model.Report(config_name="empty", manifest_hash="0" * 32, document_bytes=bins)
    text = Page(render_report(report)).text
    for words in ("No records.", "No document left.", "No rule matched.", "No rows were written."):
        assert words in text
    assert "0 records = 0 documents + 0 bad" in text


def test_many_sources_are_summed_up() -> None:
    rows = [
        model.SourceRow(
            label=f"s{i:03d}",
            records=100 - i,
            bad=0,
            dropped={},
            quarantined=0,
            duplicates=0,
            kept=100 - i,
            bytes_in=1,
            bytes_kept=1,
            tokens=1,
        )
        for i in range(99)
    ]
    text = Page(
        render_report(model.Report(config_name="x", manifest_hash="y", sources=tuple(rows)))
    ).text
    assert "s058" in text
    assert "s059" not in text
    assert "40 smaller sources" in text


def test_excerpt_and_bins() -> None:
    assert model.excerpt("x" * 201) == "x" * 199 + "…"
    assert model.excerpt("x" * 200) == "x" * 200
    bins = model.LogBins().add([0, 1, 2**40]).bins()
    assert (bins[0], bins[1]) == (model.Bin(0, 1, 1, 1), model.Bin(1, 2, 1, 1))
    assert bins[-1] == model.Bin(2**40, 2**41, 1, 1)
    assert sum(b.count for b in bins) == 3
    assert len(model.LogBins().add([1023, 1024]).bins()) == 2


KEYS = pa.binary(16)


def documents(ends: list[tuple[str, str]], first: int) -> pa.Table:
    """Rows of documents.parquet with these states and reasons; keys fall, texts grow."""
    numbers = range(first, first + len(ends))
    return pa.table(
        {
            "doc_key": pa.array([(10**6 - n).to_bytes(16, "big") for n in numbers], KEYS),
            "source": pa.array([f"s{n % 3}" for n in numbers], pa.string()),
            "text_bytes": pa.array(numbers, pa.uint64()),
            "state": pa.array([state for state, _ in ends], pa.string()),
            "reason": pa.array([reason for _, reason in ends], pa.string()),
            "representative": pa.array(
                [None if state == "bad_record" else b"k" * 16 for state, _ in ends], KEYS
            ),
            "tokens": pa.array([10 * (state == "kept") for state, _ in ends], pa.uint32()),
        }
    )


ENDS = st.sampled_from(
    [("kept", ""), ("duplicate", "near_duplicate"), ("dropped", "a"), ("dropped", "b"),
     ("bad_record", "json"), ("quarantined", "a")]
)  # fmt: skip


@given(st.lists(ENDS, min_size=1, max_size=60), st.integers(1, 20))
def test_parts_of_documents_add_up(ends: list[tuple[str, str]], size: int) -> None:
    """Every record has one end, whatever the parts; examples are the first by key."""
    rows = documents(ends, 0).to_pylist()
    shown = pa.array([rows[0]["doc_key"], rows[-1]["doc_key"], b"?" * 16], KEYS)
    counts = DocumentCounts(shown)
    for part, first in enumerate(range(0, len(ends), size)):
        counts.add(part, documents(ends[first : first + size], first))
    losses = {(state, reason): loss for state, reason, loss in counts.losses()}
    expected = Counter(end for end in ends if end[0] != "kept")
    assert {end: loss.records for end, loss in losses.items()} == expected
    for (state, reason), loss in losses.items():
        same = [row for row in rows if (row["state"], row["reason"]) == (state, reason)]
        assert loss.bytes == sum(row["text_bytes"] for row in same)
        first_keys = sorted(row["doc_key"] for row in same)[:3]
        assert [row["doc_key"] for row in loss.examples] == first_keys
        for row in loss.examples:
            assert rows[row["part"] * size :][:size].count(
                {name: value for name, value in row.items() if name != "part"}
            )
    live = [row for row in rows if row["state"] != "bad_record"]
    assert sum(b.count for b in counts.bytes.bins()) == len(live)
    assert sum(b.kept for b in counts.bytes.bins()) == sum(b.count for b in counts.tokens.bins())
    shares = {s.source: (s.compared, s.duplicates) for s in counts.shares()}
    assert shares == {
        source: (
            sum(row["source"] == source for row in live),
            sum(row["source"] == source and row["state"] == "duplicate" for row in live),
        )
        for source in {row["source"] for row in live}
    }
    assert set(counts.rows) == {rows[0]["doc_key"], rows[-1]["doc_key"]}


def test_reasons_that_name_a_document_do_not_fill_the_page() -> None:
    """However many there are; what is left out is counted."""

    def part(first: int, taken_over: bool) -> pa.Table:
        reasons = ["the usual"] * 50 + [f"says {n}" for n in range(first, first + 5000)]
        return pa.table(
            {
                "rule": ["a rule"] * len(reasons),
                "decision": ["review"] * len(reasons),
                "reason": reasons,
                "propagated_from": pa.array([b"k" * 16 if taken_over else None] * len(reasons)),
            }
        )

    found = list(count_reasons([part(0, False), part(5000, False), part(0, True)]))
    assert len(found) == 20 and sum(decision.documents for decision in found) == 3 * 5050
    by_reason = {decision.reason: decision.documents for decision in found}
    assert by_reason["the usual"] == 100
    assert by_reason["taken over from a document of the same cluster"] == 5050
    assert by_reason["other reasons"] > 9000


# -- the page of clusters ---------------------------------------------------------------------


def test_clusters_in_numbers() -> None:
    page = html.render_clusters(sample_page()).decode().partition("</style>")[2]
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    for words in (
        "Compared 8,010", "Duplicates 4,325 54.0 % of them", "Clusters 13", "5 to 8",
        "near: much of the text is the same 4,300", "exact: the same normalised text 20",
        "Another document was kept instead of 4,330: 4,329 duplicate, 1 plain.", "unknown 10",
        "4 smaller sources", "index plain", "All sources 4,005 303 21 4,329",
        "second 10 5 50.0 %", "lowest similarity 0.812", "lowest estimate 0.700",
        "The texts are equal.", "Its text is not in this run.", "4,317 more.",
    ):  # fmt: skip
        assert words in text, words


def test_report_links_to_the_clusters() -> None:
    page = render_report(sample_report()).decode()
    assert 'href="clusters.html"' in page
    assert "4,300" in Page(page.encode()).text
    assert (
        'href="clusters.html"'
        not in render_report(model.Report(config_name="empty", manifest_hash="0" * 32)).decode()
    )


def test_no_clusters() -> None:
    text = Page(
        html.render_clusters(html.ClusterPage(config_name="empty", manifest_hash="0" * 32))
    ).text
    assert "Nothing was compared." in text
    assert text.count("No duplicates were found.") == 4


def test_no_similarities() -> None:
    summary = dataclasses.replace(sample_summary("x"), similarities=(), not_computed=4_330)
    page = dataclasses.replace(sample_page("x"), summary=summary)
    text = Page(html.render_clusters(page)).text
    assert "No similarity was computed, as candidate pairs were not verified." in text


def cells(page: str) -> list[list[str]]:
    """The cells of the body of the matrix, row by row."""
    matrix = page.partition('<table class="matrix">')[2].partition("</tbody>")[0]
    rows = matrix.partition("<tbody>")[2].split("</tr>")[:-1]
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]


def test_the_matrix_adds_up_to_the_ledger(small_run: Any) -> None:
    page = (small_run.directory / "clusters.html").read_text()
    plain = [[re.sub(r"<[^>]*>", "", cell) for cell in row] for row in cells(page)]
    ledger = small_run.json("ledger.json")["sources"]
    expected = {name: source["duplicates"]["documents"] for name, source in ledger.items()}
    assert {row[0]: int(row[-1]) for row in plain} == {n: c for n, c in expected.items() if c}
    for row in plain:
        assert sum(int(cell or 0) for cell in row[1:-1]) == int(row[-1])


def test_the_page_shows_pairs(small_run: Any) -> None:
    page = (small_run.directory / "clusters.html").read_text()
    rows = small_run.table("clusters.parquet").to_pylist()
    assert all(row["kept"].hex() in page and row["member"].hex() in page for row in rows)
    near = next(row for row in rows if row["kind"] == "near")
    assert f"{near['jaccard']:.3f}" in page and '<em class="differs">elsewhere.</em>' in page
    assert page.count('class="on"') == sum(len(row["bands"]) for row in rows)


def test_runs_without_clusters_have_the_page_too(
    small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    pipeline.run(small_run.corpus.config, tmp_path, 0, overrides=("dedup.preset=none",))
    assert "No duplicates were found." in (tmp_path / "clusters.html").read_text()
    assert prep("verify", tmp_path).code == 0
    assert "0 clusters" in prep("inspect", tmp_path).out
