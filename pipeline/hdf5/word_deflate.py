"""Deflate for arrays of 32-bit numbers, twice as fast as libdeflate and a little smaller.

Readers see an ordinary zlib stream (RFC 1950 and 1951). Repeats are looked for by whole numbers
instead of bytes, and only by pairs of them: of `sample` rows the labels, which are the ids moved by
one, and the mask are a few long repeats, and a token costs one look. A stream is one block with
Huffman codes of its own. Its bytes depend on the numbers alone.
"""

from typing import Any

import deflate
import numpy as np

from dedup.arrays import I32, I64, U8, U32, U64, Array
from dedup.compiled import kernel

_ZLIB_HEADER = b"\x78\x01"
_LITERALS, _DISTANCES = 286, 30
"""Symbols of the two codes of a block; of the first, those from 257 on are lengths of repeats."""
_LENGTHS = 19
"""Symbols of the code in which the bits of all other symbols are written."""
_LENGTHS_ORDER = np.array([16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15])
_END = 256
_BLOCK_HEADER = 1 | 2 << 1 | (_LITERALS - 257) << 3 | (_DISTANCES - 1) << 8 | (_LENGTHS - 4) << 13
"""The last block, with codes of its own, and how many symbols each of these has; 17 bits."""
_MOST_BITS, _MOST_LENGTHS_BITS = np.int64(14), np.int64(7)
"""Of one symbol. Deflate allows 15, but two symbols of 14, two of 2 and 31 bits that wait fit into
64. They have a type, as kernels are compiled again for every number that has none."""
_WINDOW = 8192
"""Words that a repeat may lie back: 32 KiB."""
_LONGEST = 258
"""Bytes of one repeat."""
_HASH_BITS = 11
_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_CODE = np.uint64((1 << 48) - 1)
_HALF = np.uint64(32)
"""A code is its bits, first bit lowest, and how many they are from bit 48 on."""


def _tabulate_lengths() -> I64:
    """By bytes of a repeat: its symbol, the extra bits from bit 16 on, their value from bit 32 on
    (RFC 1951, 3.2.5)."""
    table = np.zeros(_LONGEST + 1, np.int64)
    for length in range(3, _LONGEST):
        beyond = length - 3
        extra = max(0, beyond.bit_length() - 3)
        symbol = 257 + 4 * extra + (beyond >> extra)
        table[length] = symbol | extra << 16 | (beyond & ((1 << extra) - 1)) << 32
    table[_LONGEST] = 285
    return table


def _tabulate_distances() -> U8:
    """By words that a repeat lies back: its symbol (RFC 1951, 3.2.5)."""
    table = np.zeros(_WINDOW + 1, np.uint8)
    for words in range(1, _WINDOW + 1):
        beyond = 4 * words - 1
        extra = max(0, beyond.bit_length() - 2)
        table[words] = 2 * extra + (beyond >> extra)
    return table


_LENGTH_SYMBOLS, _DISTANCE_SYMBOLS = _tabulate_lengths(), _tabulate_distances()


def compress_words(words: Array) -> bytes:
    """A C-contiguous array of 32-bit numbers, little-endian, as a zlib stream."""
    word_N = words.reshape(-1).view(np.uint32)
    # No code of Huffman takes more than 9 bits a byte here, and one of limited length little more.
    out = np.empty(len(word_N) + len(word_N) // 2 + 256, np.uint32)
    size = _deflate(word_N, out)
    checksum: int = deflate.adler32(words)
    return b"".join((_ZLIB_HEADER, out.view(np.uint8)[:size].data, checksum.to_bytes(4, "big")))


@kernel
def _deflate(word_N: U32, out: U32) -> Any:
    """Fill `out` with a deflate stream; its bytes."""
    repeats = np.empty((len(word_N) // 2, 3), np.int32)
    count = np.zeros(_LITERALS + _DISTANCES, np.int64)
    found = _find_repeats(word_N, repeats, count)
    bits, code = np.zeros(len(count), np.int64), np.zeros(len(count), np.uint64)
    _make_code(count[:_LITERALS], _MOST_BITS, bits[:_LITERALS], code[:_LITERALS])
    _make_code(count[_LITERALS:], _MOST_BITS, bits[_LITERALS:], code[_LITERALS:])
    lengths_count = np.zeros(_LENGTHS, np.int64)
    for bit in bits:
        lengths_count[bit] += 1
    lengths_bits, lengths_code = np.zeros(_LENGTHS, np.int64), np.zeros(_LENGTHS, np.uint64)
    _make_code(lengths_count, _MOST_LENGTHS_BITS, lengths_bits, lengths_code)
    state = np.uint64(_BLOCK_HEADER), np.int64(17), np.int64(0)
    for symbol in _LENGTHS_ORDER:
        state = _flush(out, _put(state, np.uint64(lengths_bits[symbol] | 3 << 48)))
    for bit in bits:
        state = _flush(out, _put(state, lengths_code[bit]))
    state = _write_words(word_N, repeats[:found], code, out, state)
    state = _flush(out, _put(state, code[_END]))
    _, held, place = _flush(out, state)
    return 4 * place + (held + 7) // 8


@kernel
def _find_repeats(word_N: U32, repeats: I32, count: I64) -> int:
    """Fill rows of `repeats`: literal words before, words, words back; and count the symbols of all
    of it. Returns how many rows.

    A word is looked up with the one after it. Whether that is a repeat is asked in one condition:
    of several, each would be a jump that the processor guesses wrong. Unsigned indices spare a
    question each.
    """
    latest, high = np.zeros(1 << _HASH_BITS, np.int32), np.zeros(256, np.int64)
    i, begun, found, zeros = 0, 0, 0, 0
    while i < len(word_N) - 1:
        word = word_N[np.uint64(i)]
        pair = np.uint64(word) | np.uint64(word_N[np.uint64(i) + np.uint64(1)]) << _HALF
        slot = (pair * _SPREAD) >> np.uint64(64 - _HASH_BITS)
        before = np.int64(latest[slot])
        latest[slot] = i
        there = np.uint64(before)
        earlier = np.uint64(word_N[there])
        earlier |= np.uint64(word_N[there + np.uint64(1)]) << _HALF
        if (earlier == pair) & (before < i) & (i - before <= _WINDOW):
            words = 2 + _count_equal(word_N[i + 2 :], word_N[before + 2 :])
            repeat = repeats[np.uint64(found)]
            repeat[0], repeat[1], repeat[2] = i - begun, words, i - before
            found += 1
            left, pieces = 4 * words, 1
            while left > _LONGEST:
                piece = _next_piece(left)
                count[np.uint64(_LENGTH_SYMBOLS[np.uint64(piece)] & 0xFFFF)] += 1
                left, pieces = left - piece, pieces + 1
            count[np.uint64(_LENGTH_SYMBOLS[np.uint64(left)] & 0xFFFF)] += 1
            count[np.uint64(_LITERALS + _DISTANCE_SYMBOLS[np.uint64(i - before)])] += pieces
            i += words
            begun = i
            continue
        count[word & np.uint32(255)] += 1
        if word < np.uint32(1 << 16):
            high[word >> np.uint32(8)] += 1
            zeros += 2
        else:
            _count_bytes(word >> np.uint32(8), 3, count)
        i += 1
    for last in word_N[i:]:
        _count_bytes(last, 4, count)
    for byte in range(256):
        count[byte] += high[byte]
    count[0] += zeros
    count[_END] += 1
    return found


@kernel
def _count_equal(words: U32, others: U32) -> int:
    """With how many equal words both begin. Of long ones eight are compared at once."""
    most, same = min(len(words), len(others)), 0
    while same < most and words[np.uint64(same)] == others[np.uint64(same)]:
        same += 1
        if same == 16:
            while same + 8 <= most and _are_equal(words[same : same + 8], others[same : same + 8]):
                same += 8
    return same


@kernel
def _are_equal(eight: U32, others: U32) -> Any:
    difference = np.uint32(0)
    for k in range(8):
        difference |= eight[k] ^ others[k]
    return difference == 0


@kernel
def _count_bytes(word: Any, size: int, count: I64) -> None:
    for _ in range(size):
        count[word & np.uint32(255)] += 1
        word >>= np.uint32(8)


@kernel
def _next_piece(left: Any) -> Any:
    """Bytes of the next of the repeats that a longer one is written as: 3 at least must be left."""
    if left <= _LONGEST:
        return left
    return _LONGEST if left - _LONGEST >= 3 else _LONGEST - 3


@kernel
def _make_code(count: I64, most: np.int64, bits: I64, code: U64) -> None:
    """Huffman code of symbols that occur so often: bits of each and codes, with `most` bits at most
    (RFC 1951, 3.2.2). Two symbols at least get one, as some readers expect."""
    if (count > 0).sum() < 2:
        count[0], count[1] = count[0] + 1, count[1] + 1
    used = np.flatnonzero(count)
    order = np.sort(count[used] << 9 | used) & 511
    of_depth = _count_depths(count[order], most)
    first, begun = 0, 0
    symbol = len(order)
    for depth in range(1, most + 1):
        for rank in range(symbol - of_depth[depth], symbol):
            bits[order[rank]] = depth
        symbol -= of_depth[depth]
    following = np.zeros(most + 1, np.int64)
    for depth in range(1, most + 1):
        begun = (begun + first) << 1
        following[depth], first = begun, of_depth[depth]
    for symbol in range(len(count)):
        depth = bits[symbol]
        if depth:
            number, turned = following[depth], 0
            following[depth] += 1
            for _ in range(depth):
                turned, number = turned << 1 | number & 1, number >> 1
            code[symbol] = turned | depth << 48


@kernel
def _count_depths(weight_M: I64, most: np.int64) -> I64:
    """How many leaves of the Huffman tree of these ascending weights lie how deep, none deeper than
    `most`: what is deeper moves up there, and leaves of less depth move down until all have room.
    """
    leaves = len(weight_M)
    weight, parent = np.zeros(2 * leaves, np.int64), np.zeros(2 * leaves, np.int64)
    for leaf in range(leaves):
        weight[leaf] = weight_M[leaf]
    leaf, inner = 0, leaves
    for node in range(leaves, 2 * leaves - 1):
        for _ in range(2):
            if leaf < leaves and (inner >= node or weight[leaf] <= weight[inner]):
                child, leaf = leaf, leaf + 1
            else:
                child, inner = inner, inner + 1
            weight[node] += weight[child]
            parent[child] = node
    depth, of_depth, room = np.zeros(2 * leaves, np.int64), np.zeros(most + 1, np.int64), 1 << most
    for node in range(2 * leaves - 3, -1, -1):
        depth[node] = depth[parent[node]] + 1
        if node < leaves:
            here = min(depth[node], most)
            of_depth[here] += 1
            room -= 1 << (most - here)
    while room < 0:
        here = most - 1
        while of_depth[here] == 0:
            here -= 1
        of_depth[most] -= 1
        of_depth[here] -= 1
        of_depth[here + 1] += 2
        room += 1
    return of_depth


_State = tuple[np.uint64, np.int64, np.int64]
"""Bits that wait, how many, and words of the stream that are written."""


@kernel
def _put(state: _State, code: Any) -> _State:
    """Have the bits of a code wait."""
    waiting, held, place = state
    bits = np.int64(code >> np.uint64(48))
    return waiting | (code & _CODE) << np.uint64(held), held + bits, place


@kernel
def _flush(out: U32, state: _State) -> _State:
    """Write the first 32 bits that wait, if there are as many; without a jump."""
    waiting, held, place = state
    out[np.uint64(place)] = np.uint32(waiting)
    return waiting >> np.uint64(held & 32), held & 31, place + (held >> 5)


@kernel
def _join(code: Any, following: Any) -> Any:
    """Two codes as one, of 48 bits at most."""
    shift = code >> np.uint64(48)
    return code + (following & ~_CODE) | (following & _CODE) << shift


@kernel
def _write_words(word_N: U32, repeats: I32, code: U64, out: U32, state: _State) -> _State:
    """Write literal words and repeats in turn, then the literal words behind the last repeat."""
    two_zeros = _join(code[0], code[0])
    small = two_zeros >> np.uint64(48) <= np.uint64(4)
    high = np.empty(256, np.uint64)
    for byte in range(256):
        high[byte] = _join(code[byte], two_zeros)
    i = 0
    for row in range(len(repeats) + 1):
        is_last = row == len(repeats)
        stop = len(word_N) if is_last else i + repeats[row, 0]
        for word in word_N[i:stop]:
            state = _put(state, code[word & np.uint32(255)])
            if small and word < np.uint32(1 << 16):
                state = _put(state, high[word >> np.uint32(8)])
            else:
                state = _flush(out, _put(state, code[word >> np.uint32(8) & np.uint32(255)]))
                state = _put(state, code[word >> np.uint32(16) & np.uint32(255)])
                state = _put(state, code[word >> np.uint32(24)])
            state = _flush(out, state)
        if is_last:
            break
        i = stop + repeats[row, 1]
        left, back = 4 * np.int64(repeats[row, 1]), np.int64(repeats[row, 2])
        symbol = np.int64(_DISTANCE_SYMBOLS[back])
        distance = code[_LITERALS + symbol]
        if symbol >= 4:
            extra = (symbol >> 1) - 1
            distance = _join(distance, np.uint64((4 * back - 1) & ((1 << extra) - 1) | extra << 48))
        while left > 0:
            piece = _next_piece(left)
            left -= piece
            length = _LENGTH_SYMBOLS[piece]
            extra_bits = np.uint64(length >> 32 | (length >> 16 & 0xFFFF) << 48)
            state = _flush(out, _put(_put(state, code[length & 0xFFFF]), extra_bits))
            state = _flush(out, _put(state, distance))
    return state
