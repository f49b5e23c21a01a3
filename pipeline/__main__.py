"""`python -m pipeline` is `prep`."""

if __name__ == "__main__":  # worker processes import this file, and need none of the below
    from pipeline.commands.app import main

    main()
