"""The global shuffle of every split, in two rounds: scatter (each shard sorted by split and rank),
gather (one bucket of ranks); of tokens, and of texts for an export. A bucket is one slice of each
scatter shard; the stream of a split is its buckets one after the other. Where the shards are too
many for one task, they are merged between the rounds (`pipeline.engine.levels`).
"""
