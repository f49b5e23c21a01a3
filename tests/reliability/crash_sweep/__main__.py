"""The crash sweep: kill a run at its k-th fault point, resume it, compare with an undisturbed run.

A program of its own, so that everything is imported once and each kill is a fork:

    python tests/reliability/crash_sweep toy --work W --every 1
    python tests/reliability/crash_sweep pipeline --work W --config CONFIG --every 7 --offset 3
    python tests/reliability/crash_sweep index --work W --files A.jsonl B.jsonl --every 7
    python tests/reliability/crash_sweep toy --work W --every 3 --mutant no_fsync --power-loss

It prints one JSON object: how many fault points there are, how many kills were made and what went
wrong. After every kill it checks that whatever is committed is whole (a readable record or manifest
names files with the recorded hash); after the resume, that the tree hash is that of the undisturbed
run, that no temporary file is left and that no committed task ran again.

With `--power-loss` the kill also loses what was never made durable: files renamed without an fsync
are cut, renames without an fsync of their directory are undone or kept at random.
"""

import argparse
import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mutants import MUTANTS
from power_loss import Disk
from promises import broken_promises, committed_tasks
from subjects import (
    Subject,
    dedup_subject,
    index_subject,
    pipeline_subject,
    run_toy,
    runs_of,
    tree_hash,
)

from pipeline.core import failpoint
from pipeline.core.errors import PrepError
from pipeline.core.mirror.paths import TEMP_MARK
from pipeline.engine import levels


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
                for problem in broken_promises(run, self.before is None, self.power_loss):
                    self._wrong(plans, f"after {plan}: {problem}")
        promised = (committed_tasks(run, self.power_loss) for run in runs_of(root))
        committed = sum(promised, Counter())
        log = self.work / "resume.log"
        log.write_text("")
        code = self.fork(root, "", log)
        if code != 0:
            self._wrong(plans, f"the resumed run ended with {code}")
        elif tree_hash(root) != self.clean:
            self._wrong(plans, "the tree hash differs from the undisturbed run")
        for path in root.rglob(f"{TEMP_MARK}*"):
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


def sweep(options: argparse.Namespace) -> dict[str, Any]:
    """Make the kills that the options ask for."""
    started = time.monotonic()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    levels.MOST_SHARDS = options.most_shards or levels.MOST_SHARDS
    levels.MOST_TOGETHER = 2 if options.most_shards else levels.MOST_TOGETHER
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
    parser.add_argument("--most-shards", type=int, help="as if no task could read more")
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
