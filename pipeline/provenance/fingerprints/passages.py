"""Passages: stretches of a document whose grams a work holds, nearly on one diagonal.

A passage is a stretch in which no more than `gap` words in a row are without a matched gram.

Shapes: M matches, P passages, W words of a work.
"""

import numpy as np

from dedup.text import I64
from pipeline.provenance.fingerprints.compiled import kernel
from pipeline.provenance.fingerprints.growing import rows_for

PLACE, DIAGONAL, SIZE, IS_JOINED, ORDINAL = range(5)
"""Of a match, int64: first word of the gram in the document; place in the work minus that; words of
the gram; whether the gram looked up before it matched on the same diagonal; how many were looked up
before it."""
FIRST, STOP, HITS, MATCHED, GRAMS, LONGEST = range(6)
"""Of a passage, int64: its words [first, stop) of the document; different places of the work that
were matched; grams matched; grams looked up; words of the longest run of joined matches."""


@kernel
def passages_of(matches: I64, count: int, gap: int, stamp_W: I64, number: int) -> I64:
    """The passages of matches[:count], (P, 6), in order.

    stamp_W: the passage in which each place of the work was last matched; all of them below
    `number`, which is that of the first passage here.
    """
    found, used = np.empty((8, 6), np.int64), -1
    run_from = np.int64(0)
    for i in range(count):
        place, stop = matches[i, PLACE], matches[i, PLACE] + matches[i, SIZE]
        if used < 0 or place > found[used, STOP] + gap:
            used += 1
            found = rows_for(found, used, 1)
            found[used, FIRST], found[used, STOP] = place, stop
            found[used, HITS], found[used, MATCHED] = 0, 0
            found[used, GRAMS], found[used, LONGEST] = matches[i, ORDINAL], 0
            run_from = place
        elif not matches[i, IS_JOINED]:
            run_from = place
        passage = found[used]
        passage[STOP] = max(passage[STOP], stop)
        passage[MATCHED] += 1
        passage[LONGEST] = max(passage[LONGEST], stop - run_from)
        at = place + matches[i, DIAGONAL]
        if stamp_W[at] != number + used:
            stamp_W[at] = number + used
            passage[HITS] += 1
        if i + 1 == count or matches[i + 1, PLACE] > passage[STOP] + gap:
            passage[GRAMS] = matches[i, ORDINAL] - passage[GRAMS] + 1
    return found[: used + 1]
