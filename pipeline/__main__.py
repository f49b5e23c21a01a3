"""`python -m pipeline` is `prep`."""

from pipeline.commands.app import main

if __name__ == "__main__":
    main()
