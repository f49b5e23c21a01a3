"""Optimizers that PyTorch has, with the arguments and defaults of cstorch.

Each computes what its PyTorch parent computes, bit for bit; what is here allocates state early and
keeps the few values that PyTorch takes from the first gradient or the first learning rate until
that first step. The largest trap of the defaults: eps is 1e-6 where PyTorch's is 1e-8.
"""

import inspect
import math
from typing import Any

import torch

from wafer_backend.errors import BackendConfigError
from wafer_backend.optim.optimizer import Optimizer, Params

Betas = tuple[float, float]


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
        rho: float = 0.9,
        eps: float = 1e-6,
        weight_decay: float = 0.0,
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
        eps: tuple[float | None, float] = (1e-30, 1e-3),
        clip_threshold: float = 1.0,
        decay_rate: float = -0.8,
        beta1: float | None = None,
        weight_decay: float = 0.0,
        scale_parameter: bool = True,
        relative_step: bool = False,
        warmup_init: bool = False,
    ) -> None:
        supported = {"beta1": None, "scale_parameter": True}
        supported |= {"relative_step": False, "warmup_init": False}
        given = {"beta1": beta1, "scale_parameter": scale_parameter}
        given |= {"relative_step": relative_step, "warmup_init": warmup_init}
        for name, value in given.items():
            if value is not supported[name]:
                raise BackendConfigError(
                    f"Adafactor({name}={value}) is not supported; leave it at {supported[name]}"
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
        lr_decay: float = 0.0,
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        eps: float = 1e-6,
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

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        correct_bias: bool = True,
        amsgrad: bool = False,
    ) -> None:
        torch.optim.Adam.__init__(self, params, lr, betas, eps, weight_decay, amsgrad)
        self._set_correct_bias(correct_bias)


class AdamW(_BiasCorrection, torch.optim.AdamW):
    """Loshchilov and Hutter, arXiv 1711.05101: decay of the weights apart from the gradient."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
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
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
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
            if state and state["step"] == 0:
                state[self.begins_as_lr].fill_(float(group["lr"]))
        return has_complex


class ASGD(_FirstLearningRate, torch.optim.ASGD):
    """Averaged SGD, Polyak and Juditsky (1992); the average is `ax` of the state."""

    begins_as_lr = "eta"

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        lambd: float = 1e-4,
        alpha: float = 0.75,
        t0: float = 1e6,
        weight_decay: float = 0.0,
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
        etas: tuple[float, float] = (0.5, 1.2),
        step_sizes: tuple[float, float] = (1e-6, 50.0),
    ) -> None:
        torch.optim.Rprop.__init__(self, params, lr, etas, step_sizes)


class Muon(_TorchOptimizer, torch.optim.Muon):
    """Jordan (2024), kellerjordan.github.io/posts/muon: orthogonalized momentum of matrices."""

    def __init__(
        self,
        params: Params,
        lr: float = 0.02,
        momentum: float = 0.95,
        ns_steps: int = 5,
        *,
        nesterov: bool = True,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.Muon.__init__(
            self, params, lr, weight_decay, momentum, nesterov, ns_steps=ns_steps
        )


class NAdam(_TorchOptimizer, torch.optim.NAdam):
    """Dozat (2016): Adam with Nesterov momentum."""

    def __init__(
        self,
        params: Params,
        lr: float = 2e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum_decay: float = 4e-3,
    ) -> None:
        torch.optim.NAdam.__init__(self, params, lr, betas, eps, weight_decay, momentum_decay)


class RAdam(_TorchOptimizer, torch.optim.RAdam):
    """Liu et al., arXiv 1908.03265: Adam that waits for its variance."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-3,
        betas: Betas = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        torch.optim.RAdam.__init__(self, params, lr, betas, eps, weight_decay)


class RMSprop(_TorchOptimizer, torch.optim.RMSprop):
    """Tieleman and Hinton (2012); centered: Graves, arXiv 1308.0850."""

    def __init__(
        self,
        params: Params,
        lr: float = 1e-2,
        alpha: float = 0.99,
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        momentum: float = 0.0,
        centered: bool = False,
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
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
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
