"""Section `cluster` of the config: where tasks run, a model for each kind. Nothing of it changes
the output.
"""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from pipeline.config.model import Bytes, ConfigSection, FrozenModel, parse
from pipeline.config.yaml import load_yaml

Workers = Annotated[int, Field(ge=1)]


class _Adaptive(ConfigSection):
    """A number of workers that may follow the work."""

    minimum: Workers | None = None
    """with it the number of workers follows the work, from this one up to `workers`"""

    @model_validator(mode="after")
    def _minimum_fits(self) -> Self:
        most = getattr(self, "workers", None)
        if self.minimum is not None and (most is None or self.minimum > most):
            raise ValueError("expected a minimum of at most `workers`, which it needs")
        return self


class LocalWorkers(_Adaptive):
    """Worker processes on this machine."""

    kind: Literal["local"] = "local"
    """where tasks run"""
    workers: Annotated[int, Field(ge=0)] | None = None
    """worker processes; 0: no workers, all in this process; --workers goes first [default: by input
    size]"""
    dashboard: bool = False
    """show Dask's dashboard, at the address that is printed; needs bokeh"""


class DaskWorkers(ConfigSection):
    """Workers of a Dask scheduler that is there already."""

    kind: Literal["dask"]
    """where tasks run"""
    address: str
    """the scheduler, such as tls://host:8786; its workers have this package and see the same
    files"""


class SSHWorkers(ConfigSection):
    """Worker processes on machines that `ssh` reaches, started for the run. User, port, key and
    known hosts are those of ~/.ssh/config."""

    kind: Literal["ssh"]
    """where tasks run"""
    hosts: tuple[str, ...] = Field(min_length=1)
    """machines for workers; the scheduler is on the first"""
    workers: Workers
    """worker processes on each machine"""
    memory: Bytes | None = None
    """what the workers of one machine may use together [default: not limited]"""
    python: str | None = None
    """the interpreter there, with this package [default: the path of the one here]"""
    dashboard: bool = False
    """show Dask's dashboard on the loopback of the first machine; needs bokeh there"""


class SlurmWorkers(_Adaptive):
    """Worker processes in Slurm jobs, submitted and cancelled by `prep`, which runs the scheduler
    where it is started."""

    kind: Literal["slurm"]
    """where tasks run"""
    workers: Workers
    """worker processes in all jobs together"""
    workers_per_job: Workers = 1
    """worker processes in one job, each with one core"""
    memory: Bytes
    """memory of one job"""
    walltime: str = "01:00:00"
    """time limit of one job, as Slurm writes it; a job that reaches it is replaced"""
    queue: str | None = None
    """partition"""
    account: str | None = None
    """account that is charged"""
    extra: tuple[str, ...] = ()
    """further options of sbatch, such as --constraint=skylake, or --output=FILE for what the jobs
    print, of which nothing is kept otherwise"""
    interface: str | None = None
    """network interface of scheduler and workers, such as ib0"""
    python: str | None = None
    """the interpreter on the nodes, with this package [default: the path of the one here]"""
    patience: Annotated[int, Field(ge=1)] = 24 * 60
    """how long to wait while no job runs"""
    dashboard: bool = False
    """show Dask's dashboard on the loopback of this machine; needs bokeh"""


class SrunWorkers(ConfigSection):
    """The tasks of a Slurm job step, all of them the same `prep` command: the first is prep, the
    others are its workers."""

    kind: Literal["srun"]
    """where tasks run"""
    memory: Bytes | None = None
    """memory of one task [default: what Slurm gives it]"""
    interface: str | None = None
    """network interface of scheduler and workers, such as ib0"""


class KubernetesWorkers(_Adaptive):
    """Pods of the Dask operator, created and deleted by `prep`."""

    kind: Literal["kubernetes"]
    """where tasks run"""
    image: str
    """container image with this package"""
    workers: Workers
    """worker pods"""
    memory: Bytes
    """memory of one pod"""
    claim: str
    """persistent volume claim that all pods mount, with the run directory and the inputs"""
    mount: str
    """where it is mounted: the same path as on this machine"""
    namespace: str | None = None
    """namespace of the pods [default: the current one]"""
    patience: Annotated[int, Field(ge=1)] = 10
    """how long to wait while no pod runs"""


Cluster = Annotated[
    LocalWorkers | DaskWorkers | SSHWorkers | SlurmWorkers | SrunWorkers | KubernetesWorkers,
    Field(discriminator="kind"),
]
LOCAL = LocalWorkers()


class _ClusterFile(FrozenModel):
    cluster: Cluster


def load_cluster(place: str) -> Cluster:
    """The section that `--cluster` names: a Dask scheduler by its address, `srun`, or a YAML file
    with the section. Raises ConfigError."""
    if place == "srun":
        return SrunWorkers(kind="srun")
    if "://" in place:
        return DaskWorkers(kind="dask", address=place)
    return parse(_ClusterFile, load_yaml(Path(place))).cluster
