"""Documents masked in the arrays of a shard; row count and order stay.

Where a label belongs to a document that is gone, the loss mask is 0 and the label the EOS id; where
an input belongs to it, the input is the EOS id. What stood there is in the array no more. In `vsl`
such columns then look like padding: span and position are 0. A corpus has ids only: readers that
cut it into rows train on runs of EOS there.
"""

from dedup.arrays import Array
from pipeline.hdf5.format import CORPUS, VSL, ShardLayout
from pipeline.takedown.places import ShardPlaces

INPUTS, MASK, LABELS, SPAN, POSITION = range(5)
"""Channels of a row (`pipeline.hdf5.format`)."""


def mask_shard(data: Array, layout: ShardLayout, places: ShardPlaces, eos_id: int) -> Array:
    """A copy of all of a shard, (N, 3 or 5, S) int32 or of a corpus (tokens,), without them."""
    out = data.copy()
    rows, columns = places.inputs.flat()
    if layout is CORPUS:
        out[columns] = eos_id
        return out
    out[rows, INPUTS, columns] = eos_id
    rows, columns = places.labels.flat()
    out[rows, MASK, columns] = 0
    out[rows, LABELS, columns] = eos_id
    if layout is VSL:
        out[rows, SPAN, columns] = 0
        out[rows, POSITION, columns] = 0
    return out


def count_left_over(data: Array, layout: ShardLayout, places: ShardPlaces, eos_id: int) -> int:
    """Places that still hold a token or count in the loss; 0 in what `mask_shard` gave."""
    rows, columns = places.inputs.flat()
    if layout is CORPUS:
        return int((data[columns] != eos_id).sum())
    left = int((data[rows, INPUTS, columns] != eos_id).sum())
    rows, columns = places.labels.flat()
    unmasked = (data[rows, MASK, columns] != 0) | (data[rows, LABELS, columns] != eos_id)
    return left + int(unmasked.sum())
