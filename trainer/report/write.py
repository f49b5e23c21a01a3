"""`model_dir/report.html` and the model card: read, put together, published."""

from collections.abc import Sequence
from pathlib import Path

from pipeline.core import storage
from pipeline.core.errors import ConfigError
from trainer.report.card import render as render_card
from trainer.report.data import ReportedDataSet, find_data_sets
from trainer.report.data_sets import find
from trainer.report.facts import RunFacts, read_facts
from trainer.report.html import render as render_page

REPORT, CARD = "report.html", "README.md"


def write_report(model_dir: Path, places: Sequence[Path] = ()) -> Path:
    """Publish MODEL_DIR/report.html; returns its path.

    `places`: directories of prep runs, or of shards, that the run read; without them those of the
    last time. Raises InputError for a directory without a run, or a place that holds no data set of
    it; IntegrityError for damage.
    """
    facts, data = _read(model_dir, places)
    path = model_dir / REPORT
    storage.publish(path, render_page(facts, data))
    return path


def write_card(model_dir: Path, out: Path | None = None, places: Sequence[Path] = ()) -> Path:
    """Publish a model card, MODEL_DIR/README.md without `out`; returns its path.

    Raises as `write_report`, and ConfigError when the file is there: a card may have been edited.
    """
    path = model_dir / CARD if out is None else out
    if path.exists():
        raise ConfigError(f"{path}: this file already exists; choose another with --out")
    facts, data = _read(model_dir, places)
    storage.publish(path, render_card(facts, data))
    return path


def _read(model_dir: Path, places: Sequence[Path]) -> tuple[RunFacts, tuple[ReportedDataSet, ...]]:
    facts = read_facts(model_dir)
    return facts, find_data_sets(facts.record, find(model_dir, places, facts.samples))
