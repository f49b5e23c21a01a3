"""Golden content hashes per stage: an output that changes must come with a raised stage version.

Regenerate, after raising `version` of the stage whose output you changed:

    WAFERMILL_REGENERATE_GOLDEN=1 python -m pytest tests/pipeline/test_golden.py

The fixture is plain jsonl, so that no compressor's version is part of it. Left out are `params` and
`report`, whose content is bytes of files that hold file hashes and software versions; what `params`
says of the content stands under `data_sets`.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pipeline
from pipeline.core import storage

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "stages.json"
SHARDS = (("papers", "part-0.jsonl"), ("web", "a.jsonl"), ("web", "b.jsonl"))
BYTES_ONLY = ("params", "report")


@pytest.fixture(scope="module")
def found(
    make_corpus: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("golden")
    config, tasks = make_corpus(root / "corpus", SHARDS).config, ("read.task_bytes=40000",)
    manifest = pipeline.run(config, root / "run", 0, overrides=tasks)
    params = {
        split: json.loads((root / f"run/hdf5/{split}/data_params.json").read_bytes())
        for split in ("train", "validation")
    }
    stages = [
        {"stage": m.stage, "version": m.fields["version"], "content_hash": m.content_hash}
        for m in manifest.stages.values()
        if m.stage not in BYTES_ONLY
    ]
    data_sets = {split: value["dataset_hash"] for split, value in params.items()}
    return {"stages": stages, "data_sets": data_sets}


def first_change(golden: dict[str, Any], found: dict[str, Any]) -> str | None:
    """The first stage, in the order of the story, that gives something else, or None."""
    names = [s["stage"] for s in golden["stages"]]
    if names != [s["stage"] for s in found["stages"]]:
        return "the list of stages changed; regenerate"
    for old, new in zip(golden["stages"], found["stages"], strict=True):
        if new["version"] != old["version"]:
            return f"{old['stage']}: version {old['version']} became {new['version']}; regenerate"
        if new["content_hash"] != old["content_hash"]:
            return f"{old['stage']}: the output changed but its version is still {old['version']}"
    return None if golden["data_sets"] == found["data_sets"] else "params: the data sets changed"


def test_golden(found: dict[str, Any]) -> None:
    if os.environ.get("WAFERMILL_REGENERATE_GOLDEN"):
        GOLDEN.write_bytes(storage.canonical_json(found))
    golden = json.loads(GOLDEN.read_bytes())
    change = first_change(golden, found)
    assert change is None, f"{change} (see the top of this file)"


def test_a_change_without_a_version_is_found(found: dict[str, Any]) -> None:
    for index, stage in enumerate(found["stages"]):
        other = json.loads(json.dumps(found))
        other["stages"][index]["content_hash"] = "0" * 32
        message = first_change(found, other)
        assert message == (
            f"{stage['stage']}: the output changed but its version is still {stage['version']}"
        )
        other["stages"][index]["version"] += 1
        assert "regenerate" in (first_change(found, other) or "")
