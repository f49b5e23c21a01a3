"""Signatures are datasketch's, bit for bit: every scheme and hash, any text, any split."""

import hashlib
import json
import re
import string
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from datasketch.hashfunc import sha1_hash32, sha1_hash64
from hypothesis import example, given, settings
from hypothesis import strategies as st

import dedup
from dedup.minhash import _sketch
from dedup.presets import BASE, PRESETS, Preset, normalize, resolve_preset
from dedup.sketches import PADDING, permutations
from pipeline.core import zstd
from tests.forked import forked

KINDS = [
    ("affine32", "poly64"),
    ("affine32", "sha1"),
    ("legacy", "poly64"),
    ("legacy", "sha1"),
    ("affine64", "poly64"),
    ("affine64", "sha1"),
    ("affine64", "poly64_full"),
    ("affine64", "sha1_full"),
]
every_kind = pytest.mark.parametrize(("scheme", "hash"), KINDS)
WORDS = Preset(name="words", unit="word", size=3, bands=1, rows=1)
LONG = Preset(name="long", unit="char", size=40, bands=1, rows=1)
"""Shingles of up to 160 bytes: several blocks of SHA-1."""

ODD = "İΣςσΆßẞﬁǅK𐐀𐐨😀東é́\x00\ufeff\u200d\U0010ffff"
SPACES = " \t\n\r\x0b\x0c\x1c\x1d\x1e\x1f\x85\xa0\u1680\u2003\u2028\u3000"
letters = st.one_of(
    st.sampled_from("abcde ABCDE"),
    st.sampled_from(ODD + SPACES + "'-.,!_"),
    st.characters(exclude_categories=["Cs"]),
)
documents = st.lists(st.text(letters, max_size=90), max_size=5)
DELETE = str.maketrans("", "", string.punctuation)


def recipe(preset: str | Preset, scheme: str, hash: str, num_perm: int, seed: int) -> Preset:
    values: dict[str, Any] = {"scheme": scheme, "hash": hash, "num_perm": num_perm, "seed": seed}
    return replace(resolve_preset(preset), bands=1, rows=1, **values)


def by_datasketch(text: str, preset: Preset) -> list[int]:
    """One row, one `update` per shingle."""
    minhash = MinHash(
        preset.num_perm, seed=preset.seed, scheme=preset.scheme,
        hashfunc=lambda shingle: dedup.shingle_hash(shingle, preset.hash),
    )  # fmt: skip
    for shingle in dedup.shingles(text, preset):
        minhash.update(shingle)
    values: list[int] = minhash.hashvalues.tolist()
    return values


def plain_ngrams(document: str) -> list[str]:
    """SlimPajama's own lines, with multiplicity."""
    clean = re.sub(r"\s+", " ", document.lower().translate(DELETE).strip())
    return [clean[i : i + 13] for i in range(len(clean) - 12)]


@given(st.text(letters, max_size=150))
def test_shingles(text: str) -> None:
    assert [s.decode() for s in dedup.shingles(text)] == plain_ngrams(text)
    words = normalize(text).split(" ") if normalize(text) else []
    grams = [" ".join(words[i : i + 3]) for i in range(len(words) - 2)]
    assert [s.decode() for s in dedup.shingles(text, WORDS)] == grams


@given(st.text(letters, max_size=40))
def test_shingle_hash(text: str) -> None:
    shingle = text.encode()
    assert dedup.shingle_hash(shingle, "sha1") == sha1_hash32(shingle)
    assert dedup.shingle_hash(shingle, "sha1_full") == sha1_hash64(shingle)
    value = sum((ord(c) + 1) * BASE**i for i, c in enumerate(reversed(text))) % 2**64
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value = (value ^ value >> 33) * multiplier % 2**64
    value ^= value >> 33
    assert dedup.shingle_hash(shingle, "poly64_full") == value
    assert dedup.shingle_hash(shingle) == value >> 32


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_permutations_are_those_of_datasketch(num_perm: int, seed: int) -> None:
    for scheme in ("affine32", "affine64", "legacy"):
        known = MinHash(num_perm, seed=seed, scheme=scheme).permutations
        found = permutations(scheme, num_perm, seed)
        for own, theirs in zip(found, known, strict=True):
            assert own.dtype == theirs.dtype and len(own) % PADDING == 0
            assert own[:num_perm].tolist() == theirs.tolist() and not own[num_perm:].any()


@every_kind
@settings(max_examples=25)
@given(
    documents, st.sampled_from(["slimpajama", WORDS, LONG]),
    st.sampled_from([1, 2, 15, 16, 17, 33, 128]), st.integers(0, 2**32 - 1),
)  # fmt: skip
@example(["İ" * 20, "ΑΣ " * 9, "", " .", "x" * 12, "x" * 13], "slimpajama", 16, 1)
def test_rows_are_those_of_datasketch(
    scheme: str, hash: str, texts: list[str], preset: str | Preset, num_perm: int, seed: int
) -> None:
    exact = recipe(preset, scheme, hash, num_perm, seed)
    found = dedup.signatures(
        texts, preset=preset, scheme=scheme, hash=hash, num_perm=num_perm, seed=seed
    )
    assert found.dtype == (np.uint64 if scheme == "affine64" else np.uint32)
    assert found.shape == (len(texts), num_perm)
    assert found.tolist() == [by_datasketch(text, exact) for text in texts]
    assert (dedup.signatures(texts, preset=exact) == found).all()


@settings(max_examples=40)
@given(documents, st.sampled_from([*KINDS, ("fss", "poly64")]), st.data())
def test_any_split(texts: list[str], kind: tuple[str, str], data: st.DataObject) -> None:
    """Lists, arrays, slices, chunks, calls of any size and batches of any size: the same rows."""
    preset = data.draw(st.sampled_from([PRESETS["slimpajama"], WORDS]))
    exact = recipe(preset, *kind, num_perm=32, seed=1)
    whole = dedup.sketch_documents(texts, exact)
    cut = data.draw(st.integers(0, len(texts)))
    array = pa.array(texts, pa.large_string())
    halves = [dedup.sketch_documents(part, exact) for part in (array[:cut], texts[cut:])]
    chunked = dedup.sketch_documents(pa.chunked_array([array[:cut], array[cut:]]), exact)
    small = _sketch(array, exact, with_digest=True, capacity=data.draw(st.integers(1, 100)))
    for field in ("signatures", "shingles", "text_digest"):
        expected = getattr(whole, field).tolist()
        assert [row for half in halves for row in getattr(half, field).tolist()] == expected
        assert getattr(chunked, field).tolist() == expected
        assert getattr(small, field).tolist() == expected
    assert whole.shingles.tolist() == [len(dedup.shingles(text, exact)) for text in texts]


@pytest.mark.parametrize("end", ["", " plus ΑΣ", " ΑΣ plus"])
@pytest.mark.parametrize("preset", [PRESETS["slimpajama"], PRESETS["slimpajama_exact"], WORDS])
def test_document_longer_than_a_batch(preset: Preset, end: str) -> None:
    """200,000 characters with 20,000 different shingles; `end` sends it through Python."""
    words = [
        f"{hashlib.sha1(bytes([i % 251, i // 251])).hexdigest()[: 3 + i % 7]}" for i in range(3000)
    ]
    text = " ".join(words * 10) + end
    minhash = MinHash(
        128, scheme=preset.scheme, hashfunc=lambda s: dedup.shingle_hash(s, preset.hash)
    )
    shingles = dedup.shingles(text, preset)
    minhash.update_batch(set(shingles))
    found = dedup.sketch_documents(["first " * 9, text, "last " * 9], preset)
    assert found.signatures[1].tolist() == minhash.hashvalues.tolist()
    assert found.shingles[1] == len(shingles)
    alone = dedup.sketch_documents([normalize(text)], preset)
    assert found.text_digest[1] == alone.text_digest[0]


@pytest.mark.parametrize("preset", ["slimpajama", "slimpajama_exact", WORDS])
def test_memory_does_not_grow_with_the_text(preset: str | Preset) -> None:
    """In a fork, as other threads of the tests allocate, too."""

    def measure() -> None:
        words = np.random.default_rng(3).integers(0, 10**6, 300_000).tolist()
        peaks = []
        for count in (30_000, 30_000, 300_000):
            array = pa.array([" ".join(map(str, words[:count]))], pa.large_string())
            tracemalloc.start()
            dedup.sketch_documents(array, preset)
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
        assert peaks[2] < peaks[1] + 100_000 and peaks[2] < 6_000_000

    assert forked(measure) == 0


def test_words_are_parted_by_white_space_alone() -> None:
    assert dedup.shingles("東京都は日本の首都です。大阪は違います。京都も違います。", WORDS) == []
    assert dedup.shingles("東京都は 日本の 首都です。", WORDS) != []


def test_word_longer_than_a_batch() -> None:
    text = "one two " + "endless" * 30_000 + " four five"
    expected = by_datasketch(text, recipe(WORDS, "affine32", "sha1", 16, 1))
    found = dedup.signatures([text], preset=WORDS, hash="sha1", num_perm=16)
    assert found[0].tolist() == expected


def test_texts_without_a_shingle() -> None:
    """All ones, like datasketch's empty sketch; never counted as sharing a shingle."""
    for scheme, hash in [*KINDS, ("fss", "poly64")]:
        found = dedup.signatures(["", "twelve chars", "...", "İ"], scheme=scheme, hash=hash)
        assert (found == np.iinfo(found.dtype).max).all()
    sketches = dedup.sketch_documents(["", " ..", "twelve chars", "thirteen char"], "slimpajama")
    assert sketches.shingles.tolist() == [0, 0, 0, 1]
    assert dedup.signatures([]).shape == (0, 128)
    assert dedup.signatures(pa.chunked_array([], pa.string()), num_perm=5).shape == (0, 5)


def test_defaults() -> None:
    texts = ["a text that is long enough for shingles"]
    named = dedup.signatures(
        texts, preset="slimpajama", num_perm=128, scheme="affine32", hash="poly64", seed=1
    )
    assert named.dtype == np.uint32 and (dedup.signatures(texts) == named).all()
    exact = by_datasketch(texts[0], PRESETS["slimpajama_exact"])
    assert dedup.signatures(texts, preset="slimpajama_exact")[0].tolist() == exact


def test_slimpajama_exact_is_the_original_script() -> None:
    """`to_hash.py`: one update per n-gram with multiplicity, datasketch 1 defaults."""
    text = "The same words, again and again; Ärger über Größe. " * 12
    minhash = MinHash(num_perm=128, seed=1, hashfunc=sha1_hash32, scheme="legacy")
    for ngram in plain_ngrams(text):
        minhash.update(ngram.encode("utf8"))
    found = dedup.signatures([text], preset="slimpajama_exact")
    assert found[0].tolist() == minhash.hashvalues.tolist()


def test_digests_are_64_bits_without_a_secret() -> None:
    found = dedup.sketch_documents(["The quick brown fox"], "slimpajama").text_digest
    assert (found.dtype, found.tolist()) == (np.uint64, [16948903719672169054])


@given(st.lists(st.text(letters, max_size=60), min_size=1, max_size=20))
def test_text_digest(texts: list[str]) -> None:
    """Equal exactly where the normalised text is, also for those that go through Python."""
    normal = [normalize(text) for text in texts]
    found = dedup.sketch_documents(texts, "slimpajama").text_digest.tolist()
    assert found == dedup.sketch_documents(normal, "slimpajama").text_digest.tolist()
    assert len(set(found)) == len(set(normal))


def test_text_digest_sees_every_place() -> None:
    """Each prefix, each change of one letter and each rotation is another text."""
    text = "abcdefghijklmnopqrstuvwxyz0123456789" * 3
    variants = [text[:i] for i in range(1, len(text))]
    variants += [text[:i] + "東" + text[i + 1 :] for i in range(len(text))]
    variants += [text[i:] + text[:i] for i in range(36)] + ["\x00" * i for i in range(1, 40)]
    found = dedup.sketch_documents(variants, "slimpajama").text_digest
    assert len(set(found.tolist())) == len(set(variants))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"preset": "slimpyjama"}, "unknown preset 'slimpyjama'; did you mean 'slimpajama'"),
        ({"scheme": "affine"}, "unknown scheme 'affine'; did you mean 'affine"),
        ({"hash": "md5"}, "unknown hash 'md5'; use one of poly64, sha1"),
        ({"hash": "sha1_full"}, "has 64 bits and needs scheme 'affine64'"),
        ({"num_perm": 0}, "num_perm is 0; it must be positive"),
        ({"seed": -1}, "seed is -1; it must be from 0"),
        ({"scheme": "fss", "hash": "sha1"}, "scheme 'fss' needs hash 'poly64'"),
        ({"scheme": "fss", "num_perm": 100}, "num_perm is 100; scheme 'fss' needs a power of two"),
    ],
)
def test_wrong_arguments(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dedup.signatures(["text"], **values)
    with pytest.raises(ValueError, match="unknown hash 'poly'"):
        dedup.shingle_hash(b"text", "poly")


def base_hashes(text: str) -> dict[str, list[int]]:
    """Hashes of the different shingles, from hashlib and from the code points, without kernels."""
    shingles = set(dedup.shingles(text))
    digests = np.frombuffer(b"".join(hashlib.sha1(s).digest()[:8] for s in shingles), "<u8")
    points = np.array([ord(c) + 1 for c in normalize(text)], np.uint64)
    values = np.zeros(max(len(points) - 12, 0), np.uint64)
    for i in range(13):
        values = values * np.uint64(BASE) + points[i : i + len(values)]
    for multiplier in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        values = (values ^ (values >> np.uint64(33))) * np.uint64(multiplier)
    values = np.unique(values ^ (values >> np.uint64(33)))
    found = {
        "sha1": digests & np.uint64(0xFFFFFFFF), "sha1_full": digests,
        "poly64": values >> np.uint64(32), "poly64_full": values,
    }  # fmt: skip
    return {hash: listed.tolist() for hash, listed in found.items()}


def check_against_datasketch(texts: list[str]) -> None:
    """Every scheme and hash; datasketch gets the hashes of the shingles, some at a time."""
    found = {kind: dedup.signatures(texts, scheme=kind[0], hash=kind[1]) for kind in KINDS}
    for row, text in enumerate(texts):
        hashes = base_hashes(text)
        for scheme, hash in KINDS:
            minhash = MinHash(128, scheme=scheme, hashfunc=int)
            for start in range(0, len(hashes[hash]), 512):
                minhash.update_batch(hashes[hash][start : start + 512])
            assert (found[scheme, hash][row] == minhash.hashvalues).all(), (row, scheme, hash)


def texts_of_shard(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    for line in (zstd.decompress(data) if path.suffix == ".zst" else data).splitlines():
        text = json.loads(line).get("text")
        if isinstance(text, str) and not re.search("[\ud800-\udfff]", text):
            yield text


@pytest.mark.shared_data
def test_reference_corpora_quick(shared_data: Path) -> None:
    texts = list(texts_of_shard(shared_data / "near_dups/docs.jsonl.zst"))[:60]
    texts += [t for t in texts_of_shard(shared_data / "pile_sample/03.jsonl.zst") if len(t) < 3000][
        :60
    ]
    texts += list(texts_of_shard(shared_data / "mojibake/cases.jsonl"))[::12]
    check_against_datasketch(texts)


@pytest.mark.slow
@pytest.mark.shared_data
def test_reference_corpora(shared_data: Path) -> None:
    """Every text of every JSONL file but the hostile ones."""
    shards = [p for p in sorted(shared_data.rglob("*.jsonl*")) if p.parent.name != "hostile"]
    assert sum(1 for shard in shards for _ in texts_of_shard(shard)) > 35_000
    for shard in shards:
        check_against_datasketch(list(texts_of_shard(shard)))
