"""Compile kernels before the work begins, so that workers find them in the cache.

A new installation compiles once on each kind of machine, which takes seconds;
`dedup.compiled.first_use()` says whether that is still to come.
"""

from dataclasses import replace

import pyarrow as pa

from dedup.components import components, label_components
from dedup.eval_index import build_item_index
from dedup.find import find_duplicates
from dedup.lines import units_of
from dedup.minhash import sketch_documents
from dedup.overlap import find_overlaps
from dedup.presets import PRESETS, Preset, resolve_preset
from dedup.similarity import PairJaccard
from dedup.text import join_texts

_SENTENCE = "the first of a few short texts that share all of their words but not their marks"


def warm_up(
    preset: str | Preset | None = None, *, lines: bool = True, overlap: bool = True
) -> None:
    """Run each kernel once on a few words, as `preset` needs them, or for every preset and scheme.

    lines, overlap: also those of `dedup.lines` and `dedup.overlap`.
    """
    texts = join_texts(pa.array([_SENTENCE, f"{_SENTENCE}!", _SENTENCE.upper()], pa.large_string()))
    recipes = _every_recipe() if preset is None else [resolve_preset(preset)]
    for recipe in recipes:
        sketch_documents(texts, recipe)
        first, second, third = texts.offsets[:3].tolist()
        PairJaccard(recipe).of(texts.data, first, second, texts.data, second, third)
    for recipe in recipes if any(recipe.bands for recipe in recipes) else []:
        for verify in ("none", "exact"):
            find_duplicates(texts, preset=recipe, verify=verify)
        signatures = sketch_documents(texts, recipe).signatures
        components(label_components(signatures, recipe.bands, recipe.rows))
    if lines:
        units_of(texts)
    if overlap:
        index, _, _ = build_item_index(texts)
        find_overlaps(texts, index)


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
