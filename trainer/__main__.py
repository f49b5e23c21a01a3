"""`train`, as the command or as `python -m trainer`. Worker processes import this file first."""

from pipeline.core import collect_rarely

collect_rarely()


def main() -> None:
    """Entry point."""
    from trainer.cli import main

    main()


if __name__ == "__main__":
    main()
