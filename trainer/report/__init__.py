"""What a training run leaves for people to read: report.html and a model card."""

from trainer.report.write import write_card, write_report

__all__ = ["write_card", "write_report"]
