"""Compile the kernels before the tests start, as `make test` does: on a machine without them, each
of the processes that run tests would do so for itself, for a minute."""

from pipeline.stories.kernels import EVERY_PART, compile_missing

if __name__ == "__main__":
    compile_missing(EVERY_PART, print)
