"""Compiles the kernels of the fingerprints before the work begins, so that workers find them."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa

from dedup.compiled import first_use
from dedup.text import join_texts
from pipeline.provenance.fingerprints.build import EXCERPT, WHOLE_BOOK, build_index
from pipeline.provenance.fingerprints.find import find_passages
from pipeline.provenance.fingerprints.near import find_near
from pipeline.provenance.fingerprints.sketch import Sketch, sketch_text
from pipeline.provenance.fingerprints.words import words_of


def compile_first(say: Callable[[str], None]) -> None:
    """`warm_up`, and word of it, where nothing is compiled yet for this machine."""
    if first_use(Path(__file__).parent):
        say("compiling the kernels for fingerprints on this machine, once")
        warm_up()


def warm_up() -> None:
    """Run each kernel once, on a few hundred words."""
    words = " ".join(f"word{number}" for number in range(400))
    other = " ".join(f"other{number}" for number in range(400))
    salted = sketch_text(other, s=2, k=5, salt=b"warm")
    works: list[tuple[str, str, str | Sketch]] = [
        ("a", EXCERPT, words),
        ("b", WHOLE_BOOK, other),
        ("c", EXCERPT, salted),
    ]
    index = build_index(works, boilerplate=[words[:200]])
    texts = pa.array([words, other], pa.large_string())
    find_passages(texts, index)
    find_near(join_texts(texts), np.arange(2), words_of(join_texts(["word7 word8"])).hashes, 0)
