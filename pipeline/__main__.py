"""`python -m pipeline` is `prep`. Worker processes import this file first, as another module."""

import pipeline.commands  # noqa: F401 - for what it does to the process

if __name__ == "__main__":
    from pipeline.commands.app import main

    main()
