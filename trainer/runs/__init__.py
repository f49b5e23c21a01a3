"""A model directory and what a run reports: checkpoints, run.json, metrics, logs, jobs."""
