"""The crash sweep: kill a run at its k-th fault point, resume it, compare with an undisturbed run.

A program of its own, so that everything is imported once and each kill is a fork:

    python tests/reliability/crash_sweep.py toy --work W --every 1
    python tests/reliability/crash_sweep.py pipeline --work W --config CONFIG --every 7 --offset 3
    python tests/reliability/crash_sweep.py index --work W --files A.jsonl B.jsonl --every 7
    python tests/reliability/crash_sweep.py toy --work W --every 3 --mutant no_fsync --power-loss

It prints one JSON object: how many fault points there are, how many kills were made and what went
wrong. After every kill it checks that whatever is committed is whole (a readable record or manifest
names files with the recorded hash); after the resume, that the tree hash is that of the undisturbed
run, that no temporary file is left and that no committed task ran again.

With `--power-loss` the kill also loses what was never made durable: files renamed without an fsync
are cut, renames without an fsync of their directory are undone or kept at random.
"""

import argparse
import contextlib
import functools
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

import pipeline.runner as runner_module
from pipeline.cluster import InProcess
from pipeline.core import failpoint, lock, manifest, storage
from pipeline.core.content import table_hash
from pipeline.core.errors import IntegrityError, PrepError
from pipeline.core.journal import Journal
from pipeline.core.manifest import Shard, StageManifest
from pipeline.progress import Progress
from pipeline.runner import Runner
from pipeline.stage import Inputs, Result, Stage, Task, bytes_output

Subject = Callable[[Path], object]


# --- the toy: three stages of four tasks, the last one a fan-in ---


@dataclass(frozen=True)
class ToyJob:
    name: str
    index: int
    inputs: tuple[Shard, ...] = ()


def toy_task(job: ToyJob, inputs: Inputs) -> Result:
    seen = b"".join(inputs.path(shard).read_bytes() for shard in job.inputs)
    text = f"{job.name} {job.index} {storage.hash_bytes(seen)}\n".encode() * 40
    return Result((bytes_output(f"{job.name}/{job.index:06d}.bin", text),), {"documents": 1})


def toy_stage(name: str, inputs: Sequence[tuple[Shard, ...]]) -> Stage:
    tasks = [Task(f"{name} {i}", ToyJob(name, i, s), s) for i, s in enumerate(inputs)]
    return Stage(name, 1, toy_task, tuple(tasks))


def run_toy(root: Path) -> None:
    with lock.hold(root):
        storage.sweep_temps(root)
        runner = Runner(root, InProcess(), Journal(root), Progress(quiet=True))
        first = runner.run(toy_stage("one", [()] * 4))
        second = runner.run(toy_stage("two", [(shard,) for shard in first.shards]))
        third = runner.run(toy_stage("three", [tuple(second.shards)] * 4))
        stages = (first, second, third)
        files = [{"path": s.path, "hash": s.hash} for stage in stages for s in stage.shards]
        manifest.write_sealed(root / "manifest.json", {"files": files})


def pipeline_subject(config: Path, overrides: tuple[str, ...] = ()) -> Subject:
    from pipeline.preparation import run

    _load_kernels()
    return functools.partial(_run_pipeline, run, config, overrides)


def _load_kernels() -> None:
    """What every run would load or parse again, loaded once before the forks."""
    from dedup.warm_up import warm_up
    from pipeline.cleaning import clean_texts, short_mask
    from pipeline.tokenizers.engine import open_tokenizer

    warm_up("slimpajama")
    short_mask(clean_texts(["schÃ¶n"]), 200)
    open_tokenizer("gpt2")


def _run_pipeline(run: Callable[..., object], config: Path, overrides: Any, root: Path) -> None:
    run(config, root, 0, overrides=overrides)


def dedup_subject(files: list[str]) -> Subject:
    """`prep dedup` of these files."""
    from pipeline.config import DedupConfig, ReadConfig
    from pipeline.dedup_alone import DEDUP, config_of
    from pipeline.preparation import run

    _load_kernels()
    read = ReadConfig(max_bad_share=1.0, task_bytes=8 << 10)
    loaded = config_of(files, DedupConfig(), read=read)
    return lambda root: run(loaded, root, 0, story=DEDUP)


def index_subject(files: list[str]) -> Subject:
    """An index of the first file, to which the others are added."""
    from pipeline import dedup_index
    from pipeline.config import DedupConfig
    from pipeline.indexes import settings_of

    settings = settings_of(DedupConfig(), "text")
    work = dedup_index.Work(workers=0, max_bad_share=1.0)

    def grow(root: Path) -> None:
        dedup_index.build(root, files[:1], settings, None, work)
        dedup_index.add(root, files[1:], None, work)

    return grow


def runs_of(root: Path) -> list[Path]:
    """The run directories: the batches of an index, or the one that `root` is."""
    return sorted(root.glob("batches/*")) or [root]


def tree_hash(root: Path) -> str:
    """One hash over all that is published."""
    runs = runs_of(root)
    if runs == [root]:
        return storage.tree_hash(root)
    return " ".join([storage.hash_file(root / "index.json"), *map(storage.tree_hash, runs)])


# --- what a power cut may leave ---


@dataclass
class _Rename:
    target: Path
    before: bytes | None


class Disk:
    """Watches fsync and rename of this process; `lose` drops what was not made durable."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._synced: set[tuple[int, int, int]] = set()
        self._pending: list[_Rename] = []
        self._unsynced: dict[Path, tuple[int, int, int]] = {}
        self._fsync, self._replace = os.fsync, os.replace
        os.fsync, os.replace = self.fsync, self.replace  # type: ignore[assignment]

    def fsync(self, handle: int) -> None:
        self._fsync(handle)
        name = Path(os.readlink(f"/proc/self/fd/{handle}"))
        if name.is_dir():
            self._pending = [r for r in self._pending if r.target.parent != name]
        else:
            self._synced.add(_stamp(os.fstat(handle)))

    def replace(self, source: Path, target: Path) -> None:
        target = target.resolve()
        stamp = _stamp(os.stat(source))
        before = target.read_bytes() if target.exists() else None
        self._replace(source, target)
        self._pending.append(_Rename(target, before))
        self._unsynced.pop(target, None)
        if stamp not in self._synced:
            self._unsynced[target] = stamp

    def lose(self) -> None:
        for target, stamp in self._unsynced.items():
            if target.exists() and _stamp(target.stat()) == stamp:
                os.truncate(target, self._rng.choice((0, stamp[1] // 2, stamp[1])))
        for rename in reversed(self._pending):
            if self._rng.random() < 0.5:
                continue
            if rename.before is None:
                rename.target.unlink(missing_ok=True)
            else:
                rename.target.write_bytes(rename.before)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


# --- mutants: defects that the sweep must catch ---


def _publish_in_place(
    path: Path,
    data: bytes | Iterable[bytes],
    accept: Callable[[storage.Published], None] = lambda published: None,
) -> storage.Published:
    whole = data if isinstance(data, bytes) else b"".join(data)
    published = storage.Published(len(whole), storage.hash_bytes(whole))
    accept(published)
    storage.make_directory(path.parent)
    failpoint.hit("storage.publish.start")
    with open(path, "wb") as file:
        file.write(whole[: len(whole) // 2])
        file.flush()
        failpoint.hit("storage.publish.fsync")
        file.write(whole[len(whole) // 2 :])
    failpoint.hit("storage.publish.done")
    return published


def _exists(self: Runner, stage: Stage, record: manifest.TaskRecord) -> bool:
    return all((self.root / shard.path).exists() for shard in record.shards)


def _adopt_by_existence(self: Runner, stage: Stage, old: object) -> list[manifest.TaskRecord]:
    """Skip a task when its output file is there: no record, no hash."""
    directory = runner_module.record_directory(self.root, stage.name)
    records = []
    for index, task in enumerate(stage.tasks):
        path = self.root / f"{stage.name}/{index:06d}.bin"
        fingerprint = runner_module.task_fingerprint(stage, task)
        if path.exists():
            data = path.read_bytes()
            digest = storage.hash_bytes(data)
            shard = Shard(str(path.relative_to(self.root)), len(data), digest, digest)
            records.append(manifest.TaskRecord(fingerprint, (shard,), {}))
        else:
            place = directory / f"{index:06d}.json"
            call = runner_module._Call(self.root, stage.function, task, fingerprint, place)
            done = runner_module._perform(call)
            assert done.record is not None
            records.append(manifest.TaskRecord(fingerprint, done.record.shards, {}))
    return records


def _marker_first(call: Any) -> Any:
    failpoint.hit(f"task.start.{call.record_path.parent.name}")
    result = call.function(call.task.job, Inputs(call.root))
    shards = tuple(
        Shard(o.path, len(o.data), storage.hash_bytes(o.data), o.content_hash)
        for o in result.outputs
    )
    record = manifest.TaskRecord(call.fingerprint, shards, dict(result.counters))
    runner_module.write_record(call.record_path, record)
    for output in result.outputs:
        storage.publish(call.root / output.path, output.data)
    return runner_module._Done(record)


def _no_file_fsync() -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if Path(os.readlink(f"/proc/self/fd/{handle}")).is_dir():
            real(handle)

    os.fsync = fsync  # type: ignore[assignment]


def _no_directory_fsync() -> None:
    storage.sync_directory = lambda directory: None


def _trust_existence() -> None:
    Runner._valid = _exists


def _in_place_without_records() -> None:
    storage.publish = _publish_in_place
    Runner._run_tasks = _adopt_by_existence


def _marker_before_data() -> None:
    runner_module._perform = _marker_first


def _marker_trusted() -> None:
    runner_module._perform = _marker_first
    Runner._valid = lambda self, stage, record: True


def _existence_without_fsync() -> None:
    _no_file_fsync()
    _trust_existence()


def _temps_left() -> None:
    storage.sweep_temps = lambda directory: 0


def _records_ignored() -> None:
    runner_module.read_record = lambda path: None


MUTANTS: dict[str, Callable[[], None]] = {
    "in_place_without_records": _in_place_without_records,
    "marker_before_data": _marker_before_data,
    "marker_before_data_trusted": _marker_trusted,
    "no_fsync": _no_file_fsync,
    "no_directory_fsync": _no_directory_fsync,
    "existence_check_without_fsync": _existence_without_fsync,
    "temps_left": _temps_left,
    "records_ignored": _records_ignored,
}
"""Each patches the kernel inside the forked child only."""


# --- one run in a fork ---


@dataclass
class Sweep:
    """The undisturbed run of a subject, and everything that was found wrong."""

    subject: Subject
    work: Path
    mutant: str = ""
    power_loss: bool = False
    seed: int = 0
    before: Subject | None = None
    clean: str = ""
    points: list[str] = field(default_factory=list)
    kills: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)

    def learn(self) -> None:
        """Warm this process up, run undisturbed in a fork and note every fault point."""
        self.subject(self.work / "warm")
        shutil.rmtree(self.work / "warm")
        root = self._fresh()
        log = self.work / "points.log"
        log.unlink(missing_ok=True)
        code = self.fork(root, "", log)
        if code != 0:
            raise SystemExit(f"the undisturbed run ended with {code}")
        self.points = log.read_text().split()
        self.clean = tree_hash(root)
        shutil.rmtree(root)

    def _fresh(self) -> Path:
        root = self.work / "run"
        shutil.rmtree(root, ignore_errors=True)
        if self.before is not None:
            self.before(root)
        return root

    def fork(self, root: Path, plan: str, log: Path | None = None, healthy: bool = False) -> int:
        """Run the subject in a child under a fault plan; returns its exit code, negative signal."""
        sys.stdout.flush()
        child = os.fork()
        if child == 0:
            self._child(root, plan, log, healthy)
        _, status = os.waitpid(child, 0)
        return os.waitstatus_to_exitcode(status)

    def _child(self, root: Path, plan: str, log: Path | None, healthy: bool) -> None:
        code = 1
        try:
            os.environ["WAFERMILL_FAILPOINT"] = plan
            failpoint._plan, failpoint._log = failpoint._read_plan(), str(log or "")
            failpoint._hits.clear()
            if self.power_loss and not healthy:
                disk, die = Disk(random.Random(f"{self.seed}{plan}")), failpoint.die
                failpoint.die = lambda: (disk.lose(), die())
            if self.mutant:
                MUTANTS[self.mutant]()
            self.subject(root)
            code = 0
        except PrepError as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            code = error.exit_code
        except BaseException:  # noqa: BLE001 - shown, and the exit code tells the parent
            traceback.print_exc()
        finally:
            os._exit(code)

    def kill(self, *plans: str) -> None:
        """Runs with these fault plans one after the other, then one to the end, and every check."""
        root = self._fresh()
        for plan in plans:
            code = self.fork(root, plan)
            self.kills += code == -signal.SIGKILL
            if code not in (0, -signal.SIGKILL):
                self._wrong(plans, f"the run under {plan} ended with {code}")
            for run in runs_of(root):
                for problem in broken_promises(run, strict=self.before is None):
                    self._wrong(plans, f"after {plan}: {problem}")
        committed = sum((committed_tasks(run) for run in runs_of(root)), Counter())
        log = self.work / "resume.log"
        log.write_text("")
        code = self.fork(root, "", log)
        if code != 0:
            self._wrong(plans, f"the resumed run ended with {code}")
        elif tree_hash(root) != self.clean:
            self._wrong(plans, "the tree hash differs from the undisturbed run")
        for path in root.rglob(f"{storage.TEMP_MARK}*"):
            self._wrong(plans, f"a temporary file is left: {path.name}")
        self._check_redone(plans, committed, log.read_text().split())

    def _check_redone(self, plans: Sequence[str], committed: Counter[str], log: list[str]) -> None:
        if self.before is not None:
            return
        total, started = Counter(self.points), Counter(log)
        for point, tasks in committed.items():
            if started[point] > total[point] - tasks:
                self._wrong(plans, f"{point}: {started[point]} tasks ran, {tasks} were committed")

    def _wrong(self, plans: Sequence[str], problem: str) -> None:
        self.bad.append({"plans": list(plans), "problem": problem})


def broken_promises(root: Path, strict: bool = True) -> list[str]:
    """Readable records and manifests that name a file which is not there or not whole.

    When a finished directory is rebuilt under another config the old stage manifests stand until
    they are replaced; only manifest.json, the commit of the run, promises anything then. A shard
    that is marked because its quarantined texts leave it may still have them, until the commit.
    """
    found = []
    committed: list[tuple[Path, list[tuple[str, str]]]] = []
    with contextlib.suppress(IntegrityError):
        top = manifest.read_sealed(root / "manifest.json")
        committed.append((root / "manifest.json", [(f["path"], f["hash"]) for f in top["files"]]))
    if strict:
        for path in root.glob("manifests/*.json"):
            with contextlib.suppress(IntegrityError):
                stage = manifest.read_manifest(path)
                assert isinstance(stage, StageManifest)
                files = [(s.path, s.hash) for s in stage.shards if not _still_whole(root, s)]
                committed.append((path, files))
        for path in root.glob("journal/records/*/*.json"):
            record = manifest.read_record(path)
            if record is not None:
                committed.append((path, [(s.path, s.hash) for s in record.shards]))
    for path, files in committed:
        for name, digest in files:
            try:
                storage.verify_file(root / name, digest)
            except IntegrityError as error:
                found.append(f"{path.relative_to(root)} promises {error}")
    return found


def _still_whole(root: Path, shard: Shard) -> bool:
    """Whether a marked shard has its texts yet: its content is what was read."""
    path = root / shard.path
    if not shard.is_apart or not path.exists():
        return False
    try:
        table = pa.ipc.open_file(pa.memory_map(str(path))).read_all()
    except pa.ArrowInvalid:
        return False
    return table_hash(table) == shard.content_hash


def committed_tasks(root: Path) -> Counter[str]:
    """Tasks that a readable manifest or record commits, counted by their fault point."""
    tasks: Counter[str] = Counter()
    for path in root.glob("journal/records/*/*.json"):
        if manifest.read_record(path) is not None:
            tasks[f"task.start.{path.parent.name}"] += 1
    for path in root.glob("manifests/*.json"):
        with contextlib.suppress(IntegrityError):
            stage = manifest.read_manifest(path)
            assert stage is not None
            tasks[f"task.start.{stage.stage}"] = len(stage.tasks)
    return tasks


# --- the command ---


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Make the kills that the options ask for."""
    started = time.monotonic()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    subject, before = run_toy, None
    if options.subject == "pipeline":
        subject = pipeline_subject(Path(options.config), tuple(options.set or ()))
        before = pipeline_subject(Path(options.config)) if options.set else None
    elif options.subject == "dedup":
        subject = dedup_subject(options.files)
    elif options.subject == "index":
        subject = index_subject(options.files)
    run = Sweep(subject, work, options.mutant, options.power_loss, options.seed, before)
    run.learn()
    count = len(run.points)
    for plan in options.plan or ():
        run.kill(*plan.split(","))
    if options.every:
        for k in range(1 + options.offset % options.every, count + 1, options.every):
            run.kill(f"*@{k}=kill")
    if options.torn:
        publishes = run.points.count("storage.publish.start")
        for k in range(1, publishes + 1, options.torn):
            for share in (0, 0.5, 0.999):
                run.kill(f"storage.publish.start@{k}=torn:{share}")
    rng = random.Random(options.seed)
    for _ in range(options.compound):
        ends = [rng.randint(1, count) for _ in range(rng.choice((2, 3)))]
        run.kill(*(f"*@{k}=kill" for k in ends))
    return {
        "points": count,
        "names": sorted(set(run.points)),
        "kills": run.kills,
        "clean": run.clean,
        "bad": run.bad,
        "seconds": round(time.monotonic() - started, 1),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, sweep, print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("subject", choices=("toy", "pipeline", "dedup", "index"))
    parser.add_argument("--work", required=True, help="an empty directory to work in")
    parser.add_argument("--config", help="the prep config of the pipeline sweep")
    parser.add_argument("--files", nargs="+", help="raw shards of the dedup and index sweeps")
    parser.add_argument("--set", action="append", help="change a finished run to KEY=VALUE")
    parser.add_argument("--every", type=int, default=0, help="kill at every n-th fault point")
    parser.add_argument("--offset", type=int, default=0, help="fault points to pass over first")
    parser.add_argument("--torn", type=int, default=0, help="tear every n-th publish, three ways")
    parser.add_argument("--compound", type=int, default=0, help="runs whose recovery is killed too")
    parser.add_argument("--plan", action="append", help="fault plans of one run, comma-separated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutant", choices=MUTANTS, default="")
    parser.add_argument("--power-loss", action="store_true")
    print(json.dumps(sweep(parser.parse_args(arguments))))


if __name__ == "__main__":
    main()
