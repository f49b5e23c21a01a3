"""Arrays that take longer to make than to read, kept in the user's cache."""

import io
from collections.abc import Callable, Mapping

import numpy as np

from dedup.arrays import Array
from dedup.user_cache import keep_cached, read_cached


def kept_arrays(
    make: Callable[[], Mapping[str, Array]], folder: str, name: str
) -> dict[str, Array]:
    """The arrays that `make` returns, read-only: made once on a machine. The name tells all that
    they depend on. Raises what `make` raises."""
    content = read_cached(folder, name)
    if content is not None:
        with np.load(io.BytesIO(content), allow_pickle=False) as stored:
            arrays = dict(stored)
    else:
        arrays, file = dict(make()), io.BytesIO()
        np.savez(file, **arrays)
        keep_cached(file.getvalue(), folder, name)
    for array in arrays.values():
        array.flags.writeable = False
    return arrays
