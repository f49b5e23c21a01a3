"""An index of the words of a run: which texts hold which, so that a search reads few of them."""
