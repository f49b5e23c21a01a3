"""Readers: raw shards in, one stream of records out."""
