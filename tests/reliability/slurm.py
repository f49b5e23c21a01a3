"""A Slurm of one node, run by this process: its daemons, in a directory of their own."""

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "sinfo")

CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
MpiDefault=none
SlurmdParameters=config_overrides
NodeName={host} NodeAddr=127.0.0.1 CPUs=8 RealMemory=8000 State=UNKNOWN
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def reason_to_skip() -> str:
    """Why there can be no Slurm here; empty when there can."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        return f"no {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
    return "" if os.getuid() == 0 else "slurmd needs root"


class Slurm:
    """Its daemons; `environment` has what makes commands of Slurm talk to it."""

    def __init__(self, root: Path) -> None:
        self.root, self._daemons = root, []
        for name in ("state", "spool"):
            (root / name).mkdir()
        key = root / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        config = root / "slurm.conf"
        config.write_text(CONFIG.format(root=root, host=socket.gethostname(), ports=_ports()))
        self.environment = {**os.environ, "SLURM_CONF": str(config)}
        munge = {"key-file": key, "socket": root / "munge.socket", "pid-file": root / "munge.pid",
                 "log-file": root / "munge.log", "seed-file": root / "munge.seed"}  # fmt: skip
        self._start("munged", "--foreground", "--force", *(f"--{n}={p}" for n, p in munge.items()))
        self._wait(lambda: (root / "munge.socket").exists())
        self._start("slurmctld", "-D")
        self._start("slurmd", "-D")
        self._wait(lambda: self.call("sinfo", "-h", "-o", "%T") == "idle")

    def _start(self, *command: str) -> None:
        self._daemons.append(
            subprocess.Popen(
                command, env=self.environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
        )

    def _wait(self, condition: object, seconds: float = 60) -> None:
        deadline = time.monotonic() + seconds
        while not condition():  # type: ignore[operator]
            assert time.monotonic() < deadline, [p.poll() for p in self._daemons]
            time.sleep(0.2)

    def call(self, *command: str) -> str:
        """What a command of Slurm prints."""
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        return done.stdout.strip()

    def jobs(self, state: str = "") -> list[str]:
        """Ids of the jobs that are there, or in this state."""
        chosen = ("-t", state) if state else ()
        return self.call("squeue", "-h", "-o", "%i", *chosen).split()

    def stop(self) -> None:
        """End jobs and daemons."""
        self.call("scancel", "--user=root", "--signal=KILL")
        for daemon in reversed(self._daemons):
            daemon.send_signal(signal.SIGTERM)
            daemon.wait(20)


def _ports() -> list[int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return [one.getsockname()[1], other.getsockname()[1]]
