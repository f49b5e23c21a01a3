"""What a model directory holds and what a run reports: checkpoints, run.json, metrics, logs, jobs."""
