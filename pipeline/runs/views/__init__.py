"""What each stage hands on: its shards, counters and settings, each name spelled once. A view is of
one stage's manifest, for the stages behind it and for readers of a run."""
