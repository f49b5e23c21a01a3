"""Compile the kernels before the tests start, as `make test` does: on a machine without them, each
of the processes that run tests would do so for itself, for a minute."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def compile_dedup() -> None:
    """The kernels of dedup, which take half of the time."""
    from dedup.find import warm_up

    warm_up()


def compile_screening() -> None:
    from pipeline.screening.detectors.titles import warm_up_titles
    from pipeline.screening.fingerprints.find import warm_up_fingerprints
    from pipeline.screening.fingerprints.literals import warm_up_literals

    warm_up_literals()
    warm_up_titles()
    warm_up_fingerprints()


def compile_filters() -> None:
    """And those of cleaning."""
    from pipeline.cleaning import clean_array, short_mask
    from pipeline.filters.rules import warm_up_filters

    short_mask(clean_array(["schÃ¶n"]), 200)
    warm_up_filters()


def compile_shards() -> None:
    """The compressor of shards; and what packing copies rows with."""
    import numpy as np
    import pyarrow as pa

    from pipeline.hdf5.chunks import sample_shard
    from pipeline.hdf5.packing import take_rows

    sample_shard(np.zeros((1, 3, 16), np.int32))
    lists = pa.chunked_array([pa.array([[1, 2], [3]], pa.large_list(pa.uint16()))])
    take_rows(lists, np.array([1, 0]))


PARTS = (compile_dedup, compile_screening, compile_filters, compile_shards)
"""Longest first."""


if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for compiled in [pool.submit(compile_part) for compile_part in PARTS]:
            compiled.result()
