"""The `sample` HDF5 layout, in one place.

One file: attribute `n_examples` = N; dataset `data`, int32 (N, 3, MSL), gzip + fletcher32, with the
channels [input_ids, attention_mask, labels]; the mask is the loss mask (1 = the label counts). Row
k of a split's stream is stream[k*MSL : k*MSL + MSL + 1]: ids = row[:-1], labels = row[1:], so
windows overlap by one token and every token but the first is a label exactly once. Pads hold the
EOS id and mask 0. Source: Model Zoo R2.0-R2.3 readers (semantics of 2.4+ that overwrite the last
token are never written).
"""

SAMPLE_FEATURES = ("input_ids", "attention_mask", "labels")
CHANNELS = len(SAMPLE_FEATURES)
DATASET = "data"
COUNT_ATTRIBUTE = "n_examples"
DATA_PARAMS = "data_params.json"
SHARD_SUFFIX = ".h5"
LINEAGE_SUFFIX = ".lineage.parquet"
MAX_CHUNK_BYTES = 1 << 20


def rows_per_chunk(max_sequence_length: int) -> int:
    """Rows in one HDF5 chunk: as many as fit in 1 MiB of int32, at least one.

    >>> rows_per_chunk(2048)
    42
    """
    return max(1, MAX_CHUNK_BYTES // (CHANNELS * max_sequence_length * 4))


def shard_name(index: int) -> str:
    """Zero-padded, so that readers that sort names as strings keep the order.

    >>> shard_name(7)
    'examples_000007.h5'
    """
    return f"examples_{index:06d}{SHARD_SUFFIX}"
