"""The HTML report: stable bytes, hostile texts, nothing loaded, sums, empty runs."""

import dataclasses
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from pipeline.report import model
from pipeline.report.html import render

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    '<script>alert(1)</script>" onmouseover="x\x1b[31m\x00\u202e\u2028\ud83d</style>&amp;{{ 7*7 }}'
)


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


def sample_report(text: str = "plain") -> model.Report:
    """A report with something in every section and `text` in every string."""
    sample = model.Sample(text, text, text, 1234, text)
    row = model.SourceRow(text, 12_345, 45, {text: 200, "b": 100}, 300, 1_700, 10_000, 9, 8, 7_654)
    return model.Report(
        config_name=text,
        manifest_hash=text,
        stages=(model.StageIdentity(text, text, text),),
        software=((text, text),),
        ledger=model.Ledger((row, dataclasses.replace(row, source="second"))),
        reasons=(model.DropReason(text, text, 400, 5_000_000, (sample, sample, sample)),),
        cluster_sizes=(model.ClusterSize(2, 10), model.ClusterSize(6, 1), model.ClusterSize(7, 2)),
        largest_clusters=(model.Cluster(4321, sample),),
        decisions=(model.Decision(text, text, 5_432, text),),
        document_bytes=model.log_bins([0, 1, 300, 5000], [False, True, True, True]),
        document_tokens=model.log_bins([100, 1000]),
        splits=(model.Split(text, 19, 6_543, 512, 3_350_000, 16),),
        notes=(text,),
    )


def test_same_report_same_bytes() -> None:
    assert render(sample_report()) == render(sample_report())


def test_same_bytes_in_another_process(tmp_path: Path) -> None:
    """Hash seed, locale, time zone and working directory do not matter."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); import test_report as t;"
        "sys.stdout.buffer.write(t.render(t.sample_report(t.HOSTILE)))"
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
    assert done.stdout == render(sample_report(HOSTILE))


def test_hostile_text_stays_text() -> None:
    page = render(sample_report(HOSTILE))
    assert not re.search(rb"[\x00-\x09\x0b-\x1f\x7f]", page)
    for character in "\u202e\u2028":
        assert character not in page.decode()
    parsed = Page(page)
    plain = Page(render(sample_report("plain")))
    assert "script" not in parsed.tags
    assert parsed.tags == plain.tags | {"span"}
    assert {name for name, _ in parsed.attributes} == {name for name, _ in plain.attributes}
    assert r"<script>alert(1)</script>" in parsed.text
    assert r"\x1b[31m\x00\u202e\u2028\ud83d</style>&amp;{{ 7*7 }}" in parsed.text


def test_loads_nothing() -> None:
    text = 'see <a href="https://example.org/x.png"> or url(https://example.org)'
    page = render(sample_report(text))
    parsed = Page(page)
    assert parsed.tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "base"})
    for name, value in parsed.attributes:
        assert name not in {"src", "srcset", "data", "action", "poster"}
        if name == "href":
            assert value.startswith("#")
    style = page.split(b"<style>")[1].split(b"</style>")[0]
    assert b"url(" not in style
    assert b"@import" not in style


def test_anchors_exist() -> None:
    attributes = Page(render(sample_report())).attributes
    ids = [value for name, value in attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value[1:] for name, value in attributes if name == "href"} <= set(ids)


def test_numbers_and_balance() -> None:
    text = Page(render(sample_report())).text
    assert "24,690 records = 24,600 documents + 90 bad" in text
    assert "600 dropped + 600 quarantined + 3,400 duplicates + 20,000 kept" in text
    assert "15,308" in text  # tokens of both sources
    assert "5 to 8" in text
    assert "Does not balance" not in text


def test_imbalance_is_named() -> None:
    row = model.SourceRow("leaky", 10, 0, {}, 0, 0, 9, 1, 1, 1)
    text = Page(render(model.Report("x", "y", ledger=model.Ledger((row,))))).text
    assert "Does not balance: leaky" in " ".join(text.split())


@pytest.mark.parametrize("bins", [(), model.log_bins([]), (model.Bin(0, 1, 0, 0),)])
def test_zero_rows(bins: tuple[model.Bin, ...]) -> None:
    report = model.Report("empty", "0" * 32, document_bytes=bins)
    text = Page(render(report)).text
    for words in ("No records.", "No document left.", "No rule matched.", "No rows were written."):
        assert words in text
    assert "0 records = 0 documents + 0 bad" in text


def test_many_sources_are_summed_up() -> None:
    rows = [model.SourceRow(f"s{i:03d}", 100 - i, 0, {}, 0, 0, 100 - i, 1, 1, 1) for i in range(99)]
    text = Page(render(model.Report("x", "y", ledger=model.Ledger(tuple(rows))))).text
    assert "s058" in text
    assert "s059" not in text
    assert "40 smaller sources" in text


def test_excerpt_and_bins() -> None:
    assert model.excerpt("x" * 201) == "x" * 199 + "…"
    assert model.excerpt("x" * 200) == "x" * 200
    bins = model.log_bins([0, 1, 2**40])
    assert (bins[0], bins[1]) == (model.Bin(0, 1, 1, 1), model.Bin(1, 2, 1, 1))
    assert bins[-1] == model.Bin(2**40, 2**41, 1, 1)
    assert sum(b.count for b in bins) == 3
    assert len(model.log_bins([1023, 1024])) == 2
