"""How whole documents become rows of at most S tokens: arrays in, arrays out (docs/packing.md).

`fold` cuts documents into segments of at most S labels, `first_fit` and `greedy` choose a row for
every segment, `place_segments` puts the segments of a row side by side, `fill_sample_rows`
and `fill_vsl_rows` make the channels that `pipeline.hdf5.format` describes.
"""

from pipeline.packing.rows import (
    PACKERS,
    Placement,
    Segments,
    empty_vsl_rows,
    fill_sample_rows,
    fill_vsl_rows,
    first_fit,
    fold,
    gather_segments,
    greedy,
    place_segments,
)

__all__ = [
    "PACKERS",
    "Placement",
    "Segments",
    "empty_vsl_rows",
    "fill_sample_rows",
    "fill_vsl_rows",
    "first_fit",
    "fold",
    "gather_segments",
    "greedy",
    "place_segments",
]
