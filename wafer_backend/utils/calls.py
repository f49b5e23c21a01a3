"""`call_once`: a function that runs at its first call only."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def call_once() -> Callable[[Callable[Inputs, Output]], Callable[Inputs, Output]]:
    """Decorate a function: later calls return what the first one did, whatever their arguments."""

    def decorate(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
        results: list[Output] = []

        @functools.wraps(function)
        def once(*args: Inputs.args, **kwargs: Inputs.kwargs) -> Output:
            if not results:
                results.append(function(*args, **kwargs))
            return results[0]

        return once

    return decorate
