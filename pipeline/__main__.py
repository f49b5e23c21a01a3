"""`prep`, as the command or as `python -m pipeline`. Worker processes import this file first."""

from pipeline.core import collect_rarely

collect_rarely()


def main() -> None:
    """Entry point."""
    from pipeline.commands.app import main

    main()


if __name__ == "__main__":
    main()
