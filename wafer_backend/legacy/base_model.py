"""`PyTorchBaseModel`: the base class of models in scripts of R1.8 and before.

The section `optimizer` of a params file gives it optimizer, learning rates, loss scale and
clipping.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from wafer_backend import amp, optim
from wafer_backend.cstorch.compilation import PseudoModule, compile

_SCALER = ("initial_loss_scale", "steps_per_increase", "min_loss_scale", "max_loss_scale")
_NOT_THE_OPTIMIZERS = {
    *_SCALER,
    "learning_rate",
    "log_summaries",
    "loss_scaling_factor",
    "max_gradient_norm",
    "max_gradient_value",
    "optimizer_type",
}


class Updates:
    """Everything that changes weights after a backward pass."""

    def __init__(self, section: dict[str, Any], parameters: Iterable[torch.nn.Parameter]) -> None:
        rates = section.get("learning_rate", 1e-3)
        self.optimizer = optim.configure_optimizer(
            optimizer_type=section.get("optimizer_type", "SGD"),
            params=list(parameters),
            learning_rate=rates,
            **{name: value for name, value in section.items() if name not in _NOT_THE_OPTIMIZERS},
        )
        constant = isinstance(rates, int | float)
        self.scheduler = None if constant else optim.configure_lr_scheduler(self.optimizer, rates)
        self.scaler = _scaler(section)
        self._max_norm = section.get("max_gradient_norm")
        self._max_value = section.get("max_gradient_value")

    def apply(self, loss: torch.Tensor) -> None:
        """One update: backward, unscale, clip, optimizer step, learning rate step."""
        amp.optimizer_step(
            loss,
            self.optimizer,
            self.scaler,
            max_gradient_norm=self._max_norm,
            max_gradient_value=self._max_value,
        )
        if self.scheduler is not None:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """State of all parts, by the keys of a checkpoint."""
        return {name: part.state_dict() for name, part in self._parts().items()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a checkpoint; parts it does not have stay as they are."""
        for name, part in self._parts().items():
            if name in state:
                part.load_state_dict(state[name])

    def _parts(self) -> dict[str, Any]:
        parts = {
            "optimizer": self.optimizer,
            "lr_scheduler": self.scheduler,
            "grad_scaler": self.scaler,
        }
        return {name: part for name, part in parts.items() if part is not None}


def _scaler(section: dict[str, Any]) -> amp.GradScaler | None:
    factor = section.get("loss_scaling_factor", 1.0)
    if factor != "dynamic" and float(factor) == 1.0:
        return None
    given = {name: section[name] for name in _SCALER if name in section}
    if "initial_loss_scale" in given:
        given["init_scale"] = given.pop("initial_loss_scale")
    return amp.GradScaler(loss_scale=factor, **given)


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
