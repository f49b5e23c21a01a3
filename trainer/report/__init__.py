"""What a training run leaves for people to read: report.html and a model card."""
