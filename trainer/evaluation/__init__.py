"""What a model knows: losses by source, bits per byte, tasks of lm-eval, CrowS-Pairs.

Limits: one process scores tasks and sentences, with the weights resident and in fp32; texts longer
than the MSL are cut on the left, as the model sees no more.
"""
