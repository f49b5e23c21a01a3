"""A training run, from the options of the command to the last checkpoint."""
