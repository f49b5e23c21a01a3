"""Locality-sensitive hashing: the signature cut into bands of rows, one 8-byte digest per band.

Two documents are a candidate pair when the digests of the same band are equal. A digest stands for
the cells themselves: at 1e9 documents about 0.03 false matches a band are expected (n^2 / 2^65).

Legend: N documents, P signature cells, B bands, R rows of a band.
"""

import numpy as np

from dedup.arrays import U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.shingle import BASE
from dedup.shingle import fmix64 as fmix64_of_int


def band_digests(signatures_NP: U32 | U64, bands: int, rows: int) -> U64:
    """Digests of every band of every document: (bands, N) uint64, each band one contiguous row.

    signatures_NP (N, P) uint32 or uint64; equal cells give equal digests in both. Band b is of the
    cells b * rows .. (b + 1) * rows - 1, and cells from bands * rows on count nowhere. ValueError
    when the signature is shorter than that.
    """
    if signatures_NP.ndim != 2 or signatures_NP.dtype not in (np.uint32, np.uint64):
        raise ValueError(
            f"signatures are {signatures_NP.dtype} of shape {signatures_NP.shape}; "
            "give (documents, cells) of uint32 or uint64"
        )
    _check_bands(signatures_NP.shape[1], bands, rows)
    keys = (fmix64_of_int(row * BASE % 2**64) | 1 for row in range(1, rows + 1))
    keys_R = np.fromiter(keys, np.uint64, rows)
    digests_BN = np.empty((bands, len(signatures_NP)), np.uint64)
    flat = signatures_NP if signatures_NP.flags.c_contiguous else signatures_NP.copy()
    _digest_bands(flat, keys_R, digests_BN)
    return digests_BN


def band_keys(signature_P: U32 | U64, bands: int, rows: int) -> list[bytes]:
    """Keys of the bands of one signature (P,) as SlimPajama's `generate_duplicate_pairs.py` makes
    them: 8 bytes a cell, most significant byte first. Other tools join on these.

    ValueError when the signature has fewer than bands * rows cells.

    >>> band_keys(np.array([1, 258], np.uint32), bands=1, rows=2)[0].hex()
    '00000000000000010000000000000102'
    """
    _check_bands(len(signature_P), bands, rows)
    wide = signature_P[: bands * rows].astype(">u8").reshape(bands, rows)
    return [row.tobytes() for row in wide]


def _check_bands(cells: int, bands: int, rows: int) -> None:
    if bands < 1 or rows < 1 or bands * rows > cells:
        raise ValueError(f"{bands} bands x {rows} rows do not fit a signature of {cells} cells")


@kernel
def _digest_bands(signatures_NP: U32 | U64, keys_R: U64, digests_BN: U64) -> None:
    """A sum of cells, each multiplied by the odd key of its row and folded, mixed at last.

    Each step is a bijection of the cell, so bands that differ in one cell always differ. The
    compiler vectorises the rows; a chain of cells would wait for every multiplication.
    """
    half = np.uint64(32)
    rows = len(keys_R)
    for document in range(signatures_NP.shape[0]):
        for band in range(digests_BN.shape[0]):
            total = np.uint64(0)
            for row in range(rows):
                cell = np.uint64(signatures_NP[document, band * rows + row])
                product = (cell ^ (cell >> half)) * keys_R[row]
                total += product ^ (product >> half)
            digests_BN[band, document] = fmix64(total)
