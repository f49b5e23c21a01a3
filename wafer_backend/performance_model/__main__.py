"""`python -m wafer_backend.performance_model --validate [--plot FILE]`."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pipeline.core.storage import publish
from wafer_backend.performance_model.validation import (
    compare_table_4,
    compare_table_5,
    describe_validation,
    svg,
)

EXAMPLES = """\
examples:
  python -m wafer_backend.performance_model --validate
  python -m wafer_backend.performance_model --validate --plot scaling.svg
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Entry point of the module."""
    parser = argparse.ArgumentParser(
        prog="python -m wafer_backend.performance_model",
        description="Compare the performance model of CS-2 clusters with the tables of the paper.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--validate", action="store_true", required=True, help="print the comparison"
    )
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="also write the comparison to this SVG file"
    )
    given = parser.parse_args(arguments)
    print(describe_validation())
    if given.plot is not None:
        publish(given.plot, svg((compare_table_4(), compare_table_5())).encode())
        print(f"\nplot: {given.plot}")


if __name__ == "__main__":
    main()
