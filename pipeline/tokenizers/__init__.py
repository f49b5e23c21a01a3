"""Tokenizers: exact ids, and the vocabulary that is shipped."""
