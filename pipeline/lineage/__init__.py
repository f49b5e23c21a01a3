"""Token <-> row <-> document <-> training step, both ways."""
