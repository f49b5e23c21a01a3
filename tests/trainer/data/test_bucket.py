"""Training on a run in a bucket: fresh processes, since the client of a store hangs in a fork."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.trainer.conftest import Trainer

ONE_BY_ONE = """
import json, sys
from trainer import cli
for words in json.loads(sys.argv[1]):
    sys.argv = ["train", *words]
    try:
        cli.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    print("ended with", code, file=sys.stderr)
"""


def train(s3: Any, cache: Path, *commands: tuple[object, ...]) -> subprocess.CompletedProcess[str]:
    """These commands, one after the other in one process."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    return subprocess.run(
        [sys.executable, "-c", ONE_BY_ONE, words],
        env={**os.environ, **s3.environment, "WAFERMILL_CACHE": str(cache)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_a_run_in_a_bucket_trains_as_a_local_one_and_resumes(
    trainer: Trainer, s3: Any, tmp_path: Path
) -> None:
    for path in trainer.data.rglob("*"):
        if path.is_file():
            key = f"trained/{path.relative_to(trainer.data)}"
            s3.client().put_object(Bucket="runs", Key=key, Body=path.read_bytes())
    trainer.train("here", num_steps=2, mode="train_and_eval")
    url, command = "s3://runs/trained", ("CSX", "--params", trainer.params, "--mode")
    missing = (*command, "train", "--data", "s3://runs/nothing", "--num_steps", 1)
    for steps, csx, before in ((1, 1, (missing,)), (2, 2, ())):
        line = (
            *command, "train_and_eval", "--data", url, "--model_dir", tmp_path / "there",
            "--num_steps", steps, "--num_csx", csx,
        )  # fmt: skip
        done = train(s3, tmp_path / f"cache{steps}", *before, line)
        assert done.returncode == 0, done.stderr
        ends = [said for said in done.stderr.splitlines() if said.startswith("ended with ")]
        assert ends == ["ended with 2"] * len(before) + ["ended with 0"], done.stderr
        assert "Traceback" not in done.stderr
        if before:
            assert "--data s3://runs/nothing: no such directory" in done.stderr
    here, there = trainer.bits("here"), trainer.bits("there")
    assert (here[0], here[2:]) == (there[0], there[2:])
    written = b"".join(p.read_bytes() for p in (tmp_path / "there").rglob("*") if p.is_file())
    assert s3.environment["AWS_SECRET_ACCESS_KEY"].encode() not in written
