"""Figures of the CS-2 that the model uses, each with its source; assumptions stand apart.

Sources: P = Cerebras-GPT (arXiv 2304.03208) section 5.1; S = conference slides 2023-2024; G =
glossary of cerebras.net, entries SwarmX and MemoryX.
"""

PEAK_FLOPS = 7.5e15
"""Dense half-precision peak of one CS-2 in FLOP/s (P). "62.5 PFLOP/s" elsewhere counts sparsity."""

IO_BYTES_PER_SECOND = 150e9
"""I/O of one CS-2 in bytes/s, each way: 12 x 100 GbE (G, SwarmX). SwarmX reduces at line rate."""

WAFER_BYTES = 40e9
"""SRAM of one WSE-2 in bytes (P, S)."""

WEIGHT_BYTES = 2
"""Bytes of a streamed weight element. Assumption of ours: 16 bit; no source states it."""

GRADIENT_BYTES = 4
"""Bytes of a gradient element on its way up. Assumption of ours: fp32; no source states it."""

ACTIVATION_BYTES = 2
"""Bytes of an activation element on the wafer. Assumption of ours: 16 bit."""

MASTER_BYTES = 4
"""Bytes of a master weight in MemoryX, and of each of the two moments of AdamW (fp32)."""
