"""Detectors: what each finds in documents; they never decide."""
