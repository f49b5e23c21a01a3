"""The functions of `pipeline` as users call them: the commands of `prep`, with Python values."""
