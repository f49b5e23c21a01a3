"""What an engine does and how long it takes, recorded without changing a bit."""
