"""Checkpoints: nested state, its bytes, and the `.mdl` file."""
