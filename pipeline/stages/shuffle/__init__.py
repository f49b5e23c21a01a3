"""The global shuffle of every split. Shards of tokens are sorted by split and rank, as they are
written or by a scatter, so that a bucket of ranks is one slice of each; the stream of a split is
its buckets one after the other, and a gather lists their documents. Texts of an export are
scattered and gathered whole. Where the shards are too many for one task, they are merged
(`pipeline.engine.levels`).
"""
