"""Templates of the documents; see `pipeline.provenance.disclosure`."""
