"""Arrow IPC files and streams, and directories that HF `datasets` saved."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from pipeline.core.errors import InputError
from pipeline.sources import files

REPOSITORY = Path(__file__).resolve().parents[3]
TEXTS = ["one", "two é", None, "four"]
GOOD = ["one", "two é", "!text_not_string", "four"]


@pytest.fixture(autouse=True)
def _no_bars() -> None:
    datasets.disable_progress_bars()


def write(path: Path, table: pa.Table, stream: bool, **options: Any) -> None:
    new = pa.ipc.new_stream if stream else pa.ipc.new_file
    chosen = pa.ipc.IpcWriteOptions(**options)
    with new(str(path), table.schema, options=chosen) as writer:
        writer.write_table(table, max_chunksize=3)


TYPES = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string()),
         pa.binary()]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_types_and_compressions(
    stream: bool, compression: str | None, kind: pa.DataType, tmp_path: Path,
    outcomes: Callable[..., Any],
) -> None:  # fmt: skip
    table = pa.table({"id": [1, 2, 3, 4], "text": pa.array(TEXTS).cast(kind)})
    write(tmp_path / "a.arrow", table, stream, compression=compression)
    assert outcomes(tmp_path / "a.arrow") == GOOD
    assert outcomes(tmp_path / "a.arrow", text_key="id") == ["!text_not_string"] * 4
    assert outcomes(tmp_path / "a.arrow", text_key="body") == ["!no_text"] * 4


@pytest.mark.parametrize("stream", [False, True])
def test_every_cut_is_found(stream: bool, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    """Also at the border of two batches, where a stream is a shorter stream."""
    path = tmp_path / "a.arrow"
    write(path, pa.table({"text": GOOD * 3}), stream)
    whole = path.read_bytes()
    for size in range(1, len(whole)):
        path.write_bytes(whole[:size])
        with pytest.raises(InputError, match=r"a\.arrow: "):
            outcomes(path)


FLIPS = """
import sys, random
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from pipeline.core.errors import InputError
from pipeline.sources import files
from pipeline.sources.record import RecordRules
path = Path(sys.argv[1])
whole, source = path.read_bytes(), random.Random(4)
for turn in range(700):
    bad = bytearray(whole)
    for _ in range(source.randrange(1, 4)):
        bad[source.randrange(len(bad))] ^= 1 << source.randrange(8)
    path.write_bytes(bad)
    (found,), _ = files.find("in", str(path), path.parent)
    reader = files.HashingReader(found.location)
    try:
        rules = RecordRules(text_key="text", max_document_bytes=1 << 20, sources=None)
        list(files.read_records(found, reader, rules))
    except InputError:
        pass
    reader.close()
print("survived")
"""


@pytest.mark.parametrize("stream", [False, True])
def test_damage_never_crashes(stream: bool, tmp_path: Path) -> None:
    """Offsets that lie are found before they are followed; in a process of its own, because a
    crash would be one of the interpreter."""
    path = tmp_path / "a.arrow"
    write(path, pa.table({"text": GOOD * 3, "meta": ['{"a": 1}'] * 12}), stream)
    command = [sys.executable, "-c", FLIPS, str(path), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "survived\n", done.stderr[-2000:]


def test_feather_of_the_first_version(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    (tmp_path / "a.feather").write_bytes(b"FEA1" + bytes(50) + b"FEA1")
    with pytest.raises(InputError, match="Feather version 1"):
        outcomes(tmp_path / "a.feather")


def test_two_columns_of_one_name(tmp_path: Path, outcomes: Callable[..., Any]) -> None:
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])
    write(tmp_path / "a.arrow", table, False)
    with pytest.raises(InputError, match="two columns named 'text'"):
        outcomes(tmp_path / "a.arrow")


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timestamps_of_every_unit(unit: str, tmp_path: Path, read: Callable[..., Any]) -> None:
    from pipeline.sources.record import TypedField

    when = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    table = pa.table({"text": ["a"], "t": pa.array([when], pa.timestamp(unit, "UTC"))})
    write(tmp_path / "a.arrow", table, True)
    (item,) = read(tmp_path / "a.arrow", fields=(TypedField("meta_t", "timestamp", ("t",)),))
    assert item.fields == (when,)


class TestSavedDatasets:
    def save(self, path: Path, rows: int = 5, **options: Any) -> datasets.Dataset:
        made = datasets.Dataset.from_list(
            [{"text": f"text {i}", "meta": {"pile_set_name": "S"}} for i in range(rows)]
        )
        made.save_to_disk(str(path), **options)
        return made

    def test_rows_in_order(self, tmp_path: Path, read: Callable[..., Any]) -> None:
        self.save(tmp_path / "ds", 25, num_shards=3)
        items = read(tmp_path / "ds")
        assert [item.text for item in items] == [f"text {i}" for i in range(25)]
        assert {item.source for item in items} == {"S"}
        _, others = files.find("in", str(tmp_path / "ds"), tmp_path)
        assert others == []

    def test_caches_are_no_data(self, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
        """What `map` leaves beside the data would double it."""
        self.save(tmp_path / "ds")
        loaded = datasets.load_from_disk(str(tmp_path / "ds"))
        loaded.map(lambda row: {"text": row["text"].upper()}, load_from_cache_file=False)
        assert [p.name for p in (tmp_path / "ds").glob("cache-*.arrow")]
        assert outcomes(tmp_path / "ds") == [f"text {i}" for i in range(5)]
        assert outcomes(tmp_path / "ds" / "*.arrow") == [f"text {i}" for i in range(5)]

    def test_a_selection_is_saved_as_its_rows(
        self, tmp_path: Path, outcomes: Callable[..., Any]
    ) -> None:
        self.save(tmp_path / "ds").select([3, 1]).save_to_disk(str(tmp_path / "selected"))
        assert outcomes(tmp_path / "selected") == ["text 3", "text 1"]

    def test_an_indices_file_is_refused(self, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
        """As versions of `datasets` before 2 wrote it."""
        self.save(tmp_path / "ds")
        state = json.loads((tmp_path / "ds/state.json").read_bytes())
        state["_indices_data_files"] = [{"filename": "indices.arrow"}]
        (tmp_path / "ds/state.json").write_text(json.dumps(state))
        with pytest.raises(InputError, match=r"selection of its rows.*flatten_indices"):
            outcomes(tmp_path / "ds")

    def test_splits_are_named(self, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
        whole = datasets.Dataset.from_list([{"text": f"text {i}"} for i in range(10)])
        split = datasets.DatasetDict(train=whole.select([0, 1]), test=whole.select([2]))
        split.save_to_disk(str(tmp_path / "ds"))
        with pytest.raises(InputError, match="splits train, test; name the one to read"):
            outcomes(tmp_path / "ds")
        assert outcomes(tmp_path / "ds/train") == ["text 0", "text 1"]
        both = (str(tmp_path / "ds/train"), str(tmp_path / "ds/test"))
        found, _ = files.find("in", both, tmp_path)
        assert [os.path.dirname(f.path) for f in found] == ["test", "train"]
        datasets.DatasetDict(train=whole.select([4])).save_to_disk(str(tmp_path / "one"))
        assert outcomes(tmp_path / "one") == ["text 4"]

    def test_broken_state(self, tmp_path: Path, outcomes: Callable[..., Any]) -> None:
        self.save(tmp_path / "ds")
        (tmp_path / "ds/state.json").write_bytes(b"{")
        with pytest.raises(InputError, match=r"state\.json: cannot read"):
            outcomes(tmp_path / "ds")


CUT_WHILE_IT_IS_READ = """
import os, sys
sys.path.insert(0, sys.argv[2])
from pathlib import Path
from pipeline.sources import files
from pipeline.sources.record import RecordRules
(found,), _ = files.find("in", sys.argv[1], Path(), None)
reader = files.HashingReader(found.location)
rules = RecordRules(text_key="text", max_document_bytes=1 << 20, sources=None)
records = files.read_records(found, reader, rules)
print(next(records).text[:4], flush=True)
os.truncate(sys.argv[1], 0)
for _ in records:
    pass
print("survived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="what a map of a cut file does")
def test_a_file_that_is_cut_while_it_is_mapped_ends_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.arrow"
    write(path, pa.table({"text": [f"{n:04d}" * 1000 for n in range(100)]}), stream=False)
    command = [sys.executable, "-c", CUT_WHILE_IT_IS_READ, str(path), str(REPOSITORY)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (-signal.SIGBUS, "0000\n")
