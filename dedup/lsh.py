"""Locality-sensitive hashing: one 8-byte digest per band of a signature, and sorted runs of them.

A signature is cut into bands of rows. Two documents are a candidate pair when the digests of the
same band are equal. A digest stands for the cells themselves: at 1e9 documents about 0.03 false
matches a band are expected (n^2 / 2^65).

A sorted run is digests with the rows they belong to, in ascending order; repeated lines are sorted
in the same way. The sort is a radix sort of its own, exact and linear in the worst case: one pass
over the top nine bits makes 512 parts, each of which fits a cache; there a few passes over digits
of nine bits, again top bits only, put entries in their places up to equal prefixes; what is still
out of order is repaired. Nine bits make 512 streams of writes, which the first-level cache holds.

Legend: N documents, P signature cells, B bands, R rows of a band.
"""

import numpy as np

from dedup.arrays import I64, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import BASE
from dedup.presets import fmix64_integer as fmix64_of_int


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


DIGIT = 9
"""Bits of one pass."""
RADIX = 1 << DIGIT
_SPARE = 4
"""Bits sorted beyond log2 of the number of entries: a 16th of the entries share their prefix."""
_SMALL = 48
"""Entries of equal prefix that insertion sorts faster than passes over all digits."""
_CACHED = 1 << 17
"""Entries that are sorted as one part."""
_LAST = np.uint64(RADIX - 1)


def sort_run(digests_N: U64, rows_N: U32) -> tuple[U64, U32]:
    """Entries in ascending order of digest, then row: new arrays (N,) uint64 and (N,) uint32.

    digests_N (N,) uint64 with rows_N (N,) uint32, in any order; they are left as they are. Needs
    24 bytes an entry beside the input, 12 of which are the result. ValueError when the lengths or
    types differ.
    """
    check_entries(digests_N, rows_N)
    digests, rows = np.empty_like(digests_N), np.empty_like(rows_N)
    return sort_entries(
        np.ascontiguousarray(digests_N),
        np.ascontiguousarray(rows_N),
        digests,
        rows,
        np.empty_like(digests),
        np.empty_like(rows),
    )


def slice_run(digests_N: U64, low: int, high: int) -> tuple[int, int]:
    """(start, stop) of the digests of a sorted run in [low, high], both included.

    >>> slice_run(np.array([1, 3, 3, 9], np.uint64), 3, 2**64 - 1)
    (1, 4)
    """
    start = np.searchsorted(digests_N, np.uint64(low), side="left")
    stop = np.searchsorted(digests_N, np.uint64(high), side="right")
    return int(start), int(stop)


def check_entries(digests_N: U64, rows_N: U32) -> None:
    """Raise ValueError unless both are flat, as long as each other, uint64 and uint32."""
    if digests_N.dtype != np.uint64 or rows_N.dtype != np.uint32:
        raise ValueError(f"entries are {digests_N.dtype}, {rows_N.dtype}; give uint64, uint32")
    if digests_N.ndim != 1 or digests_N.shape != rows_N.shape:
        raise ValueError(f"{digests_N.shape} digests with {rows_N.shape} rows; give one row each")


@kernel
def sort_entries(
    digests: U64, rows: U32, near: U64, near_rows: U32, far: U64, far_rows: U32
) -> tuple[U64, U32]:
    """Sort by (digest, row) into one of the two pairs of buffers; the pair is returned.

    All arrays hold N entries. `far` may be the input itself, which is then overwritten.
    """
    count = len(digests)
    if count == 0:
        return near, near_rows
    low = high = digests[0]
    for digest in digests:
        low, high = min(low, digest), max(high, digest)
    bits = bit_length(high - low)
    places = np.empty(RADIX, np.int64)
    if count <= _CACHED or bits <= DIGIT:
        passes = _count_passes(bits, count)
        return _sort_low_bits(
            digests, rows, low, bits, passes, places, near, near_rows, far, far_rows
        )
    ends = np.empty(RADIX, np.int64)
    bits -= DIGIT
    sort_by_digit(digests, rows, low, np.uint64(bits), ends, near, near_rows)
    for digit in range(RADIX):
        start, stop = ends[digit - 1] if digit else 0, ends[digit]
        part, part_rows = near[start:stop], near_rows[start:stop]
        if len(part) <= _SMALL:
            _insertion_sort(part, part_rows)
            continue
        passes = _count_passes(bits, len(part))
        _sort_low_bits(
            part,
            part_rows,
            low,
            bits,
            passes + passes % 2,
            places,
            far[: len(part)],
            far_rows[: len(part)],
            part,
            part_rows,
        )
    return near, near_rows


@kernel
def _count_passes(bits: int, count: int) -> int:
    """Passes after which few of so many entries share their digits without being equal."""
    needed = min(bits, bit_length(np.uint64(count)) + _SPARE)
    return max(1, (needed + DIGIT - 1) // DIGIT)


@kernel
def _sort_low_bits(
    digests: U64,
    rows: U32,
    low: np.uint64,
    bits: int,
    passes: int,
    places: I64,
    near: U64,
    near_rows: U32,
    far: U64,
    far_rows: U32,
) -> tuple[U64, U32]:
    """Sort entries that agree above the lowest `bits` of digest - low. After an even number of
    passes they are in `far`, else in `near`; what was sorted is returned."""
    shift = max(0, bits - passes * DIGIT)
    sort_by_digit(digests, rows, low, np.uint64(shift), places, near, near_rows)
    for number in range(1, passes):
        sort_by_digit(
            near, near_rows, low, np.uint64(shift + number * DIGIT), places, far, far_rows
        )
        near, near_rows, far, far_rows = far, far_rows, near, near_rows
    _repair(near, near_rows, low, np.uint64(shift), places, far, far_rows)
    return near, near_rows


@kernel
def bit_length(value: np.uint64) -> int:
    """Bits needed to write the value; 0 for 0."""
    bits = 0
    while value != np.uint64(0):
        value >>= np.uint64(1)
        bits += 1
    return bits


@kernel
def sort_by_digit(
    digests: U64, rows: U32, low: np.uint64, shift: np.uint64, places: I64, out: U64, out_rows: U32
) -> None:
    """Stable sort by the digit of (digest - low) at bit `shift` (below 64).

    places (RADIX,) holds afterwards where the entries of each digit end in `out`.
    """
    places[:] = 0
    for i in range(len(digests)):
        places[((digests[i] - low) >> shift) & _LAST] += 1
    _starts(places)
    for i in range(len(digests)):
        digit = ((digests[i] - low) >> shift) & _LAST
        place = places[digit]
        places[digit] = place + 1
        out[place] = digests[i]
        out_rows[place] = rows[i]


@kernel
def _scatter_by_row(
    digests: U64, rows: U32, shift: np.uint32, places: I64, out: U64, out_rows: U32
) -> None:
    """Stable sort by the digit of the row at bit `shift` (below 32)."""
    last = np.uint32(RADIX - 1)
    places[:] = 0
    for i in range(len(rows)):
        places[(rows[i] >> shift) & last] += 1
    _starts(places)
    for i in range(len(rows)):
        digit = (rows[i] >> shift) & last
        place = places[digit]
        places[digit] = place + 1
        out[place] = digests[i]
        out_rows[place] = rows[i]


@kernel
def _starts(places: I64) -> None:
    """Counts to exclusive sums, in place."""
    total = 0
    for digit in range(len(places)):
        count = places[digit]
        places[digit] = total
        total += count


@kernel
def _repair(
    digests: U64, rows: U32, low: np.uint64, shift: np.uint64, places: I64, far: U64, far_rows: U32
) -> None:
    """Finish entries that are in order up to the bits below `shift` and the rows."""
    count = len(digests)
    i = 1
    while i < count:
        if digests[i - 1] < digests[i] or (digests[i - 1] == digests[i] and rows[i - 1] <= rows[i]):
            i += 1
            continue
        prefix = (digests[i] - low) >> shift
        start, stop = i - 1, i + 1
        while start > 0 and (digests[start - 1] - low) >> shift == prefix:
            start -= 1
        while stop < count and (digests[stop] - low) >> shift == prefix:
            stop += 1
        if stop - start <= _SMALL:
            _insertion_sort(digests[start:stop], rows[start:stop])
        else:
            _sort_all_digits(
                digests[start:stop],
                rows[start:stop],
                places,
                far[start:stop],
                far_rows[start:stop],
            )
        i = stop + 1


@kernel
def _insertion_sort(digests: U64, rows: U32) -> None:
    for i in range(1, len(digests)):
        digest, row = digests[i], rows[i]
        j = i - 1
        while j >= 0 and (digests[j] > digest or (digests[j] == digest and rows[j] > row)):
            digests[j + 1] = digests[j]
            rows[j + 1] = rows[j]
            j -= 1
        digests[j + 1] = digest
        rows[j + 1] = row


@kernel
def _sort_all_digits(digests: U64, rows: U32, places: I64, far: U64, far_rows: U32) -> None:
    """In place and linear whatever the entries are: 4 digits of the row, then 8 of the digest."""
    none = np.uint64(0)
    for bit in range(0, 32, 2 * DIGIT):
        _scatter_by_row(digests, rows, np.uint32(bit), places, far, far_rows)
        _scatter_by_row(far, far_rows, np.uint32(bit + DIGIT), places, digests, rows)
    for bit in range(0, 64, 2 * DIGIT):
        sort_by_digit(digests, rows, none, np.uint64(bit), places, far, far_rows)
        sort_by_digit(far, far_rows, none, np.uint64(bit + DIGIT), places, digests, rows)
