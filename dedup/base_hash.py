"""Base hashes of the shingles of a batch: what datasketch's `hashfunc` returns, ready to permute.

datasketch's affine schemes first send the base hash through a finaliser of MurmurHash3 of their
width; that is done here.

SHA-1 hashes many shingles at once: each lane of a vector register works on its own. Source: FIPS
180-4. Shingles up to 55 bytes fit one block and go through the lanes; longer ones, which only long
words make, are hashed one by one. Only the first 8 bytes of the digest are kept, which is what
datasketch's sha1_hash32 and sha1_hash64 read, little-endian.
"""

import numpy as np

from dedup.arrays import I64, U8, U32, U64
from dedup.compiled import kernel
from dedup.polynomial import fmix64
from dedup.presets import Preset
from dedup.stream import Shingler, TextBatch

LANES = 256
"""Shingles in flight: their 21 rows of 1 KiB stay in the first-level cache."""
ONE_BLOCK = 55
"""Bytes that fit one block of 64 together with padding and length."""
MARGIN = 64
"""Bytes behind the text that may be read."""

_H0, _H1, _H2 = np.uint32(0x67452301), np.uint32(0xEFCDAB89), np.uint32(0x98BADCFE)
_H3, _H4 = np.uint32(0x10325476), np.uint32(0xC3D2E1F0)
_K0, _K1 = np.uint32(0x5A827999), np.uint32(0x6ED9EBA1)
_K2, _K3 = np.uint32(0x8F1BBCDC), np.uint32(0xCA62C1D6)
_ALL = np.uint32(0xFFFFFFFF)
_END = np.uint32(0x80)


@kernel
def encode_utf8(points: U32, count: int, text: U8, at: I64) -> int:
    """Code points to UTF-8: point i becomes text[at[i]:at[i + 1]]; returns the bytes written.

    text must hold 4 * count + MARGIN, at count + 1.
    """
    j = 0
    for i in range(count):
        c = points[i]
        at[i] = j
        if c < 0x80:
            text[j] = np.uint8(c)
            j += 1
        elif c < 0x800:
            text[j] = np.uint8(0xC0 | (c >> 6))
            text[j + 1] = np.uint8(0x80 | (c & 0x3F))
            j += 2
        elif c < 0x10000:
            text[j] = np.uint8(0xE0 | (c >> 12))
            text[j + 1] = np.uint8(0x80 | ((c >> 6) & 0x3F))
            text[j + 2] = np.uint8(0x80 | (c & 0x3F))
            j += 3
        else:
            text[j] = np.uint8(0xF0 | (c >> 18))
            text[j + 1] = np.uint8(0x80 | ((c >> 12) & 0x3F))
            text[j + 2] = np.uint8(0x80 | ((c >> 6) & 0x3F))
            text[j + 3] = np.uint8(0x80 | (c & 0x3F))
            j += 4
    at[count] = j
    text[j : j + MARGIN] = 0
    return j


@kernel
def _rotate(value: np.uint32, bits: int) -> np.uint32:
    return np.uint32(value << np.uint32(bits)) | (value >> np.uint32(32 - bits))


@kernel
def _choose(s: U32, a: int, b: int, c: int, d: int, e: int, m: U32, w: int) -> None:
    """Rounds 0 to 19; the new a comes into the row of e."""
    for i in range(LANES):
        mixed = s[d, i] ^ (s[b, i] & (s[c, i] ^ s[d, i]))
        s[e, i] += _rotate(s[a, i], 5) + mixed + _K0 + m[w, i]


@kernel
def _parity(
    s: U32, a: int, b: int, c: int, d: int, e: int, m: U32, w: int, constant: np.uint32
) -> None:
    """Rounds 20 to 39 and 60 to 79."""
    for i in range(LANES):
        mixed = s[b, i] ^ s[c, i] ^ s[d, i]
        s[e, i] += _rotate(s[a, i], 5) + mixed + constant + m[w, i]


@kernel
def _majority(s: U32, a: int, b: int, c: int, d: int, e: int, m: U32, w: int) -> None:
    """Rounds 40 to 59."""
    for i in range(LANES):
        mixed = (s[b, i] & s[c, i]) | (s[d, i] & (s[b, i] | s[c, i]))
        s[e, i] += _rotate(s[a, i], 5) + mixed + _K2 + m[w, i]


@kernel
def _turn(s: U32, b: int) -> None:
    for i in range(LANES):
        s[b, i] = _rotate(s[b, i], 30)


@kernel
def _schedule(m: U32, w: int, w3: int, w8: int, w14: int) -> None:
    for i in range(LANES):
        m[w, i] = _rotate(m[w, i] ^ m[w3, i] ^ m[w8, i] ^ m[w14, i], 1)


@kernel
def _compress(state: U32, message: U32) -> None:
    """One block for every lane: state (5, LANES) becomes the digests; message (16, LANES)."""
    state[0], state[1], state[2], state[3], state[4] = _H0, _H1, _H2, _H3, _H4
    for t in range(80):
        w = t & 15
        if t >= 16:
            _schedule(message, w, (t - 3) & 15, (t - 8) & 15, (t - 14) & 15)
        turn = 80 - t
        a, b, c, d, e = turn % 5, (turn + 1) % 5, (turn + 2) % 5, (turn + 3) % 5, (turn + 4) % 5
        if t < 20:
            _choose(state, a, b, c, d, e, message, w)
        elif t < 40:
            _parity(state, a, b, c, d, e, message, w, _K1)
        elif t < 60:
            _majority(state, a, b, c, d, e, message, w)
        else:
            _parity(state, a, b, c, d, e, message, w, _K3)
        _turn(state, b)
    # After 80 rounds every row is back at its own place.
    for i in range(LANES):
        state[0, i] = np.uint32(state[0, i] + _H0)
        state[1, i] = np.uint32(state[1, i] + _H1)


@kernel
def _word(text: U8, at: int, left: int) -> np.uint32:
    """Word of a message of which `left` bytes remain at `at`: big-endian, with the end mark."""
    word = (
        (np.uint32(text[at]) << np.uint32(24))
        | (np.uint32(text[at + 1]) << np.uint32(16))
        | (np.uint32(text[at + 2]) << np.uint32(8))
        | np.uint32(text[at + 3])
    )
    if left >= 4:
        return np.uint32(word)
    if left < 0:
        return np.uint32(0)
    bits = np.uint32(8 * left)
    return np.uint32((word & ~(_ALL >> bits)) | ((_END << np.uint32(24)) >> bits))


@kernel
def _one_by_one(text: U8, start: int, length: int, w: U32) -> np.uint64:
    """The first 8 bytes of the digest of one message of any length, little-endian; w (80,)."""
    h0, h1, h2, h3, h4 = _H0, _H1, _H2, _H3, _H4
    blocks = (length + 8) // 64 + 1
    for block in range(blocks):
        for t in range(16):
            at = 64 * block + 4 * t
            w[t] = _word(text, start + at, length - at) if at <= length else np.uint32(0)
        if block == blocks - 1:
            w[14] = np.uint32(length >> 29)
            w[15] = np.uint32(length << 3)
        for t in range(16, 80):
            w[t] = _rotate(w[t - 3] ^ w[t - 8] ^ w[t - 14] ^ w[t - 16], 1)
        a, b, c, d, e = h0, h1, h2, h3, h4
        for t in range(80):
            if t < 20:
                mixed = np.uint32((d ^ (b & (c ^ d))) + _K0)
            elif t < 40:
                mixed = np.uint32((b ^ c ^ d) + _K1)
            elif t < 60:
                mixed = np.uint32(((b & c) | (d & (b | c))) + _K2)
            else:
                mixed = np.uint32((b ^ c ^ d) + _K3)
            top = np.uint32(_rotate(a, 5) + mixed + e + w[t])
            a, b, c, d, e = top, a, _rotate(b, 30), c, d
        h0, h1, h2 = np.uint32(h0 + a), np.uint32(h1 + b), np.uint32(h2 + c)
        h3, h4 = np.uint32(h3 + d), np.uint32(h4 + e)
    return _little_endian(h0, h1)


@kernel
def _little_endian(h0: np.uint32, h1: np.uint32) -> np.uint64:
    """The value of the 8 bytes that big-endian h0 and h1 stand for."""
    value = (np.uint64(h1) << np.uint64(32)) | np.uint64(h0)
    even = np.uint64(0x00FF00FF00FF00FF)
    value = ((value >> np.uint64(8)) & even) | ((value & even) << np.uint64(8))
    words = np.uint64(0x0000FFFF0000FFFF)
    return ((value >> np.uint64(16)) & words) | ((value & words) << np.uint64(16))


@kernel
def sha1_hashes(text: U8, starts: I64, stops: I64, count: int, hashes: U64) -> None:
    """hashes[i] = first 8 bytes of SHA-1 of text[starts[i]:stops[i]], little-endian."""
    state = np.empty((5, LANES), np.uint32)
    message = np.zeros((16, LANES), np.uint32)
    schedule = np.empty(80, np.uint32)
    for first in range(0, count, LANES):
        lanes = min(LANES, count - first)
        longest = 0
        for lane in range(lanes):
            longest = max(longest, stops[first + lane] - starts[first + lane])
        for t in range(14):
            at = 4 * t
            if at > longest:
                message[t] = 0
                continue
            for lane in range(lanes):
                start = starts[first + lane]
                message[t, lane] = _word(text, start + at, stops[first + lane] - start - at)
        message[14] = 0
        for lane in range(lanes):
            message[15, lane] = np.uint32((stops[first + lane] - starts[first + lane]) << 3)
        _compress(state, message)
        for lane in range(lanes):
            start, length = starts[first + lane], stops[first + lane] - starts[first + lane]
            if length > ONE_BLOCK:
                hashes[first + lane] = _one_by_one(text, start, length, schedule)
            else:
                hashes[first + lane] = _little_endian(state[0, lane], state[1, lane])


_HALF = np.uint64(32)


@kernel
def fmix32(value: np.uint32) -> np.uint32:
    """MurmurHash3's 32-bit finaliser."""
    value ^= value >> np.uint32(16)
    value = np.uint32(value * np.uint32(0x85EBCA6B))
    value ^= value >> np.uint32(13)
    value = np.uint32(value * np.uint32(0xC2B2AE35))
    return value ^ (value >> np.uint32(16))


@kernel
def _upper32(polynomials: U64, count: int, hashes: U32) -> None:
    """The hash `poly64`."""
    for i in range(count):
        hashes[i] = np.uint32(fmix64(polynomials[i]) >> _HALF)


@kernel
def _lower32(digests: U64, count: int, hashes: U32) -> None:
    """The hash `sha1`."""
    for i in range(count):
        hashes[i] = np.uint32(digests[i])


@kernel
def _finalise32(hashes: U32, count: int) -> None:
    for i in range(count):
        hashes[i] = fmix32(hashes[i])


@kernel
def _finalise64(values: U64, count: int, hashes: U64) -> None:
    """`hashes` may be `values`."""
    for i in range(count):
        hashes[i] = fmix64(values[i])


@kernel
def _word_bytes(
    at: I64, starts: I64, ends: I64, count: int, size: int, first: I64, last: I64
) -> None:
    """Where in UTF-8 the shingle of words i to i + size - 1 begins and ends."""
    for i in range(count):
        first[i] = at[starts[i]]
        last[i] = at[ends[i + size - 1]]


class BaseHasher:
    """Hashes the shingles that a shingler found, one batch after another."""

    def __init__(self, recipe: Preset, shingler: Shingler) -> None:
        self._recipe = recipe
        self._shingler = shingler
        self._h32: U32 = np.empty(0, np.uint32)

    def hashes(self, batch: TextBatch) -> U32 | U64:
        """(shingles,) uint32, or uint64 for scheme affine64; valid until the next call."""
        recipe, count = self._recipe, self._shingler.count
        if len(self._h32) < len(self._shingler.hashes):
            self._make_room(len(self._shingler.hashes))
        is_sha1 = recipe.hash.startswith("sha1")
        values = self._sha1(batch) if is_sha1 else self._shingler.hashes
        if recipe.hash == "poly64_full":
            _finalise64(values, count, self._h64)
        elif recipe.hash == "sha1_full":
            self._h64[:count] = values[:count]
        elif is_sha1:
            _lower32(values, count, self._h32)
        else:
            _upper32(values, count, self._h32)
        if recipe.scheme == "affine64":
            if not recipe.hash.endswith("_full"):
                self._h64[:count] = self._h32[:count]
            _finalise64(self._h64, count, self._h64)
            return self._h64
        if recipe.scheme == "affine32":
            _finalise32(self._h32, count)
        return self._h32

    def _make_room(self, points: int) -> None:
        """Scratch for a batch of so many code points."""
        self._h32 = np.empty(points, np.uint32)
        if self._recipe.scheme == "affine64":
            self._h64: U64 = np.empty(points, np.uint64)
        if self._recipe.hash.startswith("sha1"):
            self._text: U8 = np.empty(4 * points + MARGIN, np.uint8)
            self._at: I64 = np.empty(points + 1, np.int64)
            self._digests: U64 = np.empty(points, np.uint64)

    def _sha1(self, batch: TextBatch) -> U64:
        shingler = self._shingler
        encode_utf8(batch.points, batch.filled, self._text, self._at)
        count = shingler.count - shingler.size + 1
        if shingler.is_word:
            first, last = np.empty((2, max(count, 0)), np.int64)
            _word_bytes(self._at, shingler.starts, shingler.ends, count, shingler.size, first, last)
        else:
            first, last = self._at, self._at[shingler.size :]
        sha1_hashes(self._text, first, last, count, self._digests)
        return self._digests
