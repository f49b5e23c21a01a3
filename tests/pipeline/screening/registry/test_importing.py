"""Importing: nothing twice, nothing half, nothing silently; texts found, kept and verified."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.errors import ConfigError, InputError, IntegrityError, ResourceError
from pipeline.core.hashes import tree_hash
from pipeline.core.journal import hold_lock
from pipeline.core.manifest import read_sealed, write_sealed
from pipeline.screening.registry import WORKS, Work, combine, load_registry
from pipeline.screening.registry.importing import ImportResult
from pipeline.screening.registry.works import make_works, make_works_table

Bring = Callable[..., ImportResult]
Write = Callable[[str, str], Path]
TEXT = "Once upon a morning the orchard stood in frost.\n" * 40


def by_title(directory: Path) -> dict[str, Work]:
    return {work.title_norm: work for work in load_registry(directory).work_list()}


def test_lists_of_two_kinds_come_together(
    works_csv: Path, records_txt: Path, bring: Bring, tmp_path: Path
) -> None:
    done = bring(tmp_path / "claims", works_csv, records_txt)
    assert (done.lines, done.works, done.added, done.version) == (5, 4, 4, 1)
    assert done.name == "claims" and done.refusals == () and done.remarks == ()
    told = [(c.where, c.field, c.kept[:13]) for c in done.conflicts]
    assert told == [("exhibit.txt:15", "isbn13", "9780306406157")]
    works = by_title(tmp_path / "claims")
    tin = works["the tin orchard"]
    assert (tin.reg_no, tin.reg_date, tin.pub_date) == ("TX0003111222", "1992-08-05", "1992-05-01")
    assert [b.split(" sha256:")[0] for b in tin.basis.split("; ")] == ["works.csv", "exhibit.txt"]
    assert works["quiet machines"].jurisdiction == "US"


def test_the_same_input_again_changes_nothing(
    works_csv: Path, records_txt: Path, bring: Bring, tmp_path: Path
) -> None:
    claims = tmp_path / "claims"
    bring(claims, works_csv, records_txt)
    before = {p: p.read_bytes() for p in claims.rglob("*") if p.is_file()}
    done = bring(claims, works_csv, records_txt)
    assert (done.added, done.changed, done.unchanged, done.fresh) == (0, 0, 4, False)
    assert {p: p.read_bytes() for p in claims.rglob("*") if p.is_file()} == before


def test_bytes_depend_on_the_input_alone(
    works_csv: Path, records_txt: Path, bring: Bring, tmp_path: Path
) -> None:
    for place in ("a", "b"):
        bring(tmp_path / place / "claims", works_csv)
        bring(tmp_path / place / "claims", records_txt)
    assert tree_hash(tmp_path / "a") == tree_hash(tmp_path / "b")


def test_versions_are_kept(
    works_csv: Path, records_txt: Path, bring: Bring, tmp_path: Path
) -> None:
    claims = tmp_path / "claims"
    bring(claims, works_csv)
    first = (claims / "works.parquet").read_bytes()
    assert bring(claims, records_txt).version == 2
    assert (claims / "versions/000001.parquet").read_bytes() == first
    history = read_sealed(claims / "registry.json")["history"]
    assert [(v["version"], v["works"]) for v in history] == [(1, 3), (2, 4)]
    assert history[1]["change"].startswith("import exhibit.txt sha256:")
    assert str(tmp_path) not in json.dumps(history)


def test_dry_run_writes_nothing(works_csv: Path, bring: Bring, tmp_path: Path) -> None:
    done = bring(tmp_path / "claims", works_csv, dry_run=True)
    assert (done.added, done.version, done.fresh) == (3, 1, True)
    assert not (tmp_path / "claims").exists()


def test_defaults_fill_what_a_line_leaves_open(write: Write, bring: Bring, tmp_path: Path) -> None:
    listed = write("own.csv", "title,author,status\nSalt,Otto Bell,\nTin,Ida Marsh,verified\n")
    bring(tmp_path / "own", listed, defaults={"status": "licensed", "contact": "me@example.org"})
    works = by_title(tmp_path / "own")
    assert (works["salt"].status, works["tin"].status) == ("licensed", "verified")
    assert works["tin"].contact == "me@example.org"


def test_refused_lines_are_all_told(write: Write, bring: Bring, tmp_path: Path) -> None:
    listed = write("list.csv", "title,author\nSalt,Bell\n,Marsh\nTin\nTin,Marsh\n")
    done = bring(tmp_path / "claims", listed)
    assert [(r.where, r.why[:8]) for r in done.refusals] == [
        ("list.csv:4", "expected"), ("list.csv:3", "no title"),
    ] or sorted(r.where for r in done.refusals) == ["list.csv:3", "list.csv:4"]  # fmt: skip
    assert done.works == 2


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"title,author\n,Bell\n", "no line of it describes a work; list.csv:2: no title"),
        (b"title,author\n", "no line of it describes a work"),
        (b"title,author\nSalt,B\xe4r\n", "list.csv:2: not UTF-8 text (byte 19)"),
        (b"title,author\nSa\0lt,Bell\n", "list.csv:2: holds a zero byte"),
        (b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n", "list.csv:2: not UTF-8 text"),
        (b"PK\x03\x04\x14\0\x06\0 a spreadsheet", "list.csv:1: holds a zero byte"),
        (b"00714cam a2200205 a 4500001\x1e\x1d", "expected a header row with a column 'title'"),
        (b"ARROW1\0\0 damaged", "not an Arrow file of sketches"),
    ],
)
def test_files_that_are_refused_leave_nothing(
    data: bytes, message: str, bring: Bring, tmp_path: Path
) -> None:
    (tmp_path / "list.csv").write_bytes(data)
    with pytest.raises(InputError) as caught:
        bring(tmp_path / "claims", tmp_path / "list.csv")
    assert message in str(caught.value) and str(tmp_path / "list.csv") in str(caught.value)
    assert not (tmp_path / "claims").exists()


def test_only_registries_and_new_directories_are_written(
    works_csv: Path, bring: Bring, write: Write, tmp_path: Path
) -> None:
    write("other/notes.txt", "mine")
    with pytest.raises(ConfigError, match="not empty and not a registry"):
        bring(tmp_path / "other", works_csv)
    with pytest.raises(ConfigError, match="a file"):
        bring(works_csv, works_csv)
    with pytest.raises(InputError, match="No such file"):
        bring(tmp_path / "claims", tmp_path / "missing.csv")


def test_one_writer(works_csv: Path, bring: Bring, tmp_path: Path) -> None:
    with hold_lock(tmp_path / "claims"), pytest.raises(ResourceError, match="in use by"):
        bring(tmp_path / "claims", works_csv)


@pytest.mark.parametrize("broken", ["storage.publish.written", "storage.publish.renamed"])
@pytest.mark.parametrize("number", range(3))
def test_an_interrupted_import_leaves_the_version_before(
    works_csv: Path, records_txt: Path, bring: Bring, tmp_path: Path, broken: str, number: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The import ends at each publication: old version, works, registry.json."""
    claims = tmp_path / "claims"
    bring(claims, works_csv)
    before = load_registry(claims)
    hits = []

    def stop(point: str) -> float | None:
        hits.append(point)
        if hits.count(broken) == number + 1:
            raise KeyboardInterrupt
        return None

    with monkeypatch.context() as patch:
        patch.setattr("pipeline.core.failpoint.hit", stop)
        with pytest.raises(KeyboardInterrupt):
            bring(claims, records_txt)
    there = load_registry(claims)
    done = broken.endswith("renamed") and number == 2
    assert (there.version, there.content_hash == before.content_hash) == (1 + done, not done)
    assert bring(claims, records_txt).version == 2
    bring(tmp_path / "other/claims", works_csv)
    bring(tmp_path / "other/claims", records_txt)
    assert tree_hash(tmp_path / "other/claims") == tree_hash(claims)


def test_texts_by_column_and_by_name(write: Write, bring: Bring, tmp_path: Path) -> None:
    listed = write(
        "lists/list.csv",
        "title,author,registration_number,isbn,text\nSalt,Otto Bell,,,sub/a.txt\n"
        "The Tin Orchard: a novel,Ida Marsh,,,\nHarbour,Una Reed,TX 3-111-222,,\n"
        "Machines,Una Reed,,0306406152,\nNone,Una Reed,,,\n",
    )
    for name in ("sub/a", "The Tin Orchard", "TX3111222", "0-306-40615-2", "stray"):
        write(f"texts/{name}.txt", f"{name} {TEXT}")
    done = bring(tmp_path / "claims", listed, texts=tmp_path / "texts")
    assert (done.texts, done.sketches) == (4, 0)
    assert [(r.where, r.text) for r in done.remarks] == [
        ("stray.txt", "its name fits no work, or several; left out")
    ]
    registry = load_registry(tmp_path / "claims")
    titles = {
        row["work_id"]: row["title_norm"] for row in registry.works.to_pylist()
    }  # fmt: skip
    found = {titles[work_id]: text for work_id, _, text in registry.references()}
    assert found == {
        "salt": f"sub/a {TEXT}", "the tin orchard": f"The Tin Orchard {TEXT}",
        "harbour": f"TX3111222 {TEXT}", "machines": f"0-306-40615-2 {TEXT}",
    }  # fmt: skip
    again = bring(tmp_path / "claims", listed, texts=tmp_path / "texts")
    assert not again.fresh and again.texts == 0


def test_texts_that_cannot_be_used(write: Write, bring: Bring, tmp_path: Path) -> None:
    write("secret.txt", "not below the directory of texts")
    rows = ["../secret.txt", str(tmp_path / "secret.txt"), "gone.txt", "link.txt", "latin.txt",
            "empty.txt", "ok.txt"]  # fmt: skip
    listed = write(
        "list.csv", "title,text\n" + "".join(f"Salt {i},{name}\n" for i, name in enumerate(rows))
    )
    write("texts/ok.txt", "\ufeff" + TEXT)
    write("texts/empty.txt", " \n")
    (tmp_path / "texts/latin.txt").write_bytes(b"B\xe4r")
    (tmp_path / "texts/link.txt").symlink_to(tmp_path / "secret.txt")
    done = bring(tmp_path / "claims", listed, texts=tmp_path / "texts")
    told = {r.where.split(":")[1]: r.text for r in done.remarks if r.where.startswith("list")}
    for number, part in enumerate(
        ["expected a path below", "expected a path below", "no such file",
         "a link that leads out of",
         "not UTF-8 text (byte 1)", "holds no text"], 2,
    ):  # fmt: skip
        assert part in told[str(number)]
    ((_, _, text),) = load_registry(tmp_path / "claims").references()
    assert text == TEXT


def test_another_text_is_a_conflict(write: Write, bring: Bring, tmp_path: Path) -> None:
    claims = tmp_path / "claims"
    listed = write("list.csv", "title,text\nSalt,salt.txt\n")
    write("salt.txt", TEXT)
    bring(claims, listed)
    write("salt.txt", f"Revised. {TEXT}")
    done = bring(claims, listed)
    assert [c.field for c in done.conflicts] == ["text_sha256"] and not done.fresh
    assert bring(claims, listed, replacing=True).fresh
    ((_, _, text),) = load_registry(claims).references()
    assert isinstance(text, str) and text.startswith("Revised.")
    assert len(list((claims / "texts").iterdir())) == 2, "the text that version 1 names is kept"


def test_damage_is_found(works_csv: Path, write: Write, bring: Bring, tmp_path: Path) -> None:
    listed = write("list.csv", "title,text\nSalt,salt.txt\n")
    write("salt.txt", TEXT)
    whole = tmp_path / "whole"
    bring(whole, works_csv, listed)

    def damaged(change: Callable[[Path], object]) -> str:
        shutil.rmtree(tmp_path / "claims", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "claims")
        change(tmp_path / "claims")
        with pytest.raises(IntegrityError) as caught:
            list(load_registry(tmp_path / "claims").references())
        return str(caught.value)

    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    def other_table(claims: Path) -> None:
        table = make_works_table(load_registry(claims).work_list()[:1])
        pq.write_table(table, claims / "works.parquet")

    def other_format(claims: Path) -> None:
        value = read_sealed(claims / "registry.json")
        write_sealed(claims / "registry.json", {**value, "format": 99})

    def no_history(claims: Path) -> None:
        write_sealed(claims / "registry.json", {"format": 1, "name": "x", "history": []})

    assert "works.parquet: damaged" in damaged(lambda d: flip(d / "works.parquet"))
    assert "works.parquet: missing" in damaged(lambda d: (d / "works.parquet").unlink())
    assert "works.parquet: damaged" in damaged(other_table)
    assert "registry.json" in damaged(lambda d: flip(d / "registry.json"))
    assert "of format 99, expected 1" in damaged(other_format)
    assert "registry.json: damaged" in damaged(no_history)
    text = next((whole / "texts").iterdir()).name
    assert f"texts/{text} is missing" in damaged(lambda d: (d / "texts" / text).unlink())
    assert f"{text}: " in damaged(lambda d: flip(d / "texts" / text))


def test_foreign_directories(tmp_path: Path, write: Write) -> None:
    write("run/manifest.json", "{}")
    for path in (tmp_path / "run", tmp_path / "nowhere", tmp_path / "run/manifest.json"):
        with pytest.raises(InputError, match="no registry of works here"):
            load_registry(path)


def test_a_table_gives_its_works_again(works_csv: Path, bring: Bring, tmp_path: Path) -> None:
    bring(tmp_path / "claims", works_csv)
    registry = load_registry(tmp_path / "claims")
    table = registry.works.select(WORKS.names)
    assert make_works_table(make_works(table)).equals(table)
    assert table["work_id"].to_pylist() == sorted(table["work_id"].to_pylist())
    assert set(registry.works["registry"].to_pylist()) == {"claims v1"}


def combined(tmp_path: Path, bring: Bring, *lists: str) -> Any:
    registries = []
    for number, text in enumerate(lists):
        path = tmp_path / f"list{number}.csv"
        path.write_text(text)
        bring(tmp_path / f"r{number}", path)
        registries.append(load_registry(tmp_path / f"r{number}"))
    return combine(registries)


def test_registries_combined(bring: Bring, write: Write, tmp_path: Path) -> None:
    write("salt.txt", TEXT)
    both = combined(
        tmp_path, bring,
        "title,author,registration_number,status,legal_hold\n"
        "Salt,Otto Bell,TX 3-111-222,licensed,\nTin,Ida Marsh,,,\n",
        "title,author,registration_number,status,text,legal_hold\n"
        "Salt,\"Bell, Otto\",TX0003111222,asserted,salt.txt,yes\nHarbour,Una Reed,,,,\n",
    )  # fmt: skip
    works = {row["title_norm"]: row for row in both.works.to_pylist()}
    assert set(works) == {"salt", "tin", "harbour"}
    assert works["salt"]["status"] == "licensed" and works["salt"]["legal_hold"]
    assert [row["registry"] for row in works.values() if row["title_norm"] == "salt"] == [
        "r0 v1, r1 v1"
    ]
    assert [c.field for c in both.conflicts] == ["status"]
    assert both.label == "r0 v1+r1 v1"
    assert [text for _, _, text in both.references()] == [TEXT]
    assert len(set(both.works["work_id"].to_pylist())) == 3


def test_combined_ids_stay_unique(bring: Bring, tmp_path: Path) -> None:
    """Two lists number their works 1, 2, …; each work stays."""
    both = combined(
        tmp_path, bring, "work_id,title,author\n1,Salt,Otto Bell\n",
        "work_id,title,author\n1,Tin,Ida Marsh\n2,Salt,Otto Bell\n",
    )  # fmt: skip
    ids = {row["title_norm"]: row["work_id"] for row in both.works.to_pylist()}
    assert ids["salt"] == "1" and len(ids["tin"]) == 12
    assert len(both.works) == 2


def test_combined_works_that_could_be_one_stay_apart(bring: Bring, tmp_path: Path) -> None:
    """A number that two lists give to different works; a title that two works of one list have."""
    header = "title,author,registration_number\n"
    both = combined(
        tmp_path, bring,
        f"{header}Salt,Otto Bell,TX 3-111-222\nSalt,Otto Bell,TX 3-111-333\n",
        f"{header}Tin,Ida Marsh,TX 3-111-222\nSalt,Otto Bell,\n",
    )  # fmt: skip
    rows = {(row["title_norm"], row["reg_no"]) for row in both.works.to_pylist()}
    assert rows == {
        ("salt", "TX0003111222"), ("salt", "TX0003111333"), ("tin", ""), ("salt", ""),
    }  # fmt: skip
    assert {c.field for c in both.conflicts} == {"work", "reg_no"}


def test_combining_one_or_none(works_csv: Path, bring: Bring, tmp_path: Path) -> None:
    bring(tmp_path / "claims", works_csv)
    one = load_registry(tmp_path / "claims")
    assert combine([one]) is one
    with pytest.raises(InputError):
        combine([])


def test_content_hash_says_what_the_works_are(
    works_csv: Path, write: Write, bring: Bring, tmp_path: Path
) -> None:
    bring(tmp_path / "a/claims", works_csv)
    bring(tmp_path / "b/claims", works_csv)
    a, b = (load_registry(tmp_path / place / "claims") for place in "ab")
    assert a.content_hash == b.content_hash
    bring(tmp_path / "b/claims", write("more.csv", "title\nMore\n"))
    assert load_registry(tmp_path / "b/claims").content_hash != a.content_hash
