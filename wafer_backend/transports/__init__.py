"""How the roles of a cluster talk: inline, simulated or between processes."""

import os
from typing import Literal

from wafer_backend.cluster.memoryx import MemoryX
from wafer_backend.cluster.transport import ClusterTransport, InlineTransport
from wafer_backend.errors import BackendConfigError
from wafer_backend.transports.process_group import ProcessGroupTransport
from wafer_backend.transports.ranks import join, joined_environment
from wafer_backend.transports.simulated import SimulatedTransport, Simulation

TransportName = Literal["inline", "simulated", "distributed"]


def server_count(name: TransportName, given: int) -> int:
    """Weight servers: as many as asked for; else one, or one for every rank."""
    if given:
        return given
    return int(os.environ.get("WORLD_SIZE", "1")) if name == "distributed" else 1


def make_transport(
    name: TransportName, memoryx: MemoryX, num_csx: int, simulation: Simulation, liveness: float
) -> ClusterTransport:
    """The transport of this name; `simulation` is for the simulated one, `liveness` (seconds of
    silence after which a rank is dead) for the distributed one.

    Raises BackendConfigError when this process is no rank, or there are more ranks than wafers.
    """
    if name == "inline":
        return InlineTransport(memoryx)
    if name == "simulated":
        return SimulatedTransport(memoryx, num_csx, simulation)
    require_rank()
    ranks = int(os.environ["WORLD_SIZE"])
    if ranks > num_csx:
        raise BackendConfigError(
            f"{ranks} ranks for num_csx {num_csx}: every rank hosts at least one wafer; start "
            f"at most {num_csx}"
        )
    return ProcessGroupTransport(memoryx, join(list(memoryx.parameters), liveness))


def require_rank() -> None:
    """Raise BackendConfigError unless this process was started as a rank."""
    if not joined_environment():
        raise BackendConfigError(
            "the distributed transport runs in ranks: start this program with torchrun"
        )
