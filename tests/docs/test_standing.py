"""The standing benchmark: its tables show its figures, and ratios are taken within rounds."""

import json
from pathlib import Path
from typing import Any

from benchmarks.standing import tables, written

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_page_shows_the_figures_that_are_kept() -> None:
    page = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    figures = json.loads((DOCS / "benchmarks.json").read_text(encoding="utf-8"))
    assert tables(figures) in page
    assert written(page, figures) == page, "run `make bench`"


def _run(contender: str, number: int, cpu: float) -> dict[str, Any]:
    return {
        "contender": contender,
        "does": "things",
        "round": number,
        "wall": cpu / 2,
        "cpu": cpu,
        "largest_rss_mb": 100.0,
    }


def test_a_ratio_is_the_median_of_those_within_a_round() -> None:
    figures = {
        "date": "2026-11-27",
        "machine": {"processor": "a", "cores": 2, "python": "3.11.7"},
        "load": [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]],
        "megabytes": 40.0,
        "documents": 5,
        "missing": ["datatrove"],
        "failures": {"slow 1.0": "exit code 3"},
        "starts": [{"help": 0.5}, {"help": 0.1}, {"help": 0.2}],
        "kernels": {"clean": {"ours": 90.0, "theirs": 30.0}},
        "runs": [
            *(_run("ours", number, cpu) for number, cpu in enumerate((1.0, 4.0, 2.0))),
            *(_run("theirs", number, cpu) for number, cpu in enumerate((3.0, 4.0, 10.0))),
            _run("once", 0, 8.0),
        ],
    }
    shown = tables(figures)
    assert "| ours | things | 3 | 1.0 | 2.0 | 40.0 | 20.0 | 1.00 | 100 |" in shown
    assert "| theirs | things | 3 | 2.0 | 4.0 | 20.0 | 10.0 | 3.00 | 100 |" in shown
    assert "| once | things | 1 | 4.0 | 8.0 | 10.0 | 5.0 | 8.00 | 100 |" in shown
    assert "| help | 0.20 | 0.10 to 0.50 |" in shown
    assert "| clean: theirs | 30.0 | 3.0 |" in shown
    assert "slow 1.0 failed: exit code 3." in shown
    assert "datatrove was not there." in shown
