"""Every command and function on a run in a bucket: what it writes and says about one here."""

import json
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.hashes import LOGS
from pipeline.runs.records import map_arrow
from pipeline.screening.registry.importing import ImportOptions, import_works
from tests.reliability.conftest import WORDS, Clean, Collection, Outcome, Popen, finish

Far = Callable[..., Popen]
Prep = Callable[..., Outcome]
BUCKET = "s3://runs"
NO_BYTES = {"journal", ".lock", *LOGS}
"""What holds times and hosts."""


def is_compared(name: str) -> bool:
    return not NO_BYTES & set(name.split("/"))


def files_here(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    named = {path.relative_to(directory).as_posix(): path for path in files}
    return {name: path.read_bytes() for name, path in named.items() if is_compared(name)}


def files_there(s3: Any, prefix: str) -> dict[str, bytes]:
    return {name: data for name, data in s3.read(prefix).items() if is_compared(name)}


class Both:
    """A copy of the undisturbed run here, and one in the bucket. Each command is called on both,
    each time on another host, and must say the same."""

    def __init__(self, far: Far, s3: Any, prep: Prep, place: Path) -> None:
        self.far, self.s3, self.prep, self.place = far, s3, prep, place
        self.url = f"{BUCKET}/{place.name}"
        self.calls = 0

    def bring(self, clean: Clean) -> None:
        """As another program would: the objects say nothing of their hashes."""
        clean.copy(self.place / "run")
        for path in (p for p in clean.directory.rglob("*") if p.is_file() and p.name != ".lock"):
            key = f"{self.place.name}/run/{path.relative_to(clean.directory).as_posix()}"
            self.s3.client().put_object(Bucket="runs", Key=key, Body=path.read_bytes())

    def call(self, *words: object) -> str:
        """What it says; `@` in a word is the place here or in the bucket."""
        here, there = (
            [str(word).replace("@", str(top)) for word in words] for top in (self.place, self.url)
        )
        outcome = self.prep(*here)
        assert outcome.code == 0, outcome.err
        self.calls += 1
        said = finish(self.far(("one", "two")[self.calls % 2], *there))
        assert said.replace(self.url, str(self.place)) == outcome.out
        return said

    def compare(self, *names: str) -> None:
        for name in names:
            here = files_here(self.place / name)
            there = files_there(self.s3, f"{self.place.name}/{name}/")
            assert here.keys() == there.keys()
            different = [n for n, data in here.items() if there[n] != data]
            assert different == []


@pytest.fixture
def both(far: Far, s3: Any, prep: Prep, clean: Clean, tmp_path: Path) -> Both:
    both = Both(far, s3, prep, tmp_path)
    both.bring(clean)
    return both


def keys(clean: Clean, state: str) -> list[str]:
    table = pq.read_table(clean.directory / "documents.parquet").to_pylist()
    return [row["doc_key"].hex() for row in table if row["state"] == state]


@pytest.mark.slow
def test_a_takedown(both: Both, clean: Clean, collection: Collection, tmp_path: Path) -> None:
    kept = keys(clean, "kept")
    claims = [tmp_path / f"{name}.yaml" for name in ("c1", "c2", "c3")]
    for claim, documents in zip(claims, (kept[:2], kept[2:3], kept[3:4]), strict=True):
        what = json.dumps({"documents": documents})
        claim.write_text(
            f"id: {claim.stem}\nclaimant: P\nreceived: 2026-03-01\nbasis: b\nwhat: {what}\n"
        )
    by = ("--by", "J. Doe", "--on", "2026-03-02")
    masked, rewritten, held = (("takedown", claim, "--run", "@/run") for claim in claims)
    both.call("export", "@/run", "--out", "@/export")
    assert kept[0] in both.call(*masked, "--export", "@/export", "--plan")
    both.call(*masked, "--apply", *by)
    both.call(*masked, "--apply", *by)
    both.compare("run")
    both.call(*rewritten, "--apply", "--mode", "rewrite", *by)
    both.call("run", collection.config, "--out", "@/run", "--workers", 0)
    both.compare("run", "export")
    both.call("verify", "@/run")
    both.call("quarantine", "hold", "@/run", kept[3], *by[:2], "--reason", "case")
    program = both.far("one", *(str(word).replace("@", both.url) for word in held), "--apply", *by)
    _, err = program.communicate()
    assert program.returncode == 3 and "hold" in err, err


@pytest.mark.slow
def test_quarantine_and_policy(both: Both, clean: Clean, collection: Collection) -> None:
    first, second, *_ = keys(clean, "quarantined")
    by = ("--by", "J. Doe")
    assert first in both.call("quarantine", "list", "@/run")
    both.call("quarantine", "show", "@/run", first, *by)
    both.call("quarantine", "release", "@/run", first, *by, "--note", "own work")
    both.call("policy", "review", "@/run", second, "--decision", "drop", *by, "--note", "no")
    both.call("policy", "explain", "@/run", second)
    both.call("run", collection.config, "--out", "@/run", "--workers", 0)
    both.compare("run")
    assert first not in both.call("quarantine", "list", "@/run")
    assert "kept" in both.call("explain", "@/run", first)
    both.call("quarantine", "purge", "@/run", *by, "--older-than", 0)
    both.call("verify", "@/run")
    both.compare("run")


@pytest.mark.slow
def test_a_rescan_and_questions(both: Both, clean: Clean, tmp_path: Path) -> None:
    table = next((clean.directory / "documents").glob("*.arrow"))
    text = max(map_arrow(table)["text"].to_pylist(), key=len)
    (tmp_path / "book.txt").write_text(text)
    (tmp_path / "works.csv").write_text("title,text\nA book,book.txt\n")
    import_works([tmp_path / "works.csv"], tmp_path / "works", ImportOptions(texts=tmp_path))
    assert "A book" in both.call("rescan", "@/run", "--registry", tmp_path / "works")
    both.compare("run")
    both.call("verify", "@/run")
    both.call("trace", "@/run", "--title", "A book")
    both.call("search", "@/run", " ".join(text.split()[:6]))
    both.call("inspect", "@/run")
    both.call("policy", "diff", "builtin:default", "builtin:default", "--run", "@/run")
    both.call("screen", "@/run", "--policy", "builtin:default")
    both.call("tokenizer", "measure", "@/run", "--tokenizer", "gpt2")
    for name, top in (("pages-here", both.place), ("pages-there", both.url)):
        finish(both.far("two", "disclose", f"{top}/run", "--out", tmp_path / name))
    assert files_here(tmp_path / "pages-here") == files_here(tmp_path / "pages-there")


@pytest.mark.slow
def test_commands_that_write_runs_of_their_own(
    both: Both, clean: Clean, collection: Collection, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.jsonl"
    lines = collection.plain_shard.read_text().splitlines(keepends=True)
    plain.write_text("".join(line for line in lines if line.rstrip().endswith("}")))
    both.call("export", "@/run", "--out", "@/export")
    both.call("repack", "@/run", "--msl", 32, "--out", "@/repack")
    both.call("dedup", plain, "--out", "@/dedup")
    both.call("dedup", plain, "--out", "@/again", "--index", "@/dedup")
    both.call("clean", plain, "--out", "@/clean")
    both.call("screen", plain, "--out", "@/screen")
    names = ("export", "repack", "dedup", "again", "clean", "screen")
    both.compare(*names)
    for name in names:
        both.call("verify", f"@/{name}")
    both.call("clean-up", "@/run")
    assert not both.s3.names(f"{both.place.name}/run/rows/")
    both.call("verify", "@/run")


@pytest.mark.slow
def test_an_index_of_documents(both: Both, collection: Collection, tmp_path: Path) -> None:
    first, second = (
        collection.directory / "raw" / name for name in ("00.jsonl.zst", "01.jsonl.zst")
    )
    share = ("--max-bad-share", "50 %")
    both.call("dedup", "index", "build", "@/index", first, *share)
    both.call("dedup", "index", "add", "@/index", second, *share)
    assert "already holds" in both.call("dedup", "index", "add", "@/index", second, *share)
    both.call("dedup", "index", "query", "@/index", collection.plain_shard, *share)
    both.call("dedup", collection.plain_shard, "--out", "@/new", "--index", "@/index", *share)
    both.compare("index", "new")


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hdf5", "corpus", "bin", "jsonl.zst"])
def test_conversions(both: Both, form: str) -> None:
    both.call("convert", "@/run", "--to", form, "--out", "@/out")
    both.compare("out")
    assert "up to date" in both.call("convert", "@/run", "--to", form, "--out", "@/out")


FUNCTIONS = """
import sys
import pipeline

config, plain, top = sys.argv[1:]
manifest = pipeline.run(config, f"{top}/run", 0)
again = pipeline.run(config, f"{top}/run", 0)
print(len(manifest.stages), len(manifest.reused), len(again.reused))
print([stage.state for stage in pipeline.plan(config, f"{top}/run").stages])
run = pipeline.open_run(f"{top}/run")
texts = list(run.texts())
(key, text), words = texts[0], " ".join(texts[0][1].split()[:6])
print(texts, run.ledger, run.splits, run.explain(key))
for table in (run.documents(), run.sources(), run.evidence(), run.decisions()):
    print(table.to_pylist())
print([row["input_ids"].tolist() for row in run.split("train")])
for place in (run, f"{top}/run"):
    print(pipeline.verify(place, lineage=2))
    print(pipeline.search(place, words).documents)
    print(pipeline.trace(place, file="hdf5/train/examples_000000.h5", row=0))
    print(pipeline.trace(place, document=key).documents)
pipeline.clean(plain, out=f"{top}/clean", workers=0)
pipeline.dedup(plain, out=f"{top}/dedup", workers=0)
pipeline.dedup(plain, out=f"{top}/again", index=f"{top}/dedup", workers=0)
try:
    pipeline.open_run(f"{top}/clean/cleaned")
except pipeline.errors.InputError as error:
    print(error)
"""


@pytest.mark.slow
def test_functions_of_python(
    far: Far, s3: Any, collection: Collection, clean: Clean, tmp_path: Path
) -> None:
    plain = tmp_path / "plain.jsonl"
    plain.write_text(json.dumps({"text": "word " * 60}) + "\n")
    said = {}
    for top in (tmp_path, f"{BUCKET}/{tmp_path.name}"):
        program = far("one", collection.config, plain, top, program=FUNCTIONS)
        said[top] = finish(program).replace(str(top), "TOP")
    here, there = said.values()
    assert here == there
    assert "TOP/clean/cleaned: no manifest.json" in there
    assert s3.tree_hash(f"{tmp_path.name}/run/") == clean.tree_hash
    for name in ("clean", "dedup", "again"):
        files = files_there(s3, f"{tmp_path.name}/{name}/")
        assert files == files_here(tmp_path / name)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 6 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = shutil.which("mount") and subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", place], capture_output=True
    )
    if not mounted or mounted.returncode:
        pytest.skip("may not mount a file system")
    yield place
    subprocess.run(["umount", "-l", place], check=True)


@pytest.mark.slow
def test_a_run_that_is_larger_than_the_disk_here(
    far: Far, s3: Any, prep: Prep, small_disk: Path, tmp_path: Path
) -> None:
    """Written there, verified and packed again from there."""
    rng = random.Random(1)
    texts = (json.dumps({"text": " ".join(rng.choices(WORDS, k=250))}) for _ in range(2500))
    (tmp_path / "raw.jsonl").write_text("\n".join(texts))
    config = tmp_path / "large.yaml"
    config.write_text(
        "name: large\ninputs: [{name: large, path: raw.jsonl}]\n"
        "read: {task_bytes: 256 KiB}\npack: {max_sequence_length: 512, bucket_tokens: 65536}\n"
        "hdf5: {shard_bytes: 256 KiB}\n"
    )
    assert prep("run", config, "--out", tmp_path / "run", "--workers", 0).code == 0
    size = sum(map(len, files_here(tmp_path / "run").values()))
    assert size > 2 * shutil.disk_usage(small_disk).total
    url = f"{BUCKET}/{tmp_path.name}"
    for words in (
        ("run", config, "--out", f"{url}/run", "--workers", 0),
        ("verify", f"{url}/run", "--lineage", 2),
        ("repack", f"{url}/run", "--msl", 256, "--out", f"{url}/again", "--workers", 0),
    ):
        finish(far("small", *words))
    assert files_there(s3, f"{tmp_path.name}/run/") == files_here(tmp_path / "run")
    assert prep("repack", tmp_path / "run", "--msl", 256, "--out", tmp_path / "again").code == 0
    assert files_there(s3, f"{tmp_path.name}/again/") == files_here(tmp_path / "again")


@pytest.mark.slow
def test_damage_in_the_bucket_is_named_by_url_and_mended(
    far: Far, s3: Any, collection: Collection, clean: Clean
) -> None:
    out = "s3://runs/damaged"
    command = ("run", collection.config, "--out", out, "--workers", 0)
    finish(far("one", *command))
    client = s3.client()
    key = "damaged/hdf5/train/examples_000000.h5"
    body = bytearray(client.get_object(Bucket="runs", Key=key)["Body"].read())
    body[len(body) // 2] ^= 1
    client.put_object(Bucket="runs", Key=key, Body=bytes(body))
    for host in ("one", "two"):
        program = far(host, "verify", out)
        _, err = program.communicate()
        assert program.returncode == 4
        assert f"{out}/hdf5/train/examples_000000.h5: damaged" in err
    finish(far("two", *command))
    finish(far("one", "verify", out))
    assert s3.tree_hash("damaged/") == clean.tree_hash
