"""Directories in buckets, as directories on the local disk that mirror them.

What is written there is put into the bucket first, under its lease (`pipeline.core.lease`).
`open_mirror` makes the names below a path those of the bucket: files that a command always needs
are fetched at once, others stand there empty until `fetch` brings their bytes (`is_absent`). When
the cache is full, those that were not used for longest become empty again.
"""
