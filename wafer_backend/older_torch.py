"""Calls that programs of earlier years make into torch and that today's torch has changed."""

import functools
from typing import Any

from torch.utils import _pytree


def accept_older_calls() -> None:
    """Let them work in this process; a second call does nothing.

    `dataclasses.replace` on the specs of torch's pytrees (torch 2.4: the field was
    `children_specs`).
    """
    current = _pytree.TreeSpec.__init__
    if getattr(current, "takes_fields", False):
        return

    @functools.wraps(current)
    def taking_fields(
        self: Any, type: Any, context: Any = None, children_specs: Any = None, **fields: Any
    ) -> None:
        children = fields.get("_children", []) if children_specs is None else children_specs
        current(self, type, fields.get("_context", context), children)

    taking_fields.takes_fields = True  # type: ignore[attr-defined]
    _pytree.TreeSpec.__init__ = taking_fields  # type: ignore[method-assign]
