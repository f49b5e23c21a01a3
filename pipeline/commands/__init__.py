"""The commands of `prep`, one file each: options in, one call, printed results. A process that runs
one, or is a worker of one, looks for cycles of objects less often from here on, and not at its end,
where that would take a tenth of a short run. It has no threads for linear algebra, which nothing
here needs and which keep a process from being forked.
"""

import atexit
import gc
import os

from pipeline.core import collect_rarely

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
collect_rarely()


def _leave_cycles() -> None:
    """Look for none at the end, unless a library is bound by nanobind, as DuckDB is: that tells on
    the terminal of each object that is left then."""
    if not any(kind.__module__ == "nanobind" for kind in object.__subclasses__()):
        gc.freeze()


atexit.register(_leave_cycles)
