"""`prep convert` called again: after a kill, without room, on damaged and foreign outputs."""

import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pipeline.convert.options import ConvertOptions
from pipeline.convert.plan import choose_plan
from pipeline.convert.run import run_conversion
from pipeline.core import failpoint
from pipeline.core.errors import ConfigError, InputError, ResourceError
from pipeline.core.hashes import tree_hash
from tests.forked import forked
from tests.pipeline.convert.conversions import stream, to, write_texts
from tests.slow import mark_slow


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    return write_texts(tmp_path)


CASES = {"hdf5": {"length": 16, "samples_per_file": 20}, "jsonl": {"shard_size": 1 << 10},
         "corpus": {"shard_size": 1 << 10}, "bin": {}, "tokens": {"shard_size": 1 << 10},
         "mds": {"length": 16, "shard_size": 1 << 10}}  # fmt: skip


STEP = {"hdf5": 1, "jsonl": 9, "corpus": 5, "bin": 1, "tokens": 5, "mds": 5}
"""Every so many fault points, to save time; the source of `hdf5` starts no process."""


@pytest.mark.crash
@pytest.mark.parametrize("form", mark_slow(CASES, "jsonl", "tokens", "mds"))
def test_killed_at_every_fault_point(texts: Path, tmp_path: Path, form: str) -> None:
    np.array(stream(), "<u2").tofile(tmp_path / "a.bin")
    source = texts if form == "hdf5" else tmp_path / "a.bin"
    to(form, tmp_path / "clean", source, **CASES[form])
    clean = tree_hash(tmp_path / "clean")
    for k in itertools.count(1):
        out = tmp_path / f"{k}"
        if k % STEP[form] and k > 8:
            continue
        status = forked(lambda: to(form, out, source, **CASES[form]), f"*@{k}=kill")  # noqa: B023
        done = to(form, out, source, **CASES[form])
        assert tree_hash(out) == clean, k
        assert not list(out.rglob(".tmp-*")), k
        if status == 0:
            assert done.up_to_date
            break
        assert status == -signal.SIGKILL
    assert k > 12


def test_no_room_at_any_publish(texts: Path, tmp_path: Path, monkeypatch: Any) -> None:
    to("hdf5", tmp_path / "clean", texts, **CASES["hdf5"])
    for k in itertools.count(1):
        plan = failpoint._Plan("storage.publish.fsync", k, "raise:ENOSPC")
        monkeypatch.setattr(failpoint, "_plan", plan)
        failpoint._hits.clear()
        try:
            to("hdf5", tmp_path / f"{k}", texts, **CASES["hdf5"])
        except ResourceError as error:
            message = str(error)
        else:
            break
        monkeypatch.setattr(failpoint, "_plan", None)
        assert "no room to write" in message
        assert not list((tmp_path / f"{k}").rglob(".tmp-*"))
        to("hdf5", tmp_path / f"{k}", texts, **CASES["hdf5"])
        assert tree_hash(tmp_path / f"{k}") == tree_hash(tmp_path / "clean")
    assert k > 5


def test_a_damaged_output_is_made_again(texts: Path, tmp_path: Path) -> None:
    for form in ("hdf5", "bin"):
        out = tmp_path / form
        to(form, out, texts, **CASES[form])
        before = tree_hash(out)
        victim = sorted(p for p in out.iterdir() if p.suffix in (".h5", ".bin"))[0]
        victim.write_bytes(victim.read_bytes()[:-1])
        assert not to(form, out, texts, **CASES[form]).up_to_date
        assert tree_hash(out) == before
        assert to(form, out, texts, **CASES[form]).up_to_date


def test_directories_of_others(texts: Path, tmp_path: Path) -> None:
    to("hdf5", tmp_path / "rows", texts, length=16)
    before = tree_hash(tmp_path / "rows")
    with pytest.raises(ConfigError, match='to was "hdf5" then, and is "corpus" now'):
        to("corpus", tmp_path / "rows", texts)
    with pytest.raises(ConfigError, match="max_sequence_length was 16 then, and is 17 now"):
        to("hdf5", tmp_path / "rows", texts, length=17, samples_per_file=699050)
    texts.write_text(json.dumps({"text": "changed"}) + "\n")
    with pytest.raises(ConfigError, match="holds another conversion: input"):
        to("hdf5", tmp_path / "rows", texts, length=16)
    assert tree_hash(tmp_path / "rows") == before
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match=r"did not write \(notes.txt\)"):
        to("corpus", tmp_path / "full", texts)
    assert sorted(os.listdir(tmp_path / "full")) == ["notes.txt"]


def test_bad_records_stop_or_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"text": "one"}\n{"text": 2}\n{"text": "three"}\n')
    with pytest.raises(InputError, match=r"a.jsonl:2: a text field that is not a string"):
        to("corpus", tmp_path / "refused", path)
    summary = to("corpus", tmp_path / "lossy", path, lossy=True)
    assert summary.facts["lost"] == {"bad_records": 1}
    assert summary.facts["documents"] == 2


def test_workers_change_nothing(texts: Path, tmp_path: Path) -> None:
    to("corpus", tmp_path / "0", texts)
    options = ConvertOptions(inputs=(str(texts),), to="corpus", out=tmp_path / "1", workers=1)
    run_conversion(choose_plan(options), tmp_path / "1")
    assert tree_hash(tmp_path / "0") == tree_hash(tmp_path / "1")
