"""Scaling laws: the paper's closed forms, and fits of power laws to runs of one's own."""
