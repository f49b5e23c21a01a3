"""Shingles and their hashes, the slow and public way: the reference of every kernel."""

import hashlib

from dedup.normalize import normalize
from dedup.presets import HASHES, Preset, check_choice, resolve

BASE = 0x9E3779B97F4A7C15
"""Base of the polynomial hash: 2^64 / golden ratio, odd."""

_MASK = (1 << 64) - 1


def shingles(text: str, preset: str | Preset = "slimpajama") -> list[bytes]:
    """Every shingle of the normalised text in order of occurrence, as UTF-8.

    Character shingles are code points, word shingles are words joined by one blank. Empty when the
    text is shorter than one shingle. ValueError for an unknown preset.

    >>> shingles("Hello, big world")
    [b'hello big wor', b'ello big worl', b'llo big world']
    """
    recipe = resolve(preset)
    normal = normalize(text)
    if recipe.unit == "char":
        units, glue = list(normal), ""
    else:
        units, glue = normal.split(), " "
    return [
        glue.join(units[i : i + recipe.size]).encode() for i in range(len(units) - recipe.size + 1)
    ]


def fmix64(value: int) -> int:
    """The 64-bit finaliser of MurmurHash3, a bijection on [0, 2^64)."""
    value = (value ^ value >> 33) * 0xFF51AFD7ED558CCD & _MASK
    value = (value ^ value >> 33) * 0xC4CEB9FE1A85EC53 & _MASK
    return value ^ value >> 33


def polynomial(shingle: bytes) -> int:
    """Polynomial in `BASE` over the code points + 1, first code point highest, modulo 2^64."""
    value = 0
    for character in shingle.decode():
        value = (value * BASE + ord(character) + 1) & _MASK
    return value


def shingle_hash(shingle: bytes, hash: str = "poly64") -> int:
    """The base hash of one shingle, as given to datasketch's `hashfunc`.

    `poly64`: the upper 32 bits of fmix64(polynomial); `poly64_full`: all 64. `sha1`, `sha1_full`:
    the first 4 or 8 bytes of SHA-1, little-endian (datasketch's sha1_hash32, sha1_hash64).
    ValueError for an unknown hash.

    >>> shingle_hash(b"hello big wor"), shingle_hash(b"hello big wor", "sha1")
    (3357552342, 2942499782)
    """
    check_choice("hash", hash, HASHES)
    if hash in ("sha1", "sha1_full"):
        digest = hashlib.sha1(shingle, usedforsecurity=False).digest()
        return int.from_bytes(digest[: 4 if hash == "sha1" else 8], "little")
    mixed = fmix64(polynomial(shingle))
    return mixed if hash == "poly64_full" else mixed >> 32
