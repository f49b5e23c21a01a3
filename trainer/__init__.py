"""Train decoders on the shards that `prep` makes, or on Model Zoo's, through `wafer_backend`.

GPT-2, GPT-J, GPT-NeoX and Llama are configurations of one decoder, in fp32 or mixed precision; a
run reads one data set, several or a mixture; `trainer.config` has what can be chosen.

Limits: decoders only; every rank reads whole global batches.
"""
