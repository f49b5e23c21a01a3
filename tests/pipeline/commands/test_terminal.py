"""Tables on a terminal: numbers stay whole, texts wrap, and data is shown as it is."""

import io
import sys

import pytest
from rich.console import Console

from pipeline.commands import app, terminal


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    file = io.StringIO()
    monkeypatch.setattr(terminal, "out", Console(file=file, width=30, highlight=False))
    return file


def test_numbers_stay_whole_and_the_total_is_apart(shown: io.StringIO) -> None:
    rows = [("a-source-with-a-very-long-name", "1,234,567"), ("[b]x", "2")]
    terminal.show_table(("source", ">tokens"), rows, title="by source", total=("all", "1,234,569"))
    lines = shown.getvalue().splitlines()
    assert lines[0].startswith("by source")
    assert "1,234,567 │" in lines[4] and lines[5].startswith("│ [b]x")
    assert lines[6].startswith("├") and "1,234,569 │" in lines[7]


def test_texts_wrap_and_nothing_is_shown_of_no_rows(shown: io.StringIO) -> None:
    terminal.show_table(("rule", "reason"), [("a", "several words, " * 5)])
    assert shown.getvalue().count("words") == 5
    shown.truncate(0)
    terminal.show_table(("rule", "reason"), [])
    assert not shown.getvalue().strip("\0")


def test_codes_of_emoji_in_data_stay(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["prep", "status", "a:100:b"])
    terminal.print_line("a:100:b.jsonl:-1")
    terminal.show_table(("file",), [("a:100:b :smile:",)])
    shown = capsys.readouterr().out
    assert "a:100:b.jsonl:-1" in shown and "a:100:b :smile:" in shown
    with pytest.raises(SystemExit):
        app.main()
    assert "a:100:b" in capsys.readouterr().err
