"""Optimizers that PyTorch has, with the arguments and defaults of cstorch.

Each computes what its PyTorch parent computes, bit for bit; what is here allocates state early and
keeps the few values that PyTorch takes from the first gradient or the first learning rate until
that first step. The largest trap of the defaults: eps is 1e-6 where PyTorch's is 1e-8.
"""

import inspect
import math
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import AfterValidator, Field, ValidationInfo

from wafer_backend.errors import BackendConfigError
from wafer_backend.optim.optimizer import (
    Betas,
    CoupledDecay,
    DecoupledDecay,
    Moments,
    Optimizer,
    Params,
    RootEps,
    Share,
)

__all__ = [
    "ASGD",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "Muon",
    "NAdam",
    "RAdam",
    "RMSprop",
    "Rprop",
]

NotNegative = Annotated[float, Field(ge=0)]


def _check_etas(etas: tuple[float, float]) -> tuple[float, float]:
    if not 0 < etas[0] < 1 < etas[1]:
        raise ValueError("expected one factor between 0 and 1, and one above 1")
    return etas


def _check_nesterov(nesterov: bool, settings: ValidationInfo) -> bool:
    if nesterov and (not settings.data.get("momentum") or settings.data.get("dampening")):
        raise ValueError("expected false, or a momentum above 0 and a dampening of 0")
    return nesterov


class _TorchOptimizer(Optimizer):
    """Allocates through PyTorch's own `_init_group`, which every optimizer of it has."""

    def _allocate(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        parent = next(c for c in type(self).__mro__ if c.__module__.startswith("torch.optim"))
        allocate: Any = parent._init_group  # type: ignore[attr-defined]
        lists: list[list[Any]] = [[] for _ in inspect.signature(allocate).parameters][2:]
        gradient = parameter.grad
        parameter.grad = torch.zeros_like(parameter)  # PyTorch allocates where a gradient is
        try:
            allocate(self, {**group, "params": [parameter]}, *lists)
        finally:
            parameter.grad = gradient


class Adadelta(_TorchOptimizer, torch.optim.Adadelta):
    """Zeiler, arXiv 1212.5701."""

    def __init__(
        self,
        params: Params,
        lr: float = 1.0,
        rho: Annotated[
            Share, Field(description="decay of the means of squared gradients and squared updates")
        ] = 0.9,
        eps: Annotated[
            float,
            Field(gt=0, description="added to the means of squared gradients and squared updates"),
        ] = 1e-6,
        weight_decay: CoupledDecay = 0.0,
        maximize: bool = False,
    ) -> None:
        torch.optim.Adadelta.__init__(
            self, params, lr, rho, eps, weight_decay=weight_decay, maximize=maximize
        )


class Adafactor(_TorchOptimizer, torch.optim.Adafactor):
    """Shazeer and Stern, arXiv 1804.04235, as PyTorch has it.

    `eps` are the regularization of squared gradients and of the parameter scale, `decay_rate` the
    exponent of beta2, `clip_threshold` PyTorch's d. PyTorch never lets the relative learning rate
    exceed 1 / sqrt(step). The first moment (`beta1`), relative steps and an update without the
    parameter scale are not supported.
    """

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        eps: Annotated[
            tuple[NotNegative | None, NotNegative],
            Field(description="lower limits of squared gradients, and of the size of a parameter"),
        ] = (1e-30, 1e-3),
        clip_threshold: Annotated[
            float, Field(ge=1, description="largest root mean square of an update")
        ] = 1.0,
        decay_rate: Annotated[
            float, Field(le=0, description="exponent in the decay of the second moment")
        ] = -0.8,
        beta1: Annotated[
            Literal[None], Field(description="a first moment is not supported")
        ] = None,
        weight_decay: DecoupledDecay = 0.0,
        scale_parameter: Literal[True] = True,
        relative_step: Literal[False] = False,
        warmup_init: Literal[False] = False,
    ) -> None:
        fixed: dict[str, tuple[Any, Any]] = {
            "beta1": (beta1, None),
            "scale_parameter": (scale_parameter, True),
            "relative_step": (relative_step, False),
            "warmup_init": (warmup_init, False),
        }
        for name, (value, only) in fixed.items():
            if value is not only:
                raise BackendConfigError(
                    f"Adafactor({name}={value}) is not supported; leave it at {only}"
                )
        torch.optim.Adafactor.__init__(
            self,
            params,
            lr,
            beta2_decay=decay_rate,
            eps=eps,
            d=clip_threshold,
            weight_decay=weight_decay,
        )


class Adagrad(_TorchOptimizer, torch.optim.Adagrad):
    """Duchi, Hazan and Singer, JMLR 12 (2011). Its state exists from the start."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lr_decay: Annotated[
            float, Field(ge=0, description="decay of the learning rate, per step")
        ] = 0.0,
        weight_decay: CoupledDecay = 0.0,
        initial_accumulator_value: Annotated[
            float, Field(ge=0, description="initial sum of squared gradients")
        ] = 0.0,
        eps: Annotated[
            float,
            Field(gt=0, description="added to the square root of the sum of squared gradients"),
        ] = 1e-6,
        maximize: bool = False,
    ) -> None:
        torch.optim.Adagrad.__init__(
            self,
            params,
            lr,
            lr_decay,
            weight_decay,
            initial_accumulator_value,
            eps,
            maximize=maximize,
        )

    def _allocate(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        pass


class _BiasCorrection(_TorchOptimizer):
    """Adam's option to leave bias correction out: 1 - beta ** t is 1 for t = infinity."""

    def _set_correct_bias(self, correct_bias: bool) -> None:
        self.defaults["correct_bias"] = correct_bias
        for group in self.param_groups:
            group.setdefault("correct_bias", correct_bias)

    def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> Any:
        has_complex = super()._init_group(group, *lists)  # type: ignore[misc]
        if not group.get("correct_bias", True):
            steps = lists[-1]
            for index, step in enumerate(steps):
                step += 1  # PyTorch counts in the replacement, where it changes nothing
                steps[index] = torch.full_like(step, math.inf)
        return has_complex


class Adam(_BiasCorrection, torch.optim.Adam):
    """Kingma and Ba, arXiv 1412.6980; `weight_decay` is added to the gradient."""

    updates_have_size_of_rate = divides_by_root = has_fused_kernel = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Moments = (0.9, 0.999),
        eps: RootEps = 1e-6,
        weight_decay: CoupledDecay = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad)
        self._set_correct_bias(correct_bias)


class AdamW(_BiasCorrection, torch.optim.AdamW):
    """Loshchilov and Hutter, arXiv 1711.05101: decay of the weights apart from the gradient."""

    updates_have_size_of_rate = divides_by_root = has_fused_kernel = True
    train_defaults: ClassVar = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Moments = (0.9, 0.999),
        eps: RootEps = 1e-6,
        weight_decay: DecoupledDecay = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        torch.optim.AdamW.__init__(self, params, lr, betas, eps, weight_decay, amsgrad)
        self._set_correct_bias(correct_bias)


class Adamax(_TorchOptimizer, torch.optim.Adamax):
    """Kingma and Ba, arXiv 1412.6980, section 7."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Annotated[
            Betas, Field(description="decay of the first moment and of the largest gradient")
        ] = (0.9, 0.999),
        eps: Annotated[
            float, Field(gt=0, description="added to the absolute value of the gradient")
        ] = 1e-6,
        weight_decay: CoupledDecay = 0.0,
        maximize: bool = False,
    ) -> None:
        torch.optim.Adamax.__init__(self, params, lr, betas, eps, weight_decay, maximize=maximize)


class _FirstLearningRate(_TorchOptimizer):
    """State that begins as the learning rate: that of the first step, not of the allocation."""

    begins_as_lr: str

    def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> Any:
        has_complex = super()._init_group(group, *lists)  # type: ignore[misc]
        for parameter in group["params"]:
            state = self.state[parameter] if parameter.grad is not None else {}
            if state and not state["step"].is_meta and state["step"] == 0:
                state[self.begins_as_lr].fill_(float(group["lr"]))
        return has_complex


class ASGD(_FirstLearningRate, torch.optim.ASGD):
    """Averaged SGD, Polyak and Juditsky (1992); weights are those of SGD, the average is state."""

    begins_as_lr = "eta"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: Annotated[float, Field(ge=0, description="decay of the weights")] = 1e-4,
        alpha: Annotated[
            float, Field(ge=0, description="exponent in the decay of the learning rate")
        ] = 0.75,
        t0: Annotated[float, Field(ge=0, description="step at which averaging starts")] = 1e6,
        weight_decay: CoupledDecay = 0.0,
        maximize: bool = False,
    ) -> None:
        torch.optim.ASGD.__init__(
            self, params, lr, lambd, alpha, t0, weight_decay, maximize=maximize
        )


class Rprop(_FirstLearningRate, torch.optim.Rprop):
    """Riedmiller and Braun (1993): signs of gradients only."""

    begins_as_lr = "step_size"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        etas: Annotated[
            tuple[float, float],
            Field(
                description="factor for a step size when the sign of the gradient changes, and "
                "when it does not"
            ),
            AfterValidator(_check_etas),
        ] = (0.5, 1.2),
        step_sizes: Annotated[
            tuple[float, float], Field(description="smallest and largest step size")
        ] = (1e-6, 50.0),
    ) -> None:
        torch.optim.Rprop.__init__(self, params, lr, etas, step_sizes)


class Muon(_TorchOptimizer, torch.optim.Muon):
    """Jordan (2024), kellerjordan.github.io/posts/muon: orthogonalized momentum of matrices."""

    not_for_train = "it is for matrices only, and one optimizer serves all parameters here"

    def __init__(
        self,
        params: Params,
        lr: float = 0.02,
        momentum: float = 0.95,
        ns_steps: int = 5,
        *,
        nesterov: bool = True,
        weight_decay: DecoupledDecay = 0.0,
    ) -> None:
        torch.optim.Muon.__init__(
            self, params, lr, weight_decay, momentum, nesterov, ns_steps=ns_steps
        )


class NAdam(_TorchOptimizer, torch.optim.NAdam):
    """Dozat (2016): Adam with Nesterov momentum."""

    divides_by_root = True

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Moments = (0.9, 0.999),
        eps: RootEps = 1e-8,
        weight_decay: CoupledDecay = 0.0,
        momentum_decay: Annotated[
            float, Field(ge=0, description="decay of the Nesterov momentum, per step")
        ] = 4e-3,
    ) -> None:
        torch.optim.NAdam.__init__(self, params, lr, betas, eps, weight_decay, momentum_decay)


class RAdam(_TorchOptimizer, torch.optim.RAdam):
    """Liu et al., arXiv 1908.03265: Adam that waits for its variance."""

    divides_by_root = True

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Moments = (0.9, 0.999),
        eps: RootEps = 1e-6,
        weight_decay: CoupledDecay = 0.0,
    ) -> None:
        torch.optim.RAdam.__init__(self, params, lr, betas, eps, weight_decay)


class RMSprop(_TorchOptimizer, torch.optim.RMSprop):
    """Tieleman and Hinton (2012); centered: Graves, arXiv 1308.0850."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: Annotated[Share, Field(description="decay of the mean of squared gradients")] = 0.99,
        eps: Annotated[
            float,
            Field(gt=0, description="added to the square root of the mean of squared gradients"),
        ] = 1e-8,
        weight_decay: CoupledDecay = 0.0,
        momentum: Annotated[
            float, Field(ge=0, description="momentum of the update; 0: none")
        ] = 0.0,
        centered: Annotated[
            bool, Field(description="divide by the standard deviation of the gradient instead")
        ] = False,
    ) -> None:
        torch.optim.RMSprop.__init__(self, params, lr, alpha, eps, weight_decay, momentum, centered)


class SGD(_TorchOptimizer, torch.optim.SGD):
    """Stochastic gradient descent; momentum after Sutskever et al. (2013) as PyTorch has it.

    PyTorch's momentum begins as the first gradient. A buffer of -0.0 becomes just that, even in
    the sign of zeros; with dampening, which PyTorch leaves out of the first step, it does not, so
    there a count of steps is kept and the first buffer made anew.
    """

    def __init__(
        self,
        params: Params,
        lr: float,
        momentum: Annotated[
            float, Field(ge=0, description="momentum of the gradient; 0: none")
        ] = 0.0,
        dampening: Annotated[
            float,
            Field(description="lowers what a gradient adds to the momentum; 0: not at all"),
        ] = 0.0,
        weight_decay: CoupledDecay = 0.0,
        nesterov: Annotated[
            bool,
            Field(description="Nesterov momentum; needs momentum, and a dampening of 0"),
            AfterValidator(_check_nesterov),
        ] = False,
        maximize: bool = False,
    ) -> None:
        torch.optim.SGD.__init__(
            self, params, lr, momentum, dampening, weight_decay, nesterov, maximize=maximize
        )

    def _allocate(self, group: dict[str, Any], parameter: torch.Tensor) -> None:
        state = self.state[parameter]
        if group["momentum"] and "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.full_like(parameter, -0.0)
            if group["dampening"]:
                state["step"] = torch.zeros((), dtype=torch.float32)

    def _init_group(self, group: dict[str, Any], *lists: list[Any]) -> Any:
        has_sparse = super()._init_group(group, *lists)  # type: ignore[no-untyped-call]
        if group["momentum"] and group["dampening"]:
            parameters, _, buffers = lists
            for index, parameter in enumerate(parameters):
                seen = torch.tensor(0.0 if buffers[index] is None else 1.0)
                step = self.state[parameter].setdefault("step", seen)
                if step == 0:
                    buffers[index] = None
                step += 1
        return has_sparse
