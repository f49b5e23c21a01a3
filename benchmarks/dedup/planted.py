"""Signatures without texts: random cells, and documents that copy a share of another one's cells.

Document i is a function of i alone, so any stretch of a data set of any size can be made by itself.
"""

import numba
import numpy as np

CELLS = 128
ONE_IN = 5
"""Every fifth document, on average, is a copy."""
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_SALT = np.uint64(0xD6E8FEB86659FD93)


def planted_signatures(first: int, count: int) -> np.ndarray:
    """(count, 128) uint32 signatures of documents first .. first + count - 1.

    A fifth are copies of a document chosen evenly among the ones before them that are no copies;
    each cell is kept with probability J, which is drawn evenly from 0.6 .. 1 for the copy.
    """
    signatures = np.empty((count, CELLS), np.uint32)
    _fill(np.uint64(first), signatures)
    return signatures


@numba.njit
def _mix(value: np.uint64) -> np.uint64:
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xFF51AFD7ED558CCD)
    value ^= value >> np.uint64(33)
    value *= np.uint64(0xC4CEB9FE1A85EC53)
    return value ^ (value >> np.uint64(33))


@numba.njit
def _is_copy(document: np.uint64) -> bool:
    return document > 0 and _mix(document * _SALT) % np.uint64(ONE_IN) == 0


@numba.njit
def _share(value: np.uint64) -> float:
    return np.float64(value >> np.uint64(11)) / 2.0**53


@numba.njit
def _fill(first: np.uint64, signatures: np.ndarray) -> None:
    for place in range(signatures.shape[0]):
        document = first + np.uint64(place)
        own = _mix(document * _GOLDEN)
        copied, kept = own, 0.0
        if _is_copy(document):
            kept = 0.6 + 0.4 * _share(_mix(own ^ _SALT))
            source = _mix(own + _SALT) % document
            while _is_copy(source):
                source -= np.uint64(1)
            copied = _mix(source * _GOLDEN)
        for cell in range(CELLS):
            step = np.uint64(cell + 1) * _SALT
            draw = _share(_mix((own ^ _GOLDEN) + step))
            signatures[place, cell] = _mix((copied if draw < kept else own) + step) >> np.uint64(32)
