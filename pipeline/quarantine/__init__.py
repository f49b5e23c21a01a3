"""Quarantine: the text of quarantined documents in a store of its own, DIR/quarantine/.

`collect` moves it there from documents/, `restore` back, where screening has to look at it again.
Every look at it is an event. A retention limit and `purge` end it, unless somebody holds it.

Limits: the store is a directory like others; who may read it is for the file system to say.
"""
