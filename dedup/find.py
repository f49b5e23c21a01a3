"""The whole library in one process: find duplicates in memory, for sets that fit; and compile all
kernels before the work begins, so that workers find them in the cache.

A new installation compiles once on each kind of machine, which takes seconds;
`dedup.compiled.first_use()` says whether that is still to come.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa

from dedup.arrays import I64, U8, U32
from dedup.clusters import (
    KEPT,
    Memberships,
    Rules,
    Selection,
    collapse,
    group_memberships,
    select_representatives,
)
from dedup.components import (
    CandidateComponents,
    components,
    flatten_labels,
    label_components,
    new_parents,
    unite,
)
from dedup.containment import choose_containers, sample_shingles
from dedup.eval_index import build_item_index
from dedup.join import buckets
from dedup.lines import units_of
from dedup.lsh import band_digests, sort_run
from dedup.matches import MovedWindows, chain_matches, verify_matches
from dedup.minhash import Sketches, sketch_documents
from dedup.overlap import find_overlaps
from dedup.presets import PRESETS, Preset, Verify, check_choice, resolve_preset
from dedup.similarity import PairJaccard
from dedup.substrings import (
    LEAST_BYTES,
    find_seeds,
    first_of_groups,
    group_windows,
    hash_candidates,
    is_among,
)
from dedup.text import Texts, join_texts

_SENTENCE = "the first of a few short texts that share all of their words but not their marks"
SCHEMA = pa.schema([("row", pa.int64()), ("representative", pa.int64()), ("jaccard", pa.float64())])


def find_duplicates(
    texts: pa.Array | pa.ChunkedArray | Sequence[str],
    *,
    preset: str | Preset = "slimpajama",
    verify: Verify = "exact",
    threshold: float = 0.8,
) -> pa.Table:
    """Return one line per row of `texts` to drop: `row`, the `representative` that stays (int64 row
    indices), and `jaccard`: the exact similarity, the estimate, or null.

    Rows are visited in order; one is dropped if and only if an earlier row that stays is a verified
    duplicate of it, and the earliest such stands for it. With verify "none" whole components of
    candidates collapse onto their first row, as in SlimPajama. Rows without a shingle always stay.
    Raises ValueError for an unknown preset or verification, or a threshold outside (0, 1].

    >>> text = "a sentence that is long enough to be shingled"
    >>> find_duplicates([text, "something quite different here", text + "!"]).to_pylist()
    [{'row': 2, 'representative': 0, 'jaccard': 1.0}]
    """
    recipe = resolve_preset(preset)
    check_choice("verify", verify, ("none", "estimate", "exact"))
    if not 0 < threshold <= 1:
        raise ValueError(f"threshold is {threshold}; it must be above 0 and at most 1")
    documents = join_texts(texts)
    sketches = sketch_documents(documents, recipe)
    member, bucket, channel = _memberships(sketches, recipe, verify)
    count = len(sketches.shingles)
    memberships = group_memberships(member, bucket, channel, count)
    if verify == "none":
        parents = new_parents(count)
        unite(parents, member, bucket.astype(np.uint32))
        selection = collapse(memberships, flatten_labels(parents).astype(np.int64))
        similarity = np.full(count, np.nan)
    else:
        selection = _select(documents, sketches, memberships, recipe, verify, threshold)
        similarity = selection.exact if verify == "exact" else selection.estimate
    rows = np.flatnonzero(selection.representative != KEPT)
    columns = (rows, selection.representative[rows], pa.array(similarity[rows], from_pandas=True))
    return pa.table([pa.array(column) for column in columns], schema=SCHEMA)


def _memberships(sketches: Sketches, recipe: Preset, verify: Verify) -> tuple[U32, I64, U8]:
    """Buckets of every band, and behind them those of documents with the same normalised text."""
    rows = np.flatnonzero(sketches.shingles > 0).astype(np.uint32)
    digests = list(band_digests(sketches.signatures[rows], recipe.bands, recipe.rows))
    if verify != "none":
        digests.append(sketches.text_digest[rows])
    members, numbers, channels, first = [], [], [], 0
    for channel, column in enumerate(digests):
        ordered, owners = sort_run(column, rows)
        member, bucket = buckets([ordered], [owners])
        members.append(member)
        numbers.append(bucket.astype(np.int64) + first)
        channels.append(np.full(len(member), channel, np.uint8))
        first += int(bucket.max()) + 1 if len(bucket) else 0
    return np.concatenate(members), np.concatenate(numbers), np.concatenate(channels)


def _select(
    documents: Texts,
    sketches: Sketches,
    memberships: Memberships,
    recipe: Preset,
    verify: Verify,
    threshold: float,
) -> Selection:
    pair = PairJaccard(recipe)
    data, offsets = documents.data, documents.offsets

    def exact(a: int, b: int) -> float:
        return pair.of(data, offsets[a], offsets[a + 1], data, offsets[b], offsets[b + 1])

    rules = Rules(verify, threshold, recipe.num_perm, same=1 << recipe.bands)
    return select_representatives(memberships, sketches.signatures, rules, exact)


def warm_up(
    preset: str | Preset | None = None,
    *,
    lines: bool = True,
    overlap: bool = True,
    containment: bool = True,
) -> None:
    """Run each kernel once on a few words, as `preset` needs them, or for every preset and scheme.

    lines, overlap, containment: also those of `dedup.lines` and `dedup.substrings`, of
    `dedup.overlap`, and of `dedup.containment`.
    """
    texts = join_texts(pa.array([_SENTENCE, f"{_SENTENCE}!", _SENTENCE.upper()], pa.large_string()))
    recipes = _every_recipe() if preset is None else [resolve_preset(preset)]
    for recipe in recipes:
        sketch_documents(texts, recipe)
        first, second, third = texts.offsets[:3].tolist()
        pairs = PairJaccard(recipe)
        pairs.of(texts.data, first, second, texts.data, second, third)
        pairs.group_hashes(texts, np.empty(3, np.int64))  # as of texts of megabytes
    for recipe in recipes if any(recipe.bands for recipe in recipes) else []:
        for verify in ("none", "exact"):
            find_duplicates(texts, preset=recipe, verify=verify)
        signatures = sketch_documents(texts, recipe).signatures
        components(label_components(signatures, recipe.bands, recipe.rows))
        members_M = _as_read(np.arange(len(texts), dtype=np.uint32))
        found = CandidateComponents(len(texts), [members_M], lambda m: np.zeros((2, m), np.uint32))
        found.unite(members_M, _as_read(np.zeros(len(texts), np.uint32)))
        found.deal(len(texts))
        found.look_up(0, len(texts))
        if containment:
            sample_shingles(texts, recipe)
            one, whole = members_M[:1], np.full(1, len(_SENTENCE), np.uint32)
            choose_containers(one, whole, members_M[1:2], np.ones(1), first_new=0)
    if lines:
        units_of(texts)
        seeds = find_seeds(texts, LEAST_BYTES)
        is_shared = is_among(seeds.digest, seeds.digest)
        group_windows(texts, *hash_candidates(texts, seeds, is_shared, LEAST_BYTES))
        one = np.zeros(1, np.uint32)
        first_of_groups(one, np.zeros((1, 2), np.uint64))
        read = _as_read(one.copy())
        matches = chain_matches(0, 1, 1, MovedWindows(one, one, one), (read, read, read))
        verify_matches(texts.data, matches.start, matches.end, texts.data, matches.first, 1)
    if overlap:
        index, _, _ = build_item_index(texts)
        find_overlaps(texts, index)


def _as_read(array: U32) -> U32:
    """As what tasks read from files: for numba an array that is not written is of another type."""
    array.setflags(write=False)
    return array


def _every_recipe() -> list[Preset]:
    """The presets, and a recipe for every kernel that none of them uses."""
    words = Preset(name="words", unit="word", size=2, bands=1, rows=1)
    return [
        *PRESETS.values(),
        replace(words, hash="sha1"),
        replace(words, scheme="fss"),
        replace(words, scheme="affine64", hash="poly64_full"),
        replace(words, scheme="affine64", hash="sha1"),
    ]
