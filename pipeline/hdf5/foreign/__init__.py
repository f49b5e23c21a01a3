"""HDF5 files that nobody vouches for: examined by a child with limits, described, and read."""
