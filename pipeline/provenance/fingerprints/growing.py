"""Arrays that a kernel fills without knowing how long they will be."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from dedup.arrays import I64
from dedup.compiled import kernel
from dedup.text import Whole

Number = TypeVar("Number", np.uint32, np.uint64, np.int64)


@kernel
def room_for(values: npt.NDArray[Number], used: Whole, more: Whole) -> npt.NDArray[Number]:
    """The values, in an array at least twice as long if `more` do not fit behind the used ones."""
    if used + more <= len(values):
        return values
    longer = np.empty(max(2 * len(values), used + more), values.dtype)
    for i in range(used):
        longer[i] = values[i]
    return longer


@kernel
def rows_for(rows: I64, used: Whole, more: Whole) -> I64:
    """The same of rows."""
    if used + more <= len(rows):
        return rows
    longer = np.empty((max(2 * len(rows), used + more), rows.shape[1]), np.int64)
    for row in range(used):
        for column in range(rows.shape[1]):
            longer[row, column] = rows[row, column]
    return longer
