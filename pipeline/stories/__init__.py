"""What each command does, as a series of stages."""
