"""The code blocks of docs/add_a_stage.md work as they stand."""

import importlib
import json
import re
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "add_a_stage.md"
SHOUTED, SPOKEN = "STOP SHOUTING AT ME, please!", "please stop shouting AT ME, will you"


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", DOCUMENT.read_text("utf-8"), re.M | re.S)


def test_the_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from pipeline.explain.inspect import find_dropped
    from pipeline.stories.verify import verify_run

    stage, use = blocks()
    (tmp_path / "shouting.py").write_text(stage)
    (tmp_path / "corpus").mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in (SPOKEN, SHOUTED, "1 2 3", SPOKEN)]
    (tmp_path / "corpus/a.jsonl").write_text("".join(lines))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shouting", raising=False)
    importlib.invalidate_caches()
    exec(compile(use, str(DOCUMENT), "exec"), {})
    monkeypatch.delitem(sys.modules, "shouting", raising=False)

    assert "{'documents': 4, 'shouting': 1}" in capsys.readouterr().out
    documents = pq.read_table("cleaned/documents.parquet").to_pylist()
    assert [row["state"] for row in documents] == ["kept", "dropped", "kept", "kept"]
    found = find_dropped(Path("cleaned"), "shouting", "", 10)
    assert [record.excerpt for record in found.records] == [SHOUTED]
    assert found.records[0].evidence[0].target == "73%"
    verify_run(Path("cleaned"))


def test_the_example_is_short() -> None:
    code = [line for line in blocks()[0].splitlines() if line.strip()]
    body = [line for line in code if not line.startswith(("from ", "import "))]
    assert len(body) <= 40


def test_every_filter_is_documented() -> None:
    from pipeline.filters.rules import RULES

    text = DOCUMENT.with_name("filters.md").read_text("utf-8")
    assert [reason for reason in RULES if f"`{reason}`" not in text] == []
