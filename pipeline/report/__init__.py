"""The HTML report of a preparation run: a pure function of published tables."""
