"""Train GPT-2-like models on the shards that `prep` makes, through `wafer_backend`.

Limits: one decoder family (learned positions, GELU, LayerNorm), fp32, one data set per run.
"""
