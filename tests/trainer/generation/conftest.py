"""The tiny models and the tokenizer of the tests of evaluation."""

from ..evaluation.conftest import _one_thread, loaded, make_model, tokenizer

__all__ = ["_one_thread", "loaded", "make_model", "tokenizer"]
