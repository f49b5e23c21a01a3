"""Documents about a finished run: audit report, dataset card, Croissant, EU and California drafts,
SPDX. All are pure functions of the run directory and of what its owner says in about.yaml; what
neither knows becomes an explicit TODO.
"""
