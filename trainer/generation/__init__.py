"""Text from a trained model: `train generate`.

Limits: no cache of keys and values, so every new token costs a forward pass over the context; one
text at a time; of a context longer than the MSL the model sees the last MSL tokens.
"""
