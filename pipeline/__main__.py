"""`python -m pipeline` is `prep`."""

from pipeline.cli import main

if __name__ == "__main__":
    main()
