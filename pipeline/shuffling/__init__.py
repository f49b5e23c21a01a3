"""Rows of columns moved to other places; the kernel behind shuffle and export."""
