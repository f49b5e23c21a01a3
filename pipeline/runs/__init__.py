"""What a run directory is, and reading one."""
