"""References are taken as pages and commands print them: out of real output, and back in."""

import html
import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import InputError
from pipeline.explain.explain import explain_document
from pipeline.explain.find import find_named
from pipeline.hdf5.read import open_dataset
from pipeline.lineage.trace import trace_row
from pipeline.runs.references import find_file
from tests.pipeline.takedown.conftest import keys_of, write_claim

Prep = Callable[..., Any]
KEY = re.compile(r"\b[0-9a-f]{32}\b")
PLACE = re.compile(r"[\w./\\-]+\.(?:jsonl|parquet)(?:\.zst|\.gz)?(?::(?:row )?[0-9,]*[0-9])?")
ROW = re.compile(r"[\w./-]+\.h5\[[0-9,]+\]")

CONFIG = """\
name: places
seed: 7
inputs:
  - {name: web, path: raw/web}
  - {name: papers, path: raw/papers}
dedup: {alarm: none}
pack: {max_sequence_length: 128, validation_share: 5 %}
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: Any, write_prose: Callable[..., str]) -> Path:
    """Long files, equal names in two inputs, rows of parquet from 0 on, names with what hides."""
    root = tmp_path_factory.mktemp("places")
    draw = random.Random(1)
    for place in ("raw/web/deep", "raw/papers"):
        (root / place).mkdir(parents=True)

    def texts(start: int, count: int) -> list[str]:
        plain = [write_prose(start + n, 60) for n in range(count)]
        for n in draw.sample(range(count), count // 10):
            plain[n] = draw.choice(["short", plain[0].rpartition(" ")[0] + " elsewhere."])
        return plain

    def lines(path: str, start: int, count: int, blank: int = 0) -> None:
        records = [json.dumps({"text": text}) for text in texts(start, count)]
        (root / path).write_text("\n" * blank + "\n".join([*records, '{"text": 3}']) + "\n")

    lines("raw/web/02.jsonl", 0, 40, blank=4321)
    lines("raw/web/deep/same.jsonl", 1000, 20)
    lines("raw/papers/same.jsonl", 2000, 20)
    lines("raw/papers/a\u202eb\tc.jsonl", 3000, 10)
    pq.write_table(pa.table({"text": ["short", *texts(4000, 20)]}), root / "raw/papers/p.parquet")
    (root / "c.yaml").write_text(CONFIG.replace("alarm: none", "preset: slimpajama"))
    overrides = ("read.max_bad_share=20 %",)
    return pipeline.run(root / "c.yaml", root / "run", 0, overrides=overrides).directory


def page(path: Path) -> str:
    body = re.sub(r"<style.*?</style>", "", path.read_text(), flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]+>", "", body))


def outputs(run: Path, prep: Prep) -> dict[str, str]:
    """What people copy from."""
    duplicate, kept = keys_of(run, "duplicate")[0], keys_of(run, "kept")[0]
    calls = {
        "explain": ("explain", run, duplicate),
        "inspect": ("inspect", run, "--top", 50),
        "cluster": ("inspect", run, "--cluster", duplicate),
        "dropped": ("inspect", run, "--dropped", "too_short", "--top", 99),
        "bad": ("inspect", run, "--dropped", "text_not_string", "--top", 99),
        "trace": ("trace", run, "--document", kept),
        "file": ("trace", run, "--document", "02.jsonl", "--limit", 99),
        "row": ("trace", run, "--file", "train/examples_000000.h5", "--row", 0),
        "takedown": ("takedown", write_claim(run.parent, documents=[kept]), "--run", run),
    }
    found = {"report.html": page(run / "report.html"), "clusters.html": page(run / "clusters.html")}
    for name, call in calls.items():
        ended = prep(*call)
        assert ended.code == 0, ended.err
        found[name] = ended.out
    return found


def test_what_is_printed_can_be_pasted(run: Path, prep: Prep) -> None:
    keys: dict[str, set[str]] = {}
    places: dict[str, set[str]] = {}
    rows: dict[str, set[str]] = {}
    for name, text in outputs(run, prep).items():
        for found, pattern in ((keys, KEY), (places, PLACE), (rows, ROW)):
            found[name] = set(pattern.findall(text))
    documents = pq.read_table(run / "documents.parquet").to_pylist()
    known = {row["doc_key"].hex() for row in documents}
    assert all(keys[name] & known for name in keys)
    assert all(places[name] for name in places if name != "cluster") and places["cluster"]
    assert {name for name in rows if rows[name]} >= {"trace", "file", "row"}
    seen = {"line": 0, "row 0": 0, "hidden": 0}
    for place in set().union(*places.values()):
        number = int(place.rpartition(":")[2]) if re.search(r":[0-9]+$", place) else None
        if number is None:
            continue
        for form in (place, place.replace(str(number), f"{number:,}")):
            record = explain_document(run, form).record
            assert record.place.line == number
            (doc,) = find_named(run, form).rows
            assert documents[doc]["doc_key"].hex() == record.place.key
        seen["line"] += number > 999
        seen["row 0"] += number == 0
        seen["hidden"] += "\\u202e" in place
    assert min(seen.values()) > 0, seen
    for key in set().union(*keys.values()) & known:
        assert explain_document(run, key).record.place.key == key
    for row in sorted(set().union(*rows.values()))[:4]:
        name, number = row[:-1].split("[")
        spans = trace_row(run, Path("hdf5") / name, int(number))
        for form in (row, f"{name}[{int(number):,}]", f"hdf5/{row}", str(run / "hdf5" / row)):
            ended = prep("trace", run, "--file", form, "--json")
            assert [s["document"] for s in json.loads(ended.out)] == [s.document for s in spans]
            found_rows = find_named(run, form).rows
            found = {documents[doc]["doc_key"].hex() for doc in found_rows}
            assert found == {span.document for span in spans}
            if len(found) == 1:
                assert explain_document(run, form).record.place.key in found
            else:
                with pytest.raises(InputError, match=r"documents match: .*; give one of these"):
                    explain_document(run, form)
        ended = prep("trace", run, "--file", form, "--tokens", "1-3", "--json")
        assert [s["token_end"] for s in json.loads(ended.out)][-1] == 3


def test_numbers_of_steps_and_rows_have_separators(run: Path, prep: Prep) -> None:
    ended = prep("trace", run, "--file", "examples_000000.h5", "--row", "1,234,567")
    assert ended.code == 3 and "2 shards end with it" in ended.err
    ended = prep("trace", run, "--file", "train/examples_000000.h5", "--row", "1,234,567")
    assert (ended.code, "row 1234567 is outside" in ended.err) == (3, True)
    ended = prep("trace", run, "--file", "train/examples_000000.h5", "--row", "12,34")
    assert (ended.code, "expected a whole number" in ended.err) == (2, True)


def test_ambiguous_ones_list_the_candidates(run: Path, prep: Prep) -> None:
    for command in (("explain", run, "same.jsonl:3"), ("trace", run, "--document", "same.jsonl:3")):
        ended = prep(*command)
        assert ended.code == 3
        assert "2 files end with it: papers/same.jsonl, web/deep/same.jsonl" in ended.err
    for wanted in ("deep/same.jsonl:3", "papers/same.jsonl:3"):
        assert explain_document(run, wanted).record.place.file.endswith(wanted.partition(":")[0])
    with pytest.raises(InputError, match=r"21 documents match: .*papers/same.jsonl:1\)"):
        explain_document(run, "papers/same.jsonl")


def test_a_path_is_never_taken_for_another_input(run: Path) -> None:
    """`report.html` names the input too: a path below one input may be the name of another's."""
    files = ["raw/web/a.jsonl", "web/a.jsonl"]
    assert find_file(files, "web/a.jsonl", "") == 1
    assert "web/02.jsonl:" in page(run / "report.html")


def test_after_a_takedown_old_names_lead_to_the_new_shards(
    small_run: Any, tmp_path: Path, prep: Prep
) -> None:
    run = Path(shutil.copytree(small_run.directory, tmp_path / "run"))
    old = [shard.name for shard in open_dataset(run / "hdf5/train").shards]
    before = {name: trace_row(run, Path("hdf5/train") / name, 1) for name in old}
    for number, key in enumerate(keys_of(run, "kept", 3)):
        claim = write_claim(tmp_path, f"c{number}", documents=[key])
        ended = prep("takedown", claim, "--run", run, "--apply", "--by", "J. Doe")
        assert ended.code == 0, ended.err
    new = {shard.name for shard in open_dataset(run / "hdf5/train").shards}
    assert set(old) - new
    for name in old:
        for form in (f"hdf5/train/{name}", f"train/{name}", str(run / "hdf5/train" / name)):
            ended = prep("trace", run, "--file", form, "--row", 1, "--json")
            assert ended.code == 0, ended.err
            found = json.loads(ended.out)
            assert {Path(span["file"]).name for span in found} <= new
            assert [s["document"] for s in found] == [span.document for span in before[name]]
        found_rows = find_named(run, f"train/{name}[1]").rows
        assert len(found_rows) == len({span.document for span in before[name]})
    version = next(iter(new - set(old)))
    older = re.sub(r"-\d+\.h5", "-000.h5", version)
    assert prep("trace", run, "--file", f"train/{older}[0]").code == 0
