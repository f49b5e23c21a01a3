"""Text from a trained model: `train generate`, and `train --mode infer` for many prompts.

Limits: of a context longer than the MSL the model sees the last MSL tokens, and a new one costs a
forward pass over all of them; prompts go on together greedily only, and up to the MSL.
"""
