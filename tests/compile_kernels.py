"""Compile the kernels before the tests start, as `make test` does: on a machine without them, each
of the processes that run tests would do so for itself, for a minute."""

import multiprocessing
from concurrent.futures import ProcessPoolExecutor


def compile_dedup() -> None:
    """The kernels of dedup, which take half of the time."""
    from dedup.find import warm_up

    warm_up()


def compile_pipeline() -> None:
    """Those of cleaning, filters and screening."""
    from pipeline.cleaning import clean_array, short_mask
    from pipeline.filters.rules import warm_up_filters
    from pipeline.screening.detectors.titles import warm_up_titles
    from pipeline.screening.fingerprints.find import warm_up_fingerprints
    from pipeline.screening.fingerprints.literals import warm_up_literals

    short_mask(clean_array(["schÃ¶n"]), 200)
    warm_up_filters()
    warm_up_literals()
    warm_up_titles()
    warm_up_fingerprints()


if __name__ == "__main__":
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for compiled in [pool.submit(compile_dedup), pool.submit(compile_pipeline)]:
            compiled.result()
