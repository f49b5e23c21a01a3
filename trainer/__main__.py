"""`python -m trainer` is `train`."""

if __name__ == "__main__":  # worker processes import this file, and need none of the below
    from trainer.cli import main

    main()
