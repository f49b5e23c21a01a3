"""Takedowns of a finished run: what is listed, what is left, what later runs do."""

import json
import shutil
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import pipeline
from pipeline.core.errors import ConfigError, InputError, IntegrityError
from pipeline.core.order import batch_size_at, rows_of_samples, samples_before_step
from pipeline.hdf5.read import open_dataset
from pipeline.provenance.events import verify_events
from pipeline.takedown.apply import SignOff, apply, resume
from pipeline.takedown.claim import load_claim
from pipeline.takedown.command import Wanted, take_down
from pipeline.takedown.forget import write_forget_set
from pipeline.takedown.plan import Plan, make_plan
from pipeline.takedown.record import pending_path, read_takedowns, record_path
from pipeline.takedown.run_tables import open_run
from pipeline.verify import verify

SIGNED = SignOff("Jane Doe", date(2026, 3, 2), "mask")
CLAIM = """\
id: {id}
claimant: Example Press
received: 2026-03-01
basis: a registered work
what:
{what}
"""
ROW_SETTINGS = ("pack.max_sequence_length=64",)


def write_claim(directory: Path, name: str = "c1", **what: Any) -> Path:
    lines = "\n".join(f"  {key}: {json.dumps(value)}" for key, value in what.items())
    path = directory / f"{name}.yaml"
    path.write_text(CLAIM.format(id=name, what=lines))
    return path


def planned(run: Path, directory: Path, name: str = "c1", **what: Any) -> Plan:
    return make_plan(open_run(run), load_claim(write_claim(directory, name, **what)))


@pytest.fixture
def copied(small_run: Any, tmp_path: Path) -> Path:
    shutil.copytree(small_run.directory, tmp_path / "run")
    return tmp_path / "run"


def ends(run: Path) -> dict[bytes, dict[str, Any]]:
    return {row["doc_key"]: row for row in pq.read_table(run / "documents.parquet").to_pylist()}


def keys_of(run: Path, state: str, count: int = 1) -> list[str]:
    """Plain kept documents, or duplicates."""
    found = sorted(key.hex() for key, row in ends(run).items() if row["state"] == state)
    clustered = pq.read_table(run / "clusters.parquet")
    named = {k.hex() for name in ("kept", "member") for k in clustered[name].to_pylist()}
    chosen = [key for key in found if (key in named) == (state == "duplicate")]
    return chosen[:count]


def rows_of(run: Path, split: str) -> np.ndarray:
    dataset = open_dataset(run / "hdf5" / split)
    return dataset.files.read(np.arange(dataset.files.rows))


def text_of(run: Path, key: str) -> str:
    for path in sorted((run / "documents").glob("*.arrow")):
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
        found = table.filter(
            pc.equal(table["doc_key"], pa.scalar(bytes.fromhex(key), pa.binary(16)))
        )
        if len(found):
            return str(found["text"][0].as_py())
    raise AssertionError(f"no document {key}")


def files_with(run: Path, text: str) -> list[str]:
    """Files in which a piece of this text can be found, compressed tables included."""
    probe = text[40:90].splitlines()[0]
    assert len(probe) > 20
    found = []
    for path in sorted(p for p in run.rglob("*") if p.is_file()):
        if path.suffix == ".parquet":
            data = "\n".join(
                str(value)
                for column in pq.read_table(path).columns
                if pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
                for value in column.to_pylist()
            ).encode()
        else:
            data = path.read_bytes()
        if probe.encode() in data:
            found.append(path.relative_to(run).as_posix())
    return found


# --- claims ---


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("  document: [a]", "did you mean 'documents'"),
        ("  documents: []", "expected one or more of works"),
        ("  urls: [example.org]", "expected beginnings of addresses"),
        ("  texts: [lost.txt]", "lost.txt: cannot read"),
    ],
)
def test_bad_claims_are_one_line(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "claim.yaml"
    path.write_text(CLAIM.format(id="c1", what=line))
    with pytest.raises((ConfigError, InputError), match=message) as caught:
        load_claim(path)
    assert "\n" not in str(caught.value)


def test_the_digest_follows_claim_and_texts(tmp_path: Path) -> None:
    (tmp_path / "work.txt").write_text("one")
    first = load_claim(write_claim(tmp_path, texts=["work.txt"])).digest
    assert load_claim(write_claim(tmp_path, texts=["work.txt"])).digest == first
    (tmp_path / "work.txt").write_text("two")
    assert load_claim(write_claim(tmp_path, texts=["work.txt"])).digest != first


# --- plans ---


def test_siblings_in_both_directions(small_run: Any, tmp_path: Path) -> None:
    """From any member of a cluster, all of it; the union-find of the table agrees."""
    table = pq.read_table(small_run.directory / "clusters.parquet").to_pylist()
    parent: dict[bytes, bytes] = {}

    def find(key: bytes) -> bytes:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    for row in table:
        parent[find(row["member"])] = find(row["kept"])
    for key in parent:
        expected = {k for k in parent if find(k) == find(key)}
        plan = planned(small_run.directory, tmp_path, documents=[key.hex()])
        assert set(plan.taken["doc_key"].to_pylist()) == expected
        roles = dict(
            zip(plan.taken["doc_key"].to_pylist(), plan.taken["role"].to_pylist(), strict=True)
        )
        assert roles[key] == "named"
    assert len(parent) >= 8


def test_what_a_claim_names(small_run: Any, corpus: Any, tmp_path: Path) -> None:
    run = small_run.directory
    by_source = planned(run, tmp_path, sources=["Books3"])
    assert {r["source"] for r in by_source.taken.to_pylist() if r["role"] == "named"} == {"Books3"}
    plain = next(made for made in corpus.records if made.kind == "plain" and made.line == 3)
    place = f"{plain.input}/{plain.path}:3"
    by_place = planned(run, tmp_path, documents=[place])
    assert by_place.taken["line"].to_pylist() == [3]
    (tmp_path / "work.txt").write_text(plain.text + "\n")
    assert len(by_place.taken) == 1
    with pytest.raises(InputError, match="no such document"):
        planned(run, tmp_path, documents=["00" * 16])
    with pytest.raises(InputError, match="nothing here matches the claim c1"):
        planned(run, tmp_path, sources=["Unknown"])


def test_a_plan_changes_nothing_and_counts_tokens(small_run: Any, tmp_path: Path) -> None:
    before = sorted(p for p in small_run.directory.rglob("*"))
    keys = keys_of(small_run.directory, "kept", 3)
    plan = planned(small_run.directory, tmp_path, documents=keys)
    assert sorted(p for p in small_run.directory.rglob("*")) == before
    tokens = sum(ends(small_run.directory)[bytes.fromhex(key)]["tokens"] for key in keys)
    assert sum(split.document_tokens for split in plan.splits) == tokens
    assert all(0.98 <= split.over_deletion <= 1.0 for split in plan.splits)
    stores = {copy.store for copy in plan.copies}
    assert {"documents", "tokens", "shuffle", "stream", "rows"} <= stores
    assert {"raw shard", "backups"} == {copy.what for copy in plan.outside}


def test_steps_of_a_training_run(small_run: Any, tmp_path: Path) -> None:
    """Against the order itself, step by step, and the labels as they stand in the rows."""
    run, model = small_run.directory, tmp_path / "model"
    dataset = open_dataset(run / "hdf5/train")
    record = {
        "seed": 3, "batch_size_schedule": [[1, 8], [20, 16]],
        "datasets": [{"from_step": 1, "dataset_hash": dataset.dataset_hash}],
    }  # fmt: skip
    for step in (10, 40):
        path = model / f"checkpoints/step_{step:07d}/manifest.json"
        path.parent.mkdir(parents=True)
        path.write_text("{}")
    (model / "run.json").write_text(json.dumps(record))
    train = [row for row in ends(run).values() if row["split"] == "train"]
    key = min(row["doc_key"].hex() for row in train if row["state"] == "kept")
    claim = load_claim(write_claim(tmp_path, documents=[key]))
    plan = make_plan(open_run(run), claim, (model,))
    held = np.isin(owners_of(run, "train")[1], plan.taken["doc"].to_pylist()).any(axis=1)
    schedule = ((1, 8), (20, 16))
    steps = [
        step
        for step in range(1, 41)
        if held[
            rows_of_samples(
                samples_before_step(step, schedule), batch_size_at(step, schedule),
                rows=dataset.rows, seed=3, file_order_first_epoch=True,
            )
        ].any()
    ]  # fmt: skip
    (exposed,) = plan.exposed
    assert list(exposed.listed) == steps
    assert (exposed.steps, exposed.last_step) == (len(steps), 40)
    assert exposed.first_exposed == ("step_0000010" if steps[0] <= 10 else "step_0000040")


# --- applying ---


def test_nothing_is_left(copied: Path, tmp_path: Path) -> None:
    named = [*keys_of(copied, "kept", 2), *keys_of(copied, "duplicate", 1)]
    plan = planned(copied, tmp_path, documents=named)
    taken = [key.hex() for key in plan.taken["doc_key"].to_pylist()]
    texts = {key: text_of(copied, key) for key in taken}
    other = text_of(copied, keys_of(copied, "kept", 3)[2])
    assert all(files_with(copied, text) for text in texts.values())
    apply(plan, SIGNED)
    assert all(text_of(copied, key) == "" for key in taken)
    assert [files_with(copied, text) for text in texts.values()] == [[]] * len(texts)
    assert files_with(copied, other)
    details = {check.name: check.detail for check in verify(copied)}
    assert "no text" in details["takedowns"]
    assert not list((copied / "hdf5").glob("*/examples_*.h5.tmp*"))


@pytest.mark.parametrize("form", ["sample", "vsl", "corpus"])
def test_only_their_tokens_change(
    small_run: Any, tmp_path: Path, form: str, write_prose: Callable[..., str]
) -> None:
    """Against a plain reading of the shards before and after."""
    run = tmp_path / "run"
    if form == "sample":
        shutil.copytree(small_run.directory, run)
    else:
        pipeline.run(small_run.corpus.config, run, 0, overrides=(f"pack.format={form}",))
    keys = [*keys_of(run, "kept", 4), *keys_of(run, "duplicate", 1)]
    plan = planned(run, tmp_path, documents=keys)
    gone = {int(doc) for doc in plan.taken["doc"].to_pylist()}
    before = {split: rows_of(run, split) for split in ("train", "validation")}
    owners = {split: owners_of(run, split) for split in before}
    eos = open_dataset(run / "hdf5/train").eos_id
    apply(plan, SIGNED)
    for split, old in before.items():
        new = rows_of(run, split)
        assert new.shape == old.shape
        inputs, labels = owners[split]
        expected = old.copy()
        if form == "corpus":
            expected[np.isin(inputs, list(gone))] = eos
        else:
            here, asked = (np.isin(owner, list(gone)) for owner in (inputs, labels))
            expected[:, 0][here] = eos
            expected[:, 2][asked] = eos
            for channel in (1, 3, 4)[: 1 if form == "sample" else 3]:
                expected[:, channel][asked] = 0
        assert np.array_equal(new, expected)
    verify(run)


def owners_of(run: Path, split: str) -> tuple[np.ndarray, np.ndarray]:
    """The document of every input and of every label, -1 for none: from the stream itself, put
    together of the lineage by stream row."""
    dataset = open_dataset(run / "hdf5" / split)
    tables = [
        pq.read_table(run / f"hdf5/{split}" / s.name.replace(".h5", ".lineage.parquet"))
        for s in dataset.shards
    ]
    if dataset.layout.name == "corpus":
        owner = np.full(dataset.files.rows, -1)
        for start, table in zip(dataset.starts, tables, strict=False):
            for row in table.to_pylist():
                owner[start + row["token_start"] : start + row["token_end"]] = row["doc"]
        return owner, owner
    length = dataset.max_sequence_length
    inputs = np.full((dataset.rows, length), -1)
    stream_row = np.zeros(dataset.rows, int)
    for start, table in zip(dataset.starts, tables, strict=False):
        for row in table.to_pylist():
            inputs[start + row["row"], row["token_start"] : row["token_end"]] = row["doc"]
            stream_row[start + row["row"]] = row["stream_row"]
    if dataset.layout.name == "vsl":
        return inputs, inputs
    stream = inputs[np.argsort(stream_row)].reshape(-1)
    count = int((stream >= 0).sum())
    following = np.append(stream[1:], -1)
    following[count - 1] = stream[count - 1]
    return inputs, following.reshape(-1, length)[stream_row]


def test_the_data_set_says_where_it_comes_from(copied: Path, tmp_path: Path) -> None:
    old = open_dataset(copied / "hdf5/train")
    key = next(
        k.hex() for k, row in sorted(ends(copied).items())
        if row["state"] == "kept" and row["split"] == "train"
    )  # fmt: skip
    apply(planned(copied, tmp_path, documents=[key]), SIGNED)
    params = json.loads((copied / "hdf5/train/data_params.json").read_bytes())
    assert params["derived_from"] == old.dataset_hash != params["dataset_hash"]
    assert (params["kind"], params["takedowns"]) == ("mask", ["c1"])
    changed = [s.name for s in open_dataset(copied / "hdf5/train").shards if "-001" in s.name]
    assert 0 < len(changed) < len(old.shards)
    second = next(k for k in keys_of(copied, "kept", 40) if k != key)
    again = planned(copied, tmp_path, "c2", documents=[second, key])
    assert again.earlier == 1
    apply(again, SIGNED)
    newest = open_dataset(copied / "hdf5/train")
    assert newest.ancestors[0] == old.dataset_hash
    assert newest.takedowns in (("c1",), ("c1", "c2"))
    assert [t.id for t in read_takedowns(copied)] == ["c1", "c2"]
    verify(copied)


def test_the_record_and_the_event(copied: Path, tmp_path: Path) -> None:
    apply(planned(copied, tmp_path, documents=keys_of(copied, "kept", 1)), SIGNED)
    text = record_path(copied, "c1").read_text()
    assert "unlearned" not in text
    record = json.loads(text)
    assert (record["by"], record["on"], record["mode"]) == ("Jane Doe", "2026-03-02", "mask")
    assert {copy["what"] for copy in record["outside"]} == {"raw shard", "backups"}
    assert not pending_path(copied, "c1").exists()
    events = [e for e in verify_events(copied).events if e.kind == "takedown"]
    assert [(e.by, e.what["id"]) for e in events] == [("Jane Doe", "c1")]
    form = (copied / "takedowns/takedown-c1.md").read_text()
    assert "# Takedown c1" in form
    assert "Jane Doe, 2026-03-02" in form
    assert "<script" not in (copied / "takedowns/takedown-c1.html").read_text()


def stamps(run: Path) -> dict[Path, int]:
    return {p: p.stat().st_mtime_ns for p in run.rglob("*") if p.is_file() and p.name != ".lock"}


def test_applying_twice_changes_nothing(copied: Path, tmp_path: Path) -> None:
    claim = load_claim(write_claim(tmp_path, documents=keys_of(copied, "kept", 1)))
    wanted = Wanted(claim, copied, (), (), True, "mask", "Jane", date(2026, 3, 2), None, False)
    take_down(wanted)
    before = stamps(copied)
    take_down(wanted)
    assert stamps(copied) == before
    other = load_claim(write_claim(tmp_path, documents=keys_of(copied, "kept", 2)))
    with pytest.raises(InputError, match="another claim of this id"):
        take_down(Wanted(other, copied, (), (), True, "mask", "J", date.today(), None, False))


def test_a_damaged_shard_is_not_blessed(copied: Path, tmp_path: Path) -> None:
    plan = planned(copied, tmp_path, documents=keys_of(copied, "kept", 1))
    path = next(iter(sorted((copied / "tokens").glob("*.arrow"))))
    for path in sorted((copied / "tokens").glob("*.arrow")):
        data = bytearray(path.read_bytes())
        data[-1] ^= 0
        data += b"\0"
        path.write_bytes(data[:-1] + b"\1")
    with pytest.raises((IntegrityError, pa.ArrowInvalid)):
        apply(plan, SIGNED)
    with pytest.raises(InputError, match="not finished"):
        pipeline.run("quickstart", copied, 0)


# --- later runs ---


@pytest.fixture(scope="module")
def masked(small_run: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a takedown of two plain documents and a cluster; read only."""
    root = tmp_path_factory.mktemp("masked")
    shutil.copytree(small_run.directory, root / "run")
    keys = [*keys_of(root / "run", "kept", 2), *keys_of(root / "run", "duplicate", 1)]
    apply(planned(root / "run", root, documents=keys), SIGNED)
    return root / "run"


def taken_keys(run: Path) -> list[bytes]:
    return list(pq.read_table(run / "takedowns/c1.parquet")["doc_key"].to_pylist())


def test_an_unchanged_run_stays_as_it_is(masked: Path, small_run: Any, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    before = (run / "hdf5/train/data_params.json").read_bytes()
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert set(manifest.reused) == set(manifest.stages)
    assert (run / "hdf5/train/data_params.json").read_bytes() == before
    verify(run)


def test_a_lost_shard_comes_back_without_the_texts(
    masked: Path, small_run: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    texts = {key: text_of(small_run.directory, key.hex()) for key in taken_keys(run)}
    for path in (run / "documents").glob("*.arrow"):
        path.unlink()
    manifest = pipeline.run(small_run.corpus.config, run, 0)
    assert [s for s in manifest.stages if s not in manifest.reused] == ["clean"]
    assert [files_with(run, text) for text in texts.values()] == [[]] * len(texts)
    verify(run)


def test_a_changed_setting_writes_the_data_set_without_them(
    masked: Path, small_run: Any, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(masked, run)
    taken = taken_keys(run)
    pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    found = ends(run)
    assert {(found[k]["state"], found[k]["reason"]) for k in taken} == {("dropped", "takedown")}
    params = json.loads((run / "hdf5/train/data_params.json").read_bytes())
    assert "derived_from" not in params
    assert not list((run / "hdf5").glob("*/*-001.*"))
    verify(run)
    again = pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    assert set(again.reused) == set(again.stages)
    second = planned(run, tmp_path, "c2", documents=keys_of(run, "kept", 1))
    apply(second, SIGNED)
    again = pipeline.run(small_run.corpus.config, run, 0, overrides=ROW_SETTINGS)
    assert set(again.reused) == set(again.stages)
    verify(run)


def test_a_copy_that_is_added_later_goes_too(
    masked: Path, small_run: Any, tmp_path: Path, make_corpus: Any
) -> None:
    """The same text under another path: by the hash of the text."""
    run, corpus = tmp_path / "run", make_corpus(tmp_path / "corpus")
    shutil.copytree(masked, run)
    key = next(k for k in taken_keys(run) if ends(run)[k]["state"] == "kept")
    text = text_of(small_run.directory, key.hex())
    (corpus.root / "raw/web/zz.jsonl").write_text(json.dumps({"text": text}) + "\n")
    pipeline.run(corpus.config, run, 0)
    new = [row for row in ends(run).values() if row["path_id"] == 5]
    assert [(row["state"], row["reason"]) for row in new] == [("dropped", "takedown")]
    assert files_with(run, text) == []
    verify(run)


def test_rewrite_says_what_to_run_and_the_run_does_it(
    copied: Path, small_run: Any, tmp_path: Path, prep: Callable[..., Any]
) -> None:
    claim = write_claim(tmp_path, documents=keys_of(copied, "kept", 2))
    options = ("--run", copied, "--apply", "--mode", "rewrite", "--by", "Jane")
    ended = prep("takedown", claim, *options)
    assert ended.code == 0
    assert "prep run" in ended.out
    with pytest.raises(IntegrityError, match="not a finished run"):
        verify(copied)
    pipeline.run(small_run.corpus.config, copied, 0)
    verify(copied)
    taken = taken_keys(copied)
    assert {ends(copied)[key]["reason"] for key in taken} == {"takedown"}


# --- forget sets, commands ---


def test_a_forget_set_names_the_labels(small_run: Any, tmp_path: Path) -> None:
    run, out = small_run.directory, tmp_path / "forget"
    plan = planned(run, tmp_path, documents=keys_of(run, "kept", 3))
    told = write_forget_set(plan, out)
    assert told == json.loads((out / "forget-set.json").read_bytes())
    for split in plan.splits:
        dataset = open_dataset(run / "hdf5" / split.split)
        gone = np.isin(owners_of(run, split.split)[1], plan.taken["doc"].to_pylist())
        found = np.zeros_like(gone)
        for index, shard in enumerate(dataset.shards):
            path = out / split.split / f"{shard.name}.npz"
            if path.exists():
                data = np.load(path)
                bits = np.unpackbits(data["mask"], axis=1)[:, : dataset.max_sequence_length]
                found[dataset.starts[index] + data["rows"]] = bits
        assert np.array_equal(found, gone)
        listed = pq.read_table(out / f"{split.split}.rows.parquet")
        assert pc.sum(pc.subtract(listed["label_end"], listed["label_start"])).as_py() == gone.sum()
    with pytest.raises(ConfigError, match="not empty"):
        write_forget_set(plan, out)


def test_command(copied: Path, tmp_path: Path, prep: Callable[..., Any]) -> None:
    claim = write_claim(tmp_path, documents=keys_of(copied, "kept", 1))
    shown = prep("takedown", claim, "--run", copied)
    assert shown.code == 0
    assert "out of reach" in shown.out
    told = json.loads(prep("takedown", claim, "--run", copied, "--plan", "--json").out)
    assert told["documents"]["count"] == len(told["taken"]) == 1
    assert prep("takedown", claim, "--run", copied, "--apply").code == 2
    assert not (copied / "takedowns").exists()
    assert prep("takedown", claim, "--run", copied, "--apply", "--by", "Jane").code == 0
    assert prep("verify", copied).code == 0
    assert prep("takedown", claim, "--run", copied, "--apply", "--mode", "erase").code == 2


def test_a_pending_takedown_is_told_by_every_command(
    copied: Path, small_run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = planned(copied, tmp_path, documents=keys_of(copied, "kept", 1))
    monkeypatch.setattr("pipeline.takedown.apply.mask_split", _fail)
    with pytest.raises(IntegrityError, match="on purpose"):
        apply(plan, SIGNED)
    monkeypatch.undo()
    with pytest.raises(InputError, match="c1 is not finished"):
        pipeline.run(small_run.corpus.config, copied, 0)
    assert resume(copied, "c1").pending is False
    verify(copied)


def _fail(*_: object) -> None:
    raise IntegrityError("on purpose")
