"""The limit on the address space of a process, which libraries do not survive."""

import resource

from pipeline.core.errors import ResourceError

NEEDED = 4 << 30
"""Bytes of addresses; several times the memory that is used, because allocators, threads and mapped
libraries reserve them."""


def check_address_space() -> None:
    """Raise ResourceError where `ulimit -v` leaves too few addresses: libparquet ends the process
    with a segmentation fault then, and others with errors that do not say why."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit != resource.RLIM_INFINITY and limit < NEEDED:
        raise ResourceError(
            f"the address space is limited to {limit / 1e6:,.0f} MB (ulimit -v), less than the "
            f"{NEEDED / 1e6:,.0f} MB that allocators and libraries reserve; run `ulimit -v "
            "unlimited`; to limit memory, use a control group instead"
        )
