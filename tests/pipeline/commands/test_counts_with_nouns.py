"""No page and no terminal says "1 documents": commands and pages on one of everything."""

import html
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.takedown.conftest import write_claim

Prep = Callable[..., Any]
ONE = re.compile(r"(?<![\w.,/-])1 (?!is\b|was\b|has\b|as\b|this\b|bytes of|less\b)([a-z]+s)\b")
CONFIG = "name: one\ninputs: [{name: one, path: raw}]\ndedup: {preset: none}\n"


@pytest.fixture
def single(tmp_path: Path, write_prose: Callable[..., str]) -> Path:
    """One file with one document."""
    (tmp_path / "raw").mkdir()
    record = {"text": write_prose(1, 300), "meta": {"url": "https://example.org/a"}}
    (tmp_path / "raw/a.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "c.yaml").write_text(CONFIG)
    return tmp_path


def test_one_of_everything(single: Path, prep: Prep) -> None:
    run, packed, claim = single / "run", single / "packed", write_claim(single, sources=["one"])
    raw, out = single / "raw", single / "dedup"
    wrong: list[tuple[str, list[str]]] = []
    for call in (
        ("run", single / "c.yaml", "--out", run, "--workers", 0),
        ("verify", run), ("verify", "--hdf5", run / "hdf5/train"), ("status", run),
        ("explain", run, "a.jsonl:1"), ("trace", run, "--document", "a.jsonl:1"),
        ("trace", run, "--file", "train/examples_000000.h5[0]"),
        ("repack", run, "--out", packed), ("plan", single / "c.yaml"),
        ("dedup", raw / "a.jsonl", "--out", out, "--workers", 0), ("verify", out),
        ("inspect", out), ("clean", raw / "a.jsonl", "--out", single / "clean", "--workers", 0),
        ("convert", run / "hdf5/train", "--to", "jsonl", "--out", single / "texts"),
        ("export", run, "--out", single / "export"),
        ("takedown", claim, "--run", run), ("takedown", claim, "--run", packed, "--plan"),
        ("takedown", claim, "--run", run, "--apply", "--by", "J. Doe"),
        ("takedown", claim, "--run", run), ("verify", run),
    ):  # fmt: skip
        ended = prep(*call)
        assert ended.code == 0, (call, ended.err)
        wrong.append((call[0], ONE.findall(f"{ended.out}\n{ended.err}")))
    for page in (run / "report.html", run / "clusters.html", out / "clusters.html",
                 run / "takedowns/takedown-c1.html", run / "takedowns/takedown-c1.md"):  # fmt: skip
        body = re.sub(r"<style.*?</style>", "", page.read_text(), flags=re.DOTALL)
        titles = " ".join(re.findall(r'title="([^"]*)"', body))
        text = html.unescape(re.sub(r"<[^>]+>", "", body)) + titles
        wrong.append((page.name, ONE.findall(text)))
    assert "; ".join(f"{name}: {nouns}" for name, nouns in wrong if nouns) == ""


def test_the_form_of_a_takedown_has_the_look_of_the_reports(single: Path, prep: Prep) -> None:
    run = single / "run"
    assert prep("run", single / "c.yaml", "--out", run, "--workers", 0).code == 0
    hostile = "Ex<script>alert(1)</script>\u202e & Sons"
    claim = write_claim(single, sources=["one"])
    claim.write_text(claim.read_text().replace("Example Press", json.dumps(hostile)))
    ended = prep("takedown", claim, "--run", run, "--apply", "--by", "J. <Doe>")
    assert ended.code == 0, ended.err
    form, report = ((run / n).read_text() for n in ("takedowns/takedown-c1.html", "report.html"))
    style = re.search(r"<style>.*?</style>", report, re.DOTALL)
    assert style and style[0] in form
    assert "<script" not in form and "\u202e" not in form
    assert "Claimant: Ex&lt;script&gt;alert(1)&lt;/script&gt;\\u202e &amp; Sons" in form
    heads = re.findall(r"<h2>(.*?)</h2>", form)
    assert heads == ["Claim", "Documents", "Data sets", "Stored copies", "Not removed", "Limits",
                     "Signed off"]  # fmt: skip
    assert form.count("<li>") == (run / "takedowns/takedown-c1.md").read_text().count("\n- ")
    assert "http:" not in form and "https:" not in form
