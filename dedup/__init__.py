"""Near-duplicate detection as a pure library: arrays in, arrays out; no files, no scheduler."""
