"""`runconfig.transport: distributed`: the ranks of a run, who writes, and the restart after a loss.

The command that a user types starts them, as processes of this machine, with the same command line;
under torchrun they are there already. All ranks do the same; only rank 0 writes and prints. When
one is lost, `runconfig.autorestart` goes on from the last checkpoint with a system less.
"""

import contextlib
import os
import sys
from collections.abc import Iterator

from pipeline.core.errors import ConfigError, PrepError, ResourceError
from trainer.config import Params
from trainer.data.prepare import DataDirectories
from trainer.errors import LostRankError
from trainer.runs.console import Say
from wafer_backend.transports.ranks import LOST, joined_environment, run_ranks


def is_launcher(params: Params) -> bool:
    """Whether this process starts ranks instead of being one."""
    return params.runconfig.transport == "distributed" and not joined_environment()


def was_launched(params: Params) -> bool:
    """Whether this process is a rank, which somebody else has started and lists."""
    return params.runconfig.transport == "distributed" and joined_environment()


def is_writing_rank(params: Params) -> bool:
    """Whether this process writes and prints: rank 0, or the only one. A RANK that was set for
    something else does not count."""
    return params.runconfig.transport != "distributed" or os.environ.get("RANK", "0") == "0"


@contextlib.contextmanager
def errors_by_name(params: Params) -> Iterator[None]:
    """Errors inside say which rank they are of, unless it is rank 0, or they name one."""
    try:
        yield
    except LostRankError:
        raise
    except PrepError as error:
        if not is_writing_rank(params):
            error.args = (f"rank {os.environ['RANK']}: {error}",)
        raise


def launch(params: Params, data: DataDirectories, say: Say) -> int:
    """Run this command line as ranks, again with fewer systems after a loss; the exit code.
    Raises ResourceError when a rank was lost and no restart is left."""
    run, restarts = params.runconfig, 0
    num_csx = run.num_csx
    while True:
        ranks = min(num_csx, run.processes or os.cpu_count() or 1)
        # An option that is repeated counts as last.
        command = [sys.executable, "-m", "trainer.cli", *sys.argv[1:], "--num_csx", str(num_csx)]
        if data.ready is not None:
            command += ["--data", str(data.ready)]
        code = run_ranks(command, ranks, run.liveness)
        if code != LOST:
            return code
        if restarts == run.autorestart.max_num_restarts:
            raise ResourceError(
                "a rank of the cluster was lost; the same command resumes from the last checkpoint"
            )
        restarts += 1
        num_csx = max(run.autorestart.min_num_csx, num_csx - 1)
        say(f"A rank was lost; restart {restarts} from the last checkpoint with num_csx {num_csx}")


def check_ranks(params: Params, target: str) -> None:
    """Refuse what ranks cannot do. Raises ConfigError."""
    run = params.runconfig
    if run.autorestart.min_num_csx > run.num_csx:
        raise ConfigError(
            f"runconfig.autorestart.min_num_csx is {run.autorestart.min_num_csx}; expected at "
            f"most num_csx, {run.num_csx}"
        )
    if run.transport == "distributed" and target != "CSX":
        raise ConfigError(
            f"runconfig.transport: distributed is for target CSX, not {target}, whose weights are "
            "resident"
        )
