"""The three HDF5 layouts, in one place; docs/hdf5.md tells the same with pictures.

Every file: attribute `n_examples` = length of the first axis; one dataset `data`. A stream is the
kept documents of a split one after the other, each followed by one EOS. Pads hold the EOS id. S is
the maximum sequence length (MSL).

`sample`: int32 (N, 3, S), channels SAMPLE_FEATURES; the mask is the loss mask (1 = the label
counts). Row k of the stream is stream[k*S : k*S + S + 1]: ids = row[:-1], labels = row[1:], so
windows overlap by one token and every token but the first is a label exactly once. Pads have mask
0; a split has at most one padded row.

`vsl`: int32 (N, 5, S), channels VSL_FEATURES. A row is segments side by side, then pads. A segment
is n + 1 consecutive tokens of ONE document, 1 <= n <= S, and fills n columns:
    input_ids       segment[:-1]            so an EOS is never an input
    attention_mask  1, n times
    labels          segment[1:]             the last segment of a document ends with the label EOS
    attention_span  n-1, n-2, ... 0         inputs after this one that belong to the segment
    position_ids    0, 1, ... n-1
A document of T tokens, its EOS included, with T > S + 1 is folded: pieces start at tokens 0, S,
2S, ... and overlap by one token, so it has T - 1 labels however it is folded, and the mask of a
split sums to T - documents. A document of 1 token (nothing but EOS) has no segment. Pads have 0 in
mask, span and position, the EOS id in ids and labels.

`corpus`: uint16 or uint32 (tokens,), the stream itself cut anywhere. Readers choose S: row k is the
k-th window of `sample`, and what is left after the last whole window is not read.

Sources: Model Zoo R2.0-R2.3: `LMDataPreprocessor`, `VSLLMDataPreprocessor` with
`create_features_auto_lm_vsl`, and `H5Reader` of h5_map_dataset for the corpus. The semantics of
2.4+, which overwrite the last token of a window or let VSL labels cross documents, are never
written.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

FormatName = Literal["sample", "vsl", "corpus"]
Compression = Literal["gzip", "gzip-shuffle", "none"]
"""How a chunk is stored. All carry a fletcher32 checksum; docs/hdf5.md measures them."""

SAMPLE_FEATURES = ("input_ids", "attention_mask", "labels")
VSL_FEATURES = (*SAMPLE_FEATURES, "attention_span", "position_ids")
CHANNELS = len(SAMPLE_FEATURES)
DATASET = "data"
COUNT_ATTRIBUTE = "n_examples"
DATA_PARAMS = "data_params.json"
SHARD_SUFFIX = ".h5"
LINEAGE_SUFFIX = ".lineage.parquet"
CORPUS_CHUNK_TOKENS = 8192
"""Tokens in one chunk of a corpus: a window of 2,048 touches one or two."""
_MOST_CHUNK_ROWS = 3
_MOST_CHUNK_TOKENS = 6144


@dataclass(frozen=True)
class ShardLayout:
    """A layout: its name, the channels on axis 1 of `data` (none: `data` is flat), its dtypes."""

    name: FormatName
    features: tuple[str, ...]
    dtypes: tuple[str, ...] = ("<i4",)

    @property
    def channels(self) -> int:
        """Length of axis 1; 0 for the flat corpus."""
        return len(self.features)


SAMPLE = ShardLayout("sample", SAMPLE_FEATURES)
VSL = ShardLayout("vsl", VSL_FEATURES)
CORPUS = ShardLayout("corpus", (), ("<u2", "<u4"))
LAYOUTS: dict[FormatName, ShardLayout] = {layout.name: layout for layout in (SAMPLE, VSL, CORPUS)}


def find_layout(shape: Sequence[int], dtype: str) -> ShardLayout:
    """The layout of `data` with this shape and numpy dtype string.

    Raises ValueError when it is none of the three.

    >>> find_layout((8, 5, 2048), "<i4").name, find_layout((10**6,), "<u2").name
    ('vsl', 'corpus')
    """
    channels = shape[1] if len(shape) == 3 else 0
    for layout in LAYOUTS.values():
        if len(shape) in (1, 3) and layout.channels == channels and dtype in layout.dtypes:
            return layout
    raise ValueError(
        f"{dtype} {tuple(shape)} is neither sample (N, 3, MSL) or vsl (N, 5, MSL) of int32 nor a "
        "corpus (tokens,) of uint16 or uint32"
    )


def rows_per_chunk(max_sequence_length: int) -> int:
    """Rows in one HDF5 chunk of `sample` or `vsl`.

    A longer chunk costs less per row when all are written or read, and more when a single row is
    read: three rows still beat one row per chunk at that (measured: docs/hdf5.md).

    >>> [rows_per_chunk(length) for length in (128, 2048, 3072, 4096, 32768)]
    [3, 3, 2, 1, 1]
    """
    return max(1, min(_MOST_CHUNK_ROWS, _MOST_CHUNK_TOKENS // max_sequence_length))


def chunk_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The chunk of a shard with this shape, which must be of one of the layouts and not empty."""
    if len(shape) == 1:
        return (min(shape[0], CORPUS_CHUNK_TOKENS),)
    return (min(shape[0], rows_per_chunk(shape[2])), *shape[1:])


def shard_name(index: int) -> str:
    """Zero-padded, so that readers that sort names as strings keep the order.

    >>> shard_name(7)
    'examples_000007.h5'
    """
    return f"examples_{index:06d}{SHARD_SUFFIX}"
