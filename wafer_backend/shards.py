"""Which weight server holds which parameter."""

from collections.abc import Sequence

from wafer_backend.errors import BackendConfigError


def assign_servers(sizes: Sequence[int], servers: int) -> list[int]:
    """The server (0-based) of every tensor: whole tensors, in order, to the least loaded so far.

    `sizes` in bytes, in `named_parameters` order; a tie goes to the lowest server. The fullest
    server holds at most the mean plus one tensor.

    >>> assign_servers([5, 3, 1, 1, 4], 2)
    [0, 1, 1, 1, 0]
    """
    if servers < 1:
        raise BackendConfigError(f"max_wgt_servers = {servers}: expected at least 1")
    loads = [0] * servers
    chosen = []
    for size in sizes:
        server = loads.index(min(loads))
        loads[server] += size
        chosen.append(server)
    return chosen
