"""Takedown: documents leave a finished run, its copies of their text and its training data.

`prep takedown` reads a claim, plans (`plan`), applies (`apply`) or exports a forget set (`forget`).
What a takedown removed stands in DIR/takedowns/ and is kept out of later runs (`records`).

Limits: it reaches the run directory and the exports that are named, nothing else. Raw shards,
backups, other runs of the same raw shards and trained weights are listed, never changed.
"""
