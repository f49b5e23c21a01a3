"""`python -m wafer_backend.launch SCRIPT [ARGUMENT ...]`: run a program written for cstorch as it
is, with the imports of `cerebras.pytorch` and `cerebras.appliance` coming from this package."""

import argparse
import functools
import os
import runpy
import sys
from collections.abc import Sequence
from typing import Any

from torch.utils import _pytree

from wafer_backend.backends import csx
from wafer_backend.cstorch.aliases import install_aliases
from wafer_backend.errors import BackendConfigError


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


EXAMPLES = """\
example:
  python -m wafer_backend.launch run.py CSX --mode train --params params.yaml --model_dir DIR
  PYTHONPATH=~/modelzoo/src python -m wafer_backend.launch -m cerebras.modelzoo.cli.main \\
      fit params.yaml --target_device CSX
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the module: runs the program in this process."""
    parser = argparse.ArgumentParser(
        prog="python -m wafer_backend.launch",
        description="Run a program written for cstorch, unchanged. Imports of cerebras.pytorch, "
        "cerebras_pytorch, cerebras.appliance and cerebras_appliance come from wafer_backend.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        usage="%(prog)s [-h] [--precision DTYPE] (SCRIPT | -m MODULE) [ARGUMENT ...]",
    )
    parser.add_argument("-m", dest="module", metavar="MODULE", help="run a module, as python -m")
    parser.add_argument(
        "--precision",
        choices=("float32", "float16", "bfloat16"),
        help="compute in it whatever the program asks for (backends.csx.emulation.precision); "
        "float32 is for comparing with plain PyTorch",
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="SCRIPT [ARGUMENT ...]")
    given = parser.parse_args(arguments)
    if given.module is None and not given.arguments:
        parser.error("give the file of a program, or -m and the name of a module")
    script = given.arguments[0] if given.module is None else None
    if script is not None and not os.path.isfile(script):
        parser.exit(2, f"error: {script}: there is no such file\n")
    try:
        install_aliases()
    except BackendConfigError as error:
        parser.exit(2, f"error: {error}\n")
    accept_older_calls()
    csx.emulation.precision = given.precision
    if script is None:
        sys.path.insert(0, os.getcwd())
        sys.argv = [given.module, *given.arguments]
        runpy.run_module(given.module, run_name="__main__", alter_sys=True)
        return
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    sys.argv = list(given.arguments)
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
