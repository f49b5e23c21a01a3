"""Templates of the documents; see `pipeline.disclosure`."""
