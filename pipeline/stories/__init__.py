"""What each command does, told in stages."""
