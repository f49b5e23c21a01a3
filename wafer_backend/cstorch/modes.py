"""Names of what a run does, as in `run.py --mode`."""

TRAIN = "train"
EVAL = "eval"
TRAIN_AND_EVAL = "train_and_eval"
EVAL_ALL = "eval_all"
INFERENCE = "inference"


def get_modes() -> tuple[str, ...]:
    """All of them."""
    return (TRAIN, EVAL, TRAIN_AND_EVAL, EVAL_ALL, INFERENCE)


def is_valid(mode: str) -> bool:
    """Whether it is one of them."""
    return mode in get_modes()
