"""The `train` commands, one file each: options, call, print; no logic."""
