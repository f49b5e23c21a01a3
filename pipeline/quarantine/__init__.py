"""Quarantine: the text of quarantined documents in a store of its own, DIR/quarantine/.

The stage `quarantine` writes it there; as a run ends it leaves documents/, and it comes back only
while a stage has to look at it again. Every look at it is an event. `purge` ends it, at once or
after the days of `screen.quarantine_days`, unless somebody holds it; no run purges.

Limits: the store is a directory like others; who may read it is for the file system to say.
"""
