"""Takedown: documents leave a finished run, its copies of their text and its training data.

`prep takedown` reads a claim, plans or exports a forget set (`plan`), or applies it (`apply`). What
a takedown removed is listed in DIR/takedowns/ and kept out of later runs (`record`).

Limits: it reaches the run directory and the exports that are named, nothing else. Raw shards,
backups, other runs of the same raw shards and trained weights are listed, never changed.
"""
