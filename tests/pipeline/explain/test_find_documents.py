"""From a key, a place, a work, a number or a text to documents; and the questions of `prep trace`.
Works and evidence here are invented."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, InputError
from pipeline.explain.find import (
    FoundDocuments,
    find_named,
    find_of_number,
    find_of_title,
    find_of_work,
    find_text,
)
from pipeline.runs import layout
from pipeline.screening.evidence import EVIDENCE_SCHEMA
from pipeline.screening.registry.works import Work, make_works_table

ISBN, REG = "9780306406157", "TX0003372564"
WORK = Work(
    work_id="c0ffee00c0de",
    title_raw="The Lantern in the Quarry",
    title_norm="the lantern in the quarry",
    isbn13=(ISBN,),
    reg_no=REG,
)
OTHER = Work(work_id="0ddba110ddba", title_raw="An Unread Book", title_norm="an unread book")


@pytest.fixture(scope="module")
def documents(small_run: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = small_run.table("documents.parquet").to_pylist()
    return found


@pytest.fixture(scope="module")
def kept(documents: list[dict[str, Any]]) -> list[int]:
    return [i for i, d in enumerate(documents) if d["state"] == "kept" and d["split"] == "train"]


def evidence(document: dict[str, Any], number: int, **values: Any) -> dict[str, Any]:
    blank = {f.name: 0 if pa.types.is_integer(f.type) else "" for f in EVIDENCE_SCHEMA}
    row = {**blank, "doc_key": document["doc_key"], "score": None, **values}
    return {**row, "evidence_id": f"{document['doc_key'].hex()}-s{number}"}


@pytest.fixture(scope="module")
def screened(
    small_run: Any, documents: list[dict[str, Any]], kept: list[int], tmp_path_factory: Any
) -> Path:
    """The run as if it had been screened with a registry: text of the work in a kept document and
    in a duplicate, its ISBN in another, its title in a third."""
    out = Path(shutil.copytree(small_run.directory, tmp_path_factory.mktemp("found") / "run"))
    duplicate = next(i for i, d in enumerate(documents) if d["state"] == "duplicate")
    rows = [
        evidence(documents[kept[0]], 0, detector="text_match", work_id=WORK.work_id),
        evidence(documents[kept[0]], 1, detector="title_author", work_id=WORK.work_id),
        evidence(documents[duplicate], 0, detector="text_match", work_id=WORK.work_id),
        evidence(documents[kept[5]], 0, detector="identifier", kind="isbn", target=ISBN),
        evidence(documents[kept[6]], 0, detector="identifier", kind="usco", target=REG),
        evidence(documents[kept[7]], 0, detector="identifier", kind="doi", target=ISBN),
        evidence(documents[kept[8]], 0, detector="text_match", work_id="another00000"),
    ]
    columns = [f for f in EVIDENCE_SCHEMA if f.name != "doc_id"]
    table = pa.Table.from_pylist(rows, pa.schema(columns))
    pq.write_table(table, out / "evidence.parquet/000000.parquet")
    works = make_works_table([WORK, OTHER])
    (out / layout.WORKS).parent.mkdir(exist_ok=True)
    with pa.ipc.new_file(str(out / layout.WORKS), works.schema) as writer:
        writer.write_table(works)
    return out


def same_cluster(small_run: Any, documents: list[dict[str, Any]], row: int) -> set[int]:
    """Rows that clusters.parquet ties to this one, by brute force."""
    keys = {d["doc_key"]: i for i, d in enumerate(documents)}
    edges = [(keys[r["kept"]], keys[r["member"]])
             for r in small_run.table("clusters.parquet").to_pylist()]  # fmt: skip
    found, size = {row}, 0
    while len(found) != size:
        size = len(found)
        found |= {i for edge in edges if found & set(edge) for i in edge}
    return found


def test_work(screened: Path, small_run: Any, documents: Any, kept: list[int]) -> None:
    duplicate = next(i for i, d in enumerate(documents) if d["state"] == "duplicate")
    cluster = same_cluster(small_run, documents, duplicate)
    assert len(cluster) > 1
    expected = {kept[0]} | cluster | same_cluster(small_run, documents, kept[0])
    for asked in (WORK.work_id, "c0ffee", "The Lantern in the Quarry", REG, "0-306-40615-2"):
        found = find_of_work(screened, asked)
        assert set(found.rows) == expected
        assert list(found.rows) == sorted(found.rows)
        assert found.notes == ("work c0ffee00c0de: The Lantern in the Quarry (asserted)",)
    because = dict(zip(found.rows, found.because, strict=True))
    assert because[kept[0]] == (
        "text_match evidence of work c0ffee00c0de; title_author evidence of work c0ffee00c0de"
    )
    assert because[duplicate] == "text_match evidence of work c0ffee00c0de"
    siblings = {why for row, why in because.items() if row not in (kept[0], duplicate)}
    assert all("duplicate of" in why for why in siblings) and siblings


def test_work_without_evidence(screened: Path) -> None:
    assert find_of_work(screened, OTHER.work_id).rows == ()
    with pytest.raises(InputError, match="no work 'nothing like it'"):
        find_of_work(screened, "nothing like it")


def test_work_without_a_registry(screened: Path, tmp_path: Path, kept: list[int]) -> None:
    plain = Path(shutil.copytree(screened, tmp_path / "run"))
    (plain / layout.WORKS).unlink()
    found = find_of_work(plain, "another00000")
    assert kept[8] in found.rows and "without a registry" in found.notes[0]
    assert find_of_work(plain, "unknown").rows == ()
    with pytest.raises(InputError, match="titles cannot be looked up"):
        find_of_title(plain, "The Lantern in the Quarry")
    shutil.rmtree(plain / "evidence.parquet")
    with pytest.raises(InputError, match="nothing was screened"):
        find_of_work(plain, "unknown")


def test_title(screened: Path) -> None:
    assert find_of_title(screened, "the lantern in the quarry").rows == (
        find_of_work(screened, WORK.work_id).rows
    )
    with pytest.raises(InputError, match="did you mean"):
        find_of_title(screened, "The Lantern in a Quarry")


def test_numbers(screened: Path, kept: list[int]) -> None:
    """Documents that print the number, and all of the work that has it."""
    of_work = set(find_of_work(screened, WORK.work_id).rows)
    isbn = find_of_number(screened, "isbn", "ISBN 0-306-40615-2")
    because = dict(zip(isbn.rows, isbn.because, strict=True))
    assert of_work < set(isbn.rows) and because[kept[5]] == f"prints {ISBN}"
    assert kept[7] not in because
    usco = find_of_number(screened, "usco", "TX 3-372-564")
    assert of_work | {kept[6]} <= set(usco.rows)
    for kind, wrong in (("isbn", "0-306-40615-3"), ("usco", "TX")):
        with pytest.raises(ConfigError, match="check digit"):
            find_of_number(screened, kind, wrong)


def test_named(small_run: Any, documents: list[dict[str, Any]], kept: list[int]) -> None:
    directory = small_run.directory
    sources = small_run.table("sources.parquet").to_pylist()
    for row in (0, kept[3], len(documents) - 1):
        key = documents[row]["doc_key"].hex()
        for asked in (key, key[:12], key[:12].upper()):
            assert find_named(directory, asked) == FoundDocuments((row,), ("",))
        source = sources[documents[row]["path_id"]]
        line = documents[row]["line"] or documents[row]["byte_offset"]
        for file in (f"{source['input']}/{source['path']}", source["path"]):
            assert find_named(directory, f"{file}:{line}").rows == (row,)
            of_file = find_named(directory, file).rows
            assert of_file == tuple(
                i for i, d in enumerate(documents) if d["path_id"] == documents[row]["path_id"]
            )


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("0" * 32, "no such document"), ("nowhere.jsonl", "expected a document key"),
        ("web/a.jsonl:99999", "no such document"), ("abc", "expected a document key"),
        ("\x1b[31m", r"\\x1b"),
    ],
)  # fmt: skip
def test_named_wrongly(small_run: Any, asked: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_named(small_run.directory, asked)


def texts(directory: Path) -> dict[bytes, str]:
    found = {}
    for path in sorted((directory / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(path).read_all()
        keys, strings = table["doc_key"].to_pylist(), table["text"].to_pylist()
        found |= dict(zip(keys, strings, strict=True))
    return found


def test_the_same_text(small_run: Any, documents: list[dict[str, Any]], kept: list[int]) -> None:
    """Also with white space around it, and as it was before cleaning."""
    text = texts(small_run.directory)[documents[kept[2]]["doc_key"]]
    for given in (text, f"\n {text}\n", text.replace("'", "\N{RIGHT SINGLE QUOTATION MARK}")):
        found = find_text(small_run.directory, given, with_passages=False)
        because = dict(zip(found.rows, found.because, strict=True))
        assert because[kept[2]] == "the same text"


def test_a_near_duplicate(small_run: Any, documents: Any, write_prose: Callable[..., str]) -> None:
    """The family of near-duplicates of the corpus, found by an edit of it that is not there."""
    edited = write_prose(90_000, 300).replace("amber", "umber", 1) + " And more."
    found = find_text(small_run.directory, edited, with_passages=False)
    states = {documents[row]["state"] for row in found.rows}
    assert {"kept", "duplicate"} <= states
    assert any(why.startswith("a near-duplicate (Jaccard 0.9") for why in found.because)
    assert find_text(small_run.directory, write_prose(777, 300), False).rows == ()


def test_a_passage(small_run: Any, write_prose: Callable[..., str], documents: Any) -> None:
    """Eighty words from the middle of a document."""
    words = write_prose(92_000, 200).split()
    found = find_text(small_run.directory, " ".join(words[60:180]))
    because = [why for why in found.because if why.startswith("a passage (")]
    assert because and "words in a row" in because[0]
    assert all("mit" in documents[r]["licence"] or "cc0" in documents[r]["licence"]
               for r in found.rows)  # fmt: skip
    assert find_text(small_run.directory, write_prose(778, 300)).rows == ()


def test_what_cannot_be_looked_for_is_told(small_run: Any, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(small_run.directory, tmp_path / "run"))
    shutil.rmtree(copy / "runs")
    assert "`prep clean-up` removed runs/" in find_text(copy, "some text", False).notes[0]
    (copy / "manifests/signatures.json").unlink()
    assert "the run did not look for any" in find_text(copy, "some text", False).notes[0]
    with pytest.raises(InputError, match="only white space"):
        find_text(copy, " \n")
    shutil.rmtree(copy / "documents")
    with pytest.raises(InputError, match="no documents/"):
        find_text(copy, "some text")


def test_commands(
    screened: Path, prep: Callable[..., Any], tmp_path: Path, documents: Any, kept: list[int]
) -> None:
    """Every forward question of `prep trace`, as a table and as JSON."""
    text = tmp_path / "text.txt"
    text.write_text(texts(screened)[documents[kept[2]]["doc_key"]])
    questions = (
        ("--document", documents[kept[2]]["doc_key"].hex()), ("--text", text),
        ("--work", WORK.work_id), ("--isbn", ISBN), ("--reg", REG), ("--title", WORK.title_raw),
    )  # fmt: skip
    for question in questions:
        shown = prep("trace", screened, *question)
        assert shown.code == 0, shown.err
        answer = json.loads(prep("trace", screened, *question, "--json").out)
        for document in answer["documents"]:
            assert document["document"] in shown.out
        assert answer["exposure"] is None and answer["documents_total"]
        assert "train: " in shown.out
    few = json.loads(prep("trace", screened, "--work", WORK.work_id, "--limit", 1, "--json").out)
    assert len(few["documents"]) == 1 < few["documents_total"]
    assert "more (--limit" in prep("trace", screened, "--work", WORK.work_id, "--limit", 1).out


def test_registry_option(screened: Path, prep: Callable[..., Any], tmp_path: Path) -> None:
    assert prep("trace", screened, "--title", "x", "--registry", tmp_path).code == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "expected one of --step"), (("--work", "a", "--isbn", "b"), "got --work, --isbn"),
        (("--step", "3"), "needs --train"), (("--checkpoint", "x"), "needs --train"),
        (("--row", "3", "--work", "a"), "need --file"), (("--file", "x"), "needs --row"),
        (("--file", "x", "--tokens", "a:b"), "expected A or A:B"),
        (("--text", "nowhere.txt"), "cannot read"), (("--isbn", "12"), "not a valid isbn"),
    ],
)  # fmt: skip
def test_wrong_options(
    screened: Path, prep: Callable[..., Any], options: tuple[str, ...], message: str
) -> None:
    ended = prep("trace", screened, *options)
    assert ended.code == 2
    assert message in " ".join(ended.err.replace("\u2502", " ").split())


def test_text_that_is_no_text(screened: Path, prep: Callable[..., Any], tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b"caf\xe9")
    ended = prep("trace", screened, "--text", path)
    assert ended.code == 3 and "not UTF-8 (byte 3)" in ended.err


def test_no_run(tmp_path: Path, prep: Callable[..., Any]) -> None:
    ended = prep("trace", tmp_path, "--document", "0" * 32)
    assert ended.code == 3 and "no documents.parquet" in ended.err


def test_the_id_of_a_work_can_be_pasted_where_a_document_is_asked_for(
    screened: Path, prep: Callable[..., Any]
) -> None:
    by_work = find_of_work(screened, WORK.work_id)
    pasted = find_named(screened, WORK.work_id)
    assert set(pasted.rows) <= set(by_work.rows) and len(pasted.rows) > 1
    assert set(pasted.because) == {f"evidence of work {WORK.work_id}"}
    ended = prep("explain", screened, WORK.work_id)
    assert (ended.code, "documents match: " in ended.err) == (3, True)
    assert "c0ffee00c0de" in ended.err
    ended = prep("explain", screened, "0ddba110ddbb")
    assert (ended.code, "no such document" in ended.err) == (3, True)
