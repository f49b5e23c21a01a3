"""Classes that were made from a class."""

from collections.abc import Callable


def retrieve_all_subclasses(
    kind: type, condition: Callable[[type], bool] | None = None
) -> list[type]:
    """Subclasses at every depth, each once, in the order of their making; those that `condition`
    takes.

    >>> [found.__name__ for found in retrieve_all_subclasses(int)][:1]
    ['bool']
    """
    found: dict[type, None] = {}
    child: type
    for child in kind.__subclasses__():
        found[child] = None
        found.update(dict.fromkeys(retrieve_all_subclasses(child)))
    return [child for child in found if condition is None or condition(child)]
