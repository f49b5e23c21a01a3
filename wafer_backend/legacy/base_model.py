"""`PyTorchBaseModel`: the base class of models in scripts of R1.8 and before."""

from typing import Any

import torch
from torch import nn

from wafer_backend.compilation import PseudoModule, compile
from wafer_backend.legacy.updates import Updates


class PyTorchBaseModel:
    """A model with its optimizer. Subclasses give `__call__(data)`, which returns the loss.

    `params`: the params file, with sections model, optimizer and runconfig. `model`: the module;
    it is compiled for the current backend. `device`: ignored, the backend decides. In evaluation
    there is no optimizer.
    """

    def __init__(
        self, params: dict[str, Any], model: nn.Module, device: torch.device | None = None
    ) -> None:
        self.params = params
        self.model: PseudoModule = compile(model)
        self.updates: Updates | None = None
        if params["runconfig"].get("mode", "train") != "eval":
            self.updates = Updates(params["optimizer"], self.model.parameters())

    def __call__(self, data: Any) -> torch.Tensor:
        """The mean loss of one global batch."""
        raise NotImplementedError(f"{type(self).__name__} must define __call__(self, data)")

    def build_model(self, model_params: dict[str, Any]) -> nn.Module:
        """The module described by the section `model`."""
        raise NotImplementedError(f"{type(self).__name__} must define build_model(self, params)")

    def get_optimizer(self) -> torch.optim.Optimizer | None:
        """The optimizer; None in evaluation."""
        return None if self.updates is None else self.updates.optimizer

    def get_lr_scheduler(self) -> Any:
        """The learning rate scheduler; None for a constant rate or in evaluation."""
        return None if self.updates is None else self.updates.scheduler

    def train(self) -> None:
        """Training mode."""
        self.model.train()

    def eval(self) -> None:
        """Evaluation mode."""
        self.model.eval()


class LossModel(PyTorchBaseModel):
    """A module that takes a batch and returns its loss (R1.8 and later), in the older shape."""

    def __call__(self, data: Any) -> torch.Tensor:
        """The mean loss of one global batch."""
        return self.model(data)  # type: ignore[no-any-return]
