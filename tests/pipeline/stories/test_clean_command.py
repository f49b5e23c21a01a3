"""`prep clean`: cleaned records in input order, what left and why, options, errors and upkeep."""

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.config.yaml import loads_value
from pipeline.core import zstd
from pipeline.core.errors import ConfigError
from pipeline.core.hashes import hash_file
from pipeline.runs import layout
from pipeline.runs.catalogue import STORIES
from pipeline.stories.clean import CleaningOptions, clean_settings, make_clean_story
from pipeline.stories.run import run_preparation
from pipeline.stories.status import read_status
from pipeline.stories.verify import verify_run

Prep = Callable[..., Any]
RULES = ("--gopher", "--set", "filters.gopher={min_words: 80, min_stop_words: 0}", "--c4",
         "--set", "filters.c4={min_sentences: 0}")  # fmt: skip


@pytest.fixture(scope="module")
def raw(make_corpus: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The corpus; read only."""
    return make_corpus(tmp_path_factory.mktemp("raw") / "corpus")


def clean(prep: Prep, raw: Any, out: Path, *options: object) -> Any:
    common = ("--out", out, "--workers", 0, "--set", "read.max_bad_share=10 %", "--json")
    return prep("clean", raw.root / "raw", *common, *options)


def records(out: Path) -> list[dict[str, Any]]:
    """All cleaned records, shard by shard."""
    found = []
    for path in sorted((out / layout.CLEANED).iterdir()):
        if path.suffix == ".parquet":
            found += pq.read_table(path).to_pylist()
            continue
        data = path.read_bytes()
        text = zstd.decompress(data) if path.suffix == ".zst" else data
        found += [json.loads(line) for line in io.BytesIO(text)]
    return found


def expected(raw: Any) -> list[Any]:
    """What stays of the corpus without rules: all documents but the short ones, in input order."""
    import ftfy

    def place(made: Any) -> tuple[str, int]:
        return f"{made.input}/{made.path}", made.ordinal

    live = [r for r in raw.records if r.text is not None and r.kind not in ("short", "empty")]
    return [(ftfy.fix_text(r.text, normalization="NFC"), r) for r in sorted(live, key=place)]


def test_every_record_in_input_order(raw: Any, tmp_path: Path, prep: Prep) -> None:
    ended = clean(prep, raw, tmp_path / "out", "--set", "read.task_bytes=40000")
    assert ended.code == 0, ended.err
    found = records(tmp_path / "out")
    wanted = expected(raw)
    assert [record["text"] for record in found] == [text for text, _ in wanted]
    assert [record["licence"] for record in found] == [made.licence for _, made in wanted]
    sources = [made.source if made.source != made.input else "files" for _, made in wanted]
    assert [record["source"] for record in found] == sources
    assert [record["meta"]["pile_set_name"] for record in found] == sources
    assert len({record["key"] for record in found}) == len(found)
    assert len(list((tmp_path / "out" / layout.CLEANED).iterdir())) > 1
    ledger = json.loads(ended.out)["ledger"]
    kept = sum(source["kept"]["documents"] for source in ledger["sources"].values())
    assert kept == len(found)
    assert "records" in [check.name for check in verify_run(tmp_path / "out")]


def test_rules_and_what_they_dropped(raw: Any, tmp_path: Path, prep: Prep) -> None:
    ended = clean(prep, raw, tmp_path / "out", *RULES)
    assert ended.code == 0, ended.err
    found = records(tmp_path / "out")
    assert 0 < len(found) < len(expected(raw))
    assert all(len(record["text"].split()) >= 80 for record in found)
    documents = pq.read_table(tmp_path / "out/documents.parquet").to_pylist()
    reasons = {row["reason"] for row in documents if row["state"] == "dropped"}
    assert {"too_short", "gopher_word_count"} <= reasons
    assert [r["doc_key"].hex() for r in documents if r["state"] == "kept"] == [
        record["key"] for record in found
    ]
    explained = prep("explain", tmp_path / "out", found[0]["key"])
    assert "kept" in explained.out
    listed = prep("inspect", tmp_path / "out", "--dropped", "gopher_word_count", "--json")
    assert json.loads(listed.out)["total"] > 0


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_formats(form: str, raw: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "out"
    source = raw.root / "raw/web/a.jsonl"
    ended = prep("clean", source, "--out", out, "--workers", 0, "--format", form, "--json")
    assert ended.code == 0, ended.err
    [path] = (out / layout.CLEANED).iterdir()
    assert path.name == f"000000.{form}"
    again = prep("clean", path, "--out", tmp_path / "again", "--workers", 0, "--json")
    assert again.code == 0, again.err
    texts = [record["text"] for record in records(tmp_path / "again")]
    assert texts
    if form != "jsonl.gz":
        assert texts == [record["text"] for record in records(out)]


def test_workers_and_resume(raw: Any, tmp_path: Path, two_workers: int) -> None:
    """The same bytes from two worker processes, and from a run whose end was lost."""
    options = clean_settings(None, (str(raw.root / "raw"),), CleaningOptions(gopher=True), (
        "read.max_bad_share=10 %", "filters.gopher.min_stop_words=0", "read.task_bytes=40000",
    ))  # fmt: skip
    story = make_clean_story("jsonl.zst")
    one, two = tmp_path / "one", tmp_path / "two"
    first = run_preparation(options, one, 0, story=story)
    run_preparation(options, two, two_workers, story=story)
    cleaned = {p.name: hash_file(p) for p in (one / layout.CLEANED).iterdir()}
    assert cleaned == {p.name: hash_file(p) for p in (two / layout.CLEANED).iterdir()}
    for name in (
        "documents.parquet/000000.parquet",
        "evidence.parquet/000000.parquet",
        layout.LEDGER,
    ):
        assert hash_file(one / name) == hash_file(two / name)

    broken = tmp_path / "broken"
    shutil.copytree(one, broken)
    shutil.rmtree(broken / layout.CLEANED)
    (broken / "manifests/cleaned.json").unlink()
    (broken / "filters/000001.evidence.arrow").write_bytes(b"torn")
    resumed = run_preparation(options, broken, 0, story=story)
    assert {"clean", "keep"} <= set(resumed.reused)
    assert cleaned == {p.name: hash_file(p) for p in (broken / layout.CLEANED).iterdir()}
    assert set(first.stages) <= set(STORIES["clean"].stages)


def test_plan_and_status(raw: Any, tmp_path: Path, prep: Prep) -> None:
    out = tmp_path / "out"
    planned = clean(prep, raw, out, "--dry-run", *RULES)
    stages = [stage["stage"] for stage in json.loads(planned.out)]
    assert not out.exists()
    assert clean(prep, raw, out, *RULES).code == 0
    finished, found = read_status(out)
    assert finished
    assert [stage.stage for stage in found if stage.tasks] == stages
    assert "filters" in stages
    unfiltered = json.loads(clean(prep, raw, tmp_path / "no", "--dry-run").out)
    assert not {"filters", "evidence", "verdicts"} & {stage["stage"] for stage in unfiltered}
    again = clean(prep, raw, out, *RULES)
    assert len(json.loads(again.out)["reused"]) == len(stages)


def test_a_config_and_its_inputs(raw: Any, tmp_path: Path, prep: Prep) -> None:
    (tmp_path / "words.txt").write_text("river\n")
    (tmp_path / "c.yaml").write_text(
        f"inputs:\n  - name: web\n    path: {raw.root / 'raw/web/a.jsonl'}\n"
        "filters:\n  c4: {bad_words: words.txt, min_sentences: 0}\ndedup:\n  preset: exact\n"
    )
    arguments = ("clean", "--config", tmp_path / "c.yaml", "--workers", 0, "--json")
    ended = prep(*arguments, "--out", tmp_path / "own")
    assert ended.code == 0, ended.err
    found = records(tmp_path / "own")
    assert found
    assert not any("river" in record["text"].split() for record in found)
    others = prep(*arguments, "--out", tmp_path / "files", raw.root / "raw/web/d.jsonl")
    assert others.code == 0, others.err
    inputs = pq.read_table(tmp_path / "files/inputs.parquet").to_pylist()
    assert [(row["input"], row["path"]) for row in inputs] == [("files", "d.jsonl")]


def test_options_become_settings() -> None:
    options = CleaningOptions(min_length=7, fix_text=False, mask="email, ip", text_key="body",
                      gopher_repetition=True, bad_words=Path("x.txt"))  # fmt: skip
    config = clean_settings(None, ("a.jsonl",), options, ("filters.c4.min_sentences=1",)).config
    assert (config.clean.min_length, config.clean.fix_text) == (7, False)
    assert config.clean.mask == ("email", "ip")
    assert config.inputs[0].text_key == "body"
    assert config.filters.gopher is None
    assert config.filters.gopher_repetition is not None
    assert config.filters.c4 is not None
    assert config.filters.c4.min_sentences == 1
    assert Path(config.filters.c4.bad_words or "").is_absolute()
    assert config.dedup.preset == "none"


def test_a_switch_keeps_the_thresholds_of_the_config() -> None:
    given = clean_settings(
        None, ("a",), CleaningOptions(gopher=True), ("filters.gopher.min_words=3",)
    ).config
    assert given.filters.gopher is not None
    assert given.filters.gopher.min_words == 3
    assert loads_value("3") == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--mask", "email,fax"), "--mask fax: expected email, ip, phone"),
        (("--format", "csv"), "--format csv: expected one of"),
        (("--set", "filters.gopher.min_word=1"), "did you mean 'min_words'?"),
        (("--c4", "--bad-words", "/not/there"), "/not/there: No such file"),
    ],
)
def test_wrong_options(
    options: tuple[str, ...], message: str, raw: Any, tmp_path: Path, prep: Prep
) -> None:
    ended = clean(prep, raw, tmp_path / "out", *options)
    assert ended.code == 2
    assert message in ended.err
    assert not (tmp_path / "out").exists()


def test_nothing_to_clean(tmp_path: Path, prep: Prep) -> None:
    with pytest.raises(ConfigError, match="give FILES, or --config"):
        clean_settings(None, (), CleaningOptions(), ())
    ended = prep("clean", tmp_path / "none", "--out", tmp_path / "out")
    assert ended.code == 3
    (tmp_path / "short.jsonl").write_text('{"text": "short"}\n')
    ended = prep("clean", tmp_path / "short.jsonl", "--out", tmp_path / "out", "--workers", 0)
    assert ended.code == 3
    assert "no document is left" in ended.err


def test_masks(raw: Any, tmp_path: Path, prep: Prep) -> None:
    """Before anything is measured or written; listed by document, counted by source."""
    shard = tmp_path / "in/a.jsonl"
    shard.parent.mkdir()
    lines = [json.dumps({"text": text, "meta": {"pile_set_name": "Mail"}}) + "\n" for text in (
        "ann@site.org and bob@site.org", "nothing", "seen at 8.8.8.8", "x@y.de",
    )]  # fmt: skip
    shard.write_text("".join(lines))
    out = tmp_path / "out"
    options = ("--out", out, "--workers", 0, "--min-length", 8, "--mask", "email,ip", "--json")
    ended = prep("clean", shard, *options)
    assert ended.code == 0, ended.err
    assert [record["text"] for record in records(out)] == [
        "email@example.com and email@example.com", "seen at 192.0.2.1", "email@example.com",
    ]  # fmt: skip
    listed = pq.read_table(out / "masked/000000.parquet").to_pylist()
    assert [(row["doc_id"], row["email"], row["ip"], row["phone"]) for row in listed] == [
        (0, 2, 0, 0), (2, 0, 1, 0), (3, 1, 0, 0),
    ]  # fmt: skip
    assert json.loads(ended.out)["masked"] == {"email": 3, "ip": 1, "phone": 0}
    verify_run(out)
