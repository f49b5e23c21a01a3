"""Where documents come from: screening rules, lineage, and the trace back from a training step."""
