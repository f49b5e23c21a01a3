"""Which transport a cluster uses."""

from typing import Literal

from wafer_backend.memoryx import MemoryX
from wafer_backend.transport import ClusterTransport, InlineTransport
from wafer_backend.transports.simulated import SimulatedTransport, Simulation

TransportName = Literal["inline", "simulated"]


def make_transport(
    name: TransportName, memoryx: MemoryX, num_csx: int, simulation: Simulation
) -> ClusterTransport:
    """The transport of this name; `simulation` is for the simulated one."""
    if name == "simulated":
        return SimulatedTransport(memoryx, num_csx, simulation)
    return InlineTransport(memoryx)
