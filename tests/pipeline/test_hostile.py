"""Every file of the hostile corpus ends as its MANIFEST.json says: no traceback, hang or bomb."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.config.prep import Config
from pipeline.core.errors import InputError
from pipeline.lineage.trace import trace_row
from pipeline.sources import files
from pipeline.sources.record import Record, RecordRules
from pipeline.stories.verify import verify_run
from tests.forked import prep_in_fork
from tests.pipeline.hdf5.foreign_rows import count_rows

pytestmark = pytest.mark.shared_data

REPOSITORY = Path(__file__).resolve().parents[2]
GPT2_VOCABULARY = 50257
MSL = 128
LIMIT = 64 << 20
GIGABYTE = 1 << 30

JSONL = {
    "bad_checksum.jsonl.zst", "bad_json.jsonl", "big_numbers.jsonl", "blank_lines.jsonl",
    "bom.jsonl", "bomb_64mb_line.jsonl.zst", "corrupted.jsonl.zst", "cr_only.jsonl", "crlf.jsonl",
    "deep_nesting.jsonl", "duplicate_keys.jsonl", "empty.jsonl", "empty.jsonl.zst",
    "empty_frame.jsonl.zst", "frame_splits_line.jsonl.zst", "good.jsonl", "good.jsonl.zst",
    "gzip_named_zst.jsonl.zst", "huge_window.jsonl.zst", "invalid_utf8.jsonl", "latin1.jsonl",
    "lone_surrogates.jsonl", "meta_wrong_type.jsonl", "missing_text.jsonl",
    "multi_frame.jsonl.zst", "nan_infinity.jsonl", "no_final_newline.jsonl", "not_objects.jsonl",
    "nul_bytes.jsonl", "only_newline.jsonl", "path_names.jsonl", "plain_named_zst.jsonl.zst",
    "skippable_frame.jsonl.zst", "special_token_text.jsonl", "text_wrong_type.jsonl",
    "trailing_garbage.jsonl.zst", "truncated.jsonl.zst", "truncated_header.jsonl.zst",
    "unicode_line_separators.jsonl", "utf16.jsonl", "zero_length_docs.jsonl",
    "zst_named_jsonl.jsonl",
}  # fmt: skip
PARQUET = {
    "dictionary_large_string.parquet", "footer_only.parquet", "good.parquet",
    "json_named_parquet.parquet", "no_text_column.parquet", "text_is_binary.parquet",
    "text_is_int.parquet", "text_is_list.parquet", "text_nulls.parquet", "truncated.parquet",
    "two_text_columns.parquet", "zero_rows.parquet",
}  # fmt: skip
YAML = {
    "alias_bomb.yaml": r"(alias|anchor)", "merge_bomb.yaml": r"(anchor|merge)",
    "python_tag.yaml": "tag", "recursive_alias.yaml": "anchor",
    "duplicate_keys.yaml": "duplicate key", "wrong_types.yaml": "", "tabs.yaml": "not valid YAML",
    "two_documents.yaml": "second one", "deep.yaml": "nested levels",
}  # fmt: skip
HDF5 = {
    "bad_values.h5", "corrupted.h5", "declared_huge.h5", "external_link.h5", "external_storage.h5",
    "float64.h5", "good.h5", "group_not_dataset.h5", "int64_values_over_int32.h5", "not_hdf5.h5",
    "other_length.h5", "truncated.h5", "two_channels.h5", "two_dims.h5", "vlen_strings.h5",
    "wrong_n_examples.h5", "wrong_name.h5", "zero_rows.h5",
}  # fmt: skip
NOT_AN_INPUT = {"traversal.tar", "pretty_printed.json"}

WHOLE_FILE_REFUSED = {
    # the manifest states good records, but records before a damaged frame never count by half
    "huge_window.jsonl.zst", "trailing_garbage.jsonl.zst",
    # 0 good and 0 bad: there is no record, and the damage is named
    "truncated_header.jsonl.zst",
}  # fmt: skip
UNDEFINED = {
    # one line without an end: refused as a record, not as a file
    "cr_only.jsonl": (0, 1),
    # the damage lies in the slack of an index node: every row reads as in good.h5
    "corrupted.h5": (8, 0),
}
"""What we make of files for which the manifest states nothing."""
SOURCES = {"meta_wrong_type.jsonl": ("Pile-CC", "Github")}
Outcome = tuple[int, int] | None


@pytest.fixture(scope="module")
def hostile(shared_data: Path) -> Path:
    return shared_data / "hostile"


@pytest.fixture(scope="module")
def stated(hostile: Path) -> dict[str, Outcome]:
    """What MANIFEST.json says: (good, bad), or None where the whole file is to be refused."""
    entries = json.loads((hostile / "MANIFEST.json").read_bytes())
    outcomes: dict[str, Outcome] = {}
    for entry in entries:
        counts = entry["good_records"], entry["bad_records"]
        refused = None in counts or entry["file"] in WHOLE_FILE_REFUSED
        outcomes[entry["file"]] = UNDEFINED.get(entry["file"]) if refused else counts
    return outcomes


def test_every_file_is_tested(stated: dict[str, Outcome]) -> None:
    assert set(stated) == {*JSONL, *PARQUET, *YAML, *HDF5, *NOT_AN_INPUT}


def read_counts(path: Path) -> tuple[int, int]:
    """(good, bad) records of one raw shard."""
    (found,), _ = files.find("hostile", str(path), path.parent)
    reader = files.HashingReader(found.location)
    try:
        rules = RecordRules(
            text_key="text", max_document_bytes=LIMIT, sources=SOURCES.get(path.name)
        )
        items = [isinstance(item, Record) for item in files.read_records(found, reader, rules)]
    finally:
        reader.close()
    return items.count(True), items.count(False)


@pytest.mark.parametrize("name", sorted(JSONL | PARQUET))
def test_reader(name: str, hostile: Path, stated: dict[str, Outcome]) -> None:
    expected = stated[name]
    if expected is None:
        with pytest.raises(InputError, match=name) as refused:
            read_counts(hostile / name)
        assert "\n" not in str(refused.value)
    else:
        assert read_counts(hostile / name) == expected


def hostile_config(path: Path, **read: Any) -> Config:
    """Keep whatever can be read: no length filter, no dedup, any share of bad records."""
    given: dict[str, Any] = {"name": "in", "path": str(path)}
    if path.name in SOURCES:
        given["sources"] = SOURCES[path.name]
    value = {
        "name": "hostile",
        "inputs": [given],
        "read": {"max_bad_share": 1.0, **read},
        "clean": {"min_length": 0},
        "dedup": {"preset": "none"},
        "pack": {"max_sequence_length": 64},
    }
    return Config.model_validate_json(json.dumps(value))


@pytest.mark.parametrize("name", sorted(JSONL | PARQUET))
def test_whole_run(name: str, hostile: Path, stated: dict[str, Outcome], tmp_path: Path) -> None:
    """`prep run` counts the same records, and a refused or empty input leaves no finished run."""
    expected = stated[name]
    out = tmp_path / "run"
    if not expected or not expected[0]:
        with pytest.raises(InputError) as refused:
            pipeline.run(hostile_config(hostile / name), out, 0)
        assert not (out / "manifest.json").exists()
        if expected is None:
            assert name in str(refused.value)
            assert not list(out.glob("documents/*")), "no half-counted records"
        return
    pipeline.run(hostile_config(hostile / name), out, 0)
    ledger = json.loads((out / "ledger.json").read_bytes())
    good = sum(s["documents"]["documents"] for s in ledger["sources"].values())
    bad = sum(t["documents"] for s in ledger["sources"].values() for t in s["bad"].values())
    assert (good, bad) == expected
    verify_run(out)
    assert {p.relative_to(tmp_path).parts[0] for p in tmp_path.rglob("*")} == {"run"}


def test_damaged_shards_are_all_named(hostile: Path, tmp_path: Path) -> None:
    """`on_bad_shard: fail` names every bad shard; `skip` leaves them out and counts them."""
    raw = tmp_path / "raw"
    raw.mkdir()
    bad = ["corrupted.jsonl.zst", "truncated.jsonl.zst", "utf16.jsonl", "two_text_columns.parquet"]
    for name in ["good.jsonl", *bad]:
        (raw / name).write_bytes((hostile / name).read_bytes())
    with pytest.raises(InputError) as refused:
        pipeline.run(hostile_config(raw, task_bytes=1 << 10), tmp_path / "fail", 0)
    assert [name in str(refused.value) for name in bad] == [True] * len(bad)
    assert "good.jsonl:" not in str(refused.value)
    pipeline.run(hostile_config(raw, on_bad_shard="skip"), tmp_path / "skip", 0)
    ledger = json.loads((tmp_path / "skip/ledger.json").read_bytes())
    assert ledger["skipped_shards"] == len(bad)
    assert sum(s["records"]["documents"] for s in ledger["sources"].values()) == 200


def test_bad_record_stops_when_asked(hostile: Path, tmp_path: Path) -> None:
    config = hostile_config(hostile / "latin1.jsonl", on_bad_record="fail")
    with pytest.raises(InputError, match=r"latin1\.jsonl:\d+: bad record: not_utf8"):
        pipeline.run(config, tmp_path / "run", 0)


def test_too_many_bad_records_stop_the_run(hostile: Path, tmp_path: Path) -> None:
    config = hostile_config(hostile / "bad_json.jsonl", max_bad_share=0.5)
    with pytest.raises(InputError, match=r"9 of 11 records are bad .*max_bad_share"):
        pipeline.run(config, tmp_path / "run", 0)


@pytest.mark.parametrize("name", sorted(YAML))
def test_config_file(name: str, hostile: Path, tmp_path: Path) -> None:
    """Exit 2, one line FILE:LINE, nothing created."""
    ended = prep_in_fork("run", hostile / name, cwd=tmp_path)
    assert ended.code == 2
    assert ended.out == ""
    (line,) = ended.err.splitlines()
    assert line.startswith(f"prep: {hostile / name}:"), line
    number = line.removeprefix(f"prep: {hostile / name}:").partition(":")[0]
    assert number.isdigit() and int(number) >= 1, line
    assert re.search(YAML[name], line), line
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", sorted(HDF5))
def test_hdf5(name: str, hostile: Path, stated: dict[str, Outcome]) -> None:
    expected = stated[name]
    if expected is None or (not expected[0] and name != "zero_rows.h5"):
        with pytest.raises(InputError, match=name):
            count_rows(hostile / name, GPT2_VOCABULARY, MSL)
    else:
        assert count_rows(hostile / name, GPT2_VOCABULARY, MSL) == expected


@pytest.mark.parametrize("name", sorted(NOT_AN_INPUT))
def test_not_an_input_format(name: str, hostile: Path, prep: Callable[..., Any]) -> None:
    """No reader claims it: exit 3 before anything is opened, so nothing in it is unpacked."""
    with pytest.raises(InputError, match=r"ends in \.jsonl"):
        files.find("hostile", str(hostile / name), hostile)
    ended = prep("plan", "pile", "--set", f"inputs.0.path={hostile / name}")
    assert ended.code == 3
    assert name in ended.err and "Traceback" not in ended.err


READ_ALL = """
import importlib.util, json, sys
spec = importlib.util.spec_from_file_location("test_hostile", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from pathlib import Path
outcomes = {}
for path in map(Path, sys.argv[2:]):
    try:
        outcomes[path.name] = module.read_counts(path)
    except module.InputError:
        outcomes[path.name] = None
peak = next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]
print(json.dumps({"outcomes": outcomes, "peak": int(peak) * 1024}))
"""


def read_in_process(paths: list[Path], timeout: float) -> dict[str, Any]:
    """Read files in a fresh process; VmHWM, because ru_maxrss would include pytest's own peak."""
    done = subprocess.run(
        [sys.executable, "-c", READ_ALL, __file__, *map(str, paths)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_peak_memory(hostile: Path, stated: dict[str, Outcome]) -> None:
    names = sorted(JSONL | PARQUET)
    found = read_in_process([hostile / name for name in names], timeout=60)
    assert found["peak"] < GIGABYTE
    for name, outcome in found["outcomes"].items():
        expected = stated[name]
        assert outcome == (list(expected) if expected else None), name


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
def test_big_files(hostile: Path, tmp_path: Path) -> None:
    """`make_hostile.py --big`: a 20 MB line, 20 million blank lines, a bomb of 1 GiB."""
    script = hostile / "make_hostile.py"
    subprocess.run([sys.executable, str(script), str(tmp_path), "--big"], check=True, timeout=600)
    entries = json.loads((tmp_path / "MANIFEST.json").read_bytes())
    small = {e["file"] for e in json.loads((hostile / "MANIFEST.json").read_bytes())}
    big = [e for e in entries if e["file"] not in small]
    assert big
    found = read_in_process([tmp_path / e["file"] for e in big], timeout=600)
    assert found["peak"] < GIGABYTE
    for entry in big:
        stated = entry["good_records"], entry["bad_records"]
        outcome = found["outcomes"][entry["file"]]
        assert outcome == (None if None in stated else list(stated)), entry


def test_awkward_file_names(hostile: Path, tmp_path: Path) -> None:
    """Names with spaces, quotes, newlines, non-UTF-8 bytes: read, keyed and published safely."""
    script = hostile / "make_hostile.py"
    made = tmp_path / "made"
    subprocess.run([sys.executable, str(script), str(made), "--names"], check=True, timeout=120)
    small = {p.name for p in hostile.iterdir()}
    awkward = [p for p in made.rglob("*") if p.is_file() and p.name not in small]
    assert awkward
    raw = tmp_path / "raw"
    raw.mkdir()
    for path in awkward:
        if not path.is_symlink():
            path.rename(raw / path.name)
    pipeline.run(hostile_config(raw), tmp_path / "run", 0)
    sources = pq.read_table(tmp_path / "run/sources.parquet")["path"].to_pylist()
    seen = {p.name for p in raw.iterdir() if not p.name.startswith(".")}
    assert set(sources) == seen
    ledger = json.loads((tmp_path / "run/ledger.json").read_bytes())
    records = sum(s["records"]["documents"] for s in ledger["sources"].values())
    assert records == 200 * len(seen)
    assert {s.file for s in trace_row(tmp_path / "run", Path("hdf5/train/examples_000000.h5"), 0)}
    verify_run(tmp_path / "run")
