"""What is withheld and what leaves: quarantine, and takedowns from a finished run.

`prep takedown` reads a claim, plans or exports a forget set (`plan`), or applies it (`apply`):
documents leave the run, its copies of their text and its training data. What a takedown removed is
listed in DIR/takedowns/ and kept out of later runs (`record`). It reaches the run directory and the
exports that are named, nothing else. Raw shards, backups, other runs of the same raw shards and
trained weights are listed, never changed.

Quarantined texts are in a store of their own, DIR/quarantine/ (`quarantine_store`). The stage
`quarantine` writes it there; as a run ends it leaves documents/, and it comes back only while a
stage has to look at it again. Every look at it is an event. `purge` ends it, at once or after the
days of `screen.quarantine_days`, unless somebody holds it; no run purges. The store is a directory
like others; who may read it is for the file system to say.
"""
