"""What adjusts a value of an optimizer's parameter groups step by step, whatever the value is.

`Scheduler` holds one number of its own, `last_epoch` (the step the groups are set for, as PyTorch
names it), and asks a closed form for the value. `LRScheduler` and `WDScheduler` name the value.
Call `step()` after every `optimizer.step()`; the value of step 0 is set on construction.
"""

import functools
import inspect
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, ClassVar

import torch

from wafer_backend.errors import BackendConfigError

Tags = str | Collection[str | None] | None
Group = Mapping[str, Any]

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


class Scheduler:
    """Sets `group[param_group_key]` of every parameter group to the value of the current step.

    `total_iters`: steps until a schedule that follows in a sequence begins, None when it has no
    end. `last_epoch`: the last step already done, -1 before the first. `param_group_tags`: only
    groups that carry one of these tags in `group["tags"]` are set; None in the list means groups
    without tags, and None instead of a list all groups.

    A schedule of one's own overrides `_get_closed_form` (or, as in older code,
    `_get_closed_form_lr`) and computes the value from `self.last_epoch`, an int64 0-d tensor there.
    """

    param_group_key: ClassVar[str]
    """Which value of a group is set."""
    spelling: ClassVar[Mapping[str, str]] = {}
    """Names of arguments that differ from those of the closed forms."""

    optimizer: torch.optim.Optimizer
    last_epoch: int

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        total_iters: int | None = None,
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        self.optimizer = optimizer
        self.total_iters = total_iters
        self.param_group_tags = None if param_group_tags is None else _tags(param_group_tags)
        self.last_epoch = last_epoch
        self.step()

    def value(self, step: int, group: Group) -> float:
        """The value of 0-based `step` for one parameter group; nothing else decides it."""
        kept = self.last_epoch
        self.last_epoch = torch.tensor(step)  # type: ignore[assignment] # what cstorch code expects
        try:
            return float(self._get_closed_form())
        finally:
            self.last_epoch = kept

    def step(self, epoch: int | None = None) -> None:
        """Go to the next step, or to step `epoch`, and set the groups."""
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        self._set_groups()

    def get(self) -> list[float]:
        """The value of the current step for every parameter group this schedule sets."""
        return [self.value(self.last_epoch, group) for group in self._groups()]

    def get_last_value(self) -> list[float]:
        """The value now in every parameter group, set by whoever."""
        return [float(group[self.param_group_key]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """`last_epoch`: all else is in the arguments."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the groups are set for that step."""
        if "last_epoch" not in state_dict:
            raise BackendConfigError(
                f"state of {type(self).__name__} has no last_epoch, only {sorted(state_dict)}; "
                "expected what its state_dict() returned"
            )
        self.last_epoch = int(state_dict["last_epoch"])
        self._set_groups()

    @property
    def device(self) -> torch.device:
        """Where a closed form may place its tensors."""
        return torch.device("cpu")

    def _get_closed_form(self) -> Any:
        older = getattr(self, "_get_closed_form_lr", None)
        if older is None:
            raise NotImplementedError(f"{type(self).__name__} must define _get_closed_form")
        return older()

    def _groups(self) -> Iterable[dict[str, Any]]:
        for group in self.optimizer.param_groups:
            if self.param_group_tags is None or self.param_group_tags & _tags(group.get("tags")):
                yield group

    def _set_groups(self) -> None:
        for group in self._groups():
            if self.param_group_key not in group:
                raise BackendConfigError(
                    f"{type(self).__name__}: parameter groups of {type(self.optimizer).__name__} "
                    f"have no {self.param_group_key}; use an optimizer that has one"
                )
            group[self.param_group_key] = self.value(self.last_epoch, group)


class ClosedFormScheduler(Scheduler):
    """A scheduler that is one pure function, given as `form=` in the class statement.

    Its arguments are the optimizer, those of the function after `step` in the spelling of the
    class, then `param_group_tags` and, by keyword, `last_epoch`.
    """

    form: ClassVar[Callable[..., float]]
    names: ClassVar[dict[str, str]]
    """Arguments of the form, and the attribute of this object that holds each."""
    __signature__: ClassVar[inspect.Signature]

    def __init_subclass__(cls, form: Callable[..., float] | None = None, **options: Any) -> None:
        super().__init_subclass__(**options)
        if form is not None:
            taken = list(inspect.signature(form).parameters.values())[1:]
            cls.form = staticmethod(form)
            cls.names = {p.name: cls.spelling.get(p.name, p.name) for p in taken}
            cls.__signature__ = inspect.Signature(
                [
                    inspect.Parameter("optimizer", _POSITIONAL, annotation=torch.optim.Optimizer),
                    *[p.replace(name=cls.names[p.name]) for p in taken],
                    inspect.Parameter("param_group_tags", _POSITIONAL, default=None),
                    inspect.Parameter("last_epoch", inspect.Parameter.KEYWORD_ONLY, default=-1),
                ]
            )
            cls.__init__ = _with_signature(cls.__init__, cls.__signature__)  # type: ignore[method-assign]

    def __init__(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> None:
        given = self.__signature__.bind(optimizer, *args, **kwargs)
        given.apply_defaults()
        arguments = dict(given.arguments)
        tags, last_epoch = arguments.pop("param_group_tags"), arguments.pop("last_epoch")
        for name in self.names.values():
            setattr(self, name, arguments[name])
        super().__init__(optimizer, arguments.get("total_iters"), last_epoch, tags)

    def value(self, step: int, group: Group) -> float:
        """The closed form at `step`."""
        arguments = {name: getattr(self, mine) for name, mine in self.names.items()}
        return type(self).form(step, **arguments)

    def _get_closed_form(self) -> float:
        return self.value(self.last_epoch, {})


def _with_signature(init: Callable[..., None], signature: inspect.Signature) -> Any:
    """An `__init__` that tells its own arguments, which configs are made from."""

    @functools.wraps(init)
    def own(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)

    me = inspect.Parameter("self", _POSITIONAL)
    own.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[me, *signature.parameters.values()]
    )
    return own


class PiecewiseConstantScheduler:
    """What the schedulers of piecewise constant values have in common: a name to ask for."""


class LambdaScheduler(Scheduler):
    """initial * the product of functions of the step, which a subclass gives."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        initial_val: float,
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        self.initial_val = initial_val
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def set_value_lambda(self) -> Callable[[int], float] | Sequence[Callable[[int], float]]:
        """A function of the step, or several; to override."""
        raise NotImplementedError(f"{type(self).__name__} must define set_value_lambda")

    def value(self, step: int, group: Group) -> float:
        """initial * the product of all functions at `step`."""
        functions = self.set_value_lambda()
        result = self.initial_val
        for function in [functions] if callable(functions) else functions:
            result *= float(function(step))
        return result


class CombinedScheduler(Scheduler):
    """A scheduler over others of the same optimizer and tags, which stay as they are."""

    schedulers: list[Scheduler]

    def _take(self, schedulers: Sequence[Scheduler], optimizer: Any, tags: Tags) -> None:
        mine = None if tags is None else _tags(tags)
        for index, scheduler in enumerate(schedulers):
            if scheduler.optimizer is not optimizer:
                raise BackendConfigError(
                    f"{type(self).__name__}: scheduler {index} belongs to another optimizer; "
                    "give all schedulers the same one"
                )
            if scheduler.param_group_tags != mine:
                raise BackendConfigError(
                    f"{type(self).__name__}: param_group_tags of scheduler {index} are "
                    f"{scheduler.param_group_tags}, but its own are {mine}; make them equal"
                )
        self.schedulers = list(schedulers)


class SequentialScheduler(CombinedScheduler):
    """`schedulers` one after another, each from its own step 0; the next begins at a milestone."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedulers: Sequence[Scheduler],
        milestones: Sequence[int],
        last_epoch: int = -1,
        param_group_tags: Tags = None,
    ) -> None:
        if len(schedulers) != len(milestones) + 1:
            raise BackendConfigError(
                f"{type(self).__name__}: {len(schedulers)} schedulers for {len(milestones)} "
                "milestones; expected one scheduler more"
            )
        if sorted([0, *milestones]) != [0, *milestones]:
            raise BackendConfigError(
                f"{type(self).__name__}: milestones are {list(milestones)}; "
                "expected ascending steps from 0"
            )
        self.milestones = list(milestones)
        self._take(schedulers, optimizer, param_group_tags)
        ends = self.schedulers[-1].total_iters
        total = None if ends is None else sum([0, *milestones[-1:]]) + ends
        super().__init__(optimizer, total, last_epoch, param_group_tags)

    def value(self, step: int, group: Group) -> float:
        """The value of the scheduler whose turn it is, at its own step."""
        turn = bisect_right(self.milestones, step)
        begin = self.milestones[turn - 1] if turn else 0
        return self.schedulers[turn].value(step - begin, group)


class ChainedScheduler(CombinedScheduler):
    """The first scheduler times what each other one has made of its own initial value."""

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        if not schedulers:
            raise BackendConfigError(f"{type(self).__name__}: no schedulers; expected at least one")
        optimizer = schedulers[0].optimizer
        self._take(schedulers, optimizer, param_group_tags)
        super().__init__(optimizer, None, last_epoch, param_group_tags)

    def value(self, step: int, group: Group) -> float:
        """f_1(t) * product over the others of f_i(t) / f_i(0)."""
        result = self.schedulers[0].value(step, group)
        for index, scheduler in enumerate(self.schedulers[1:], start=1):
            initial = scheduler.value(0, group)
            if initial == 0:
                raise BackendConfigError(
                    f"{type(self).__name__}: scheduler {index} starts at 0 and cannot be chained; "
                    "put it first, or start it above 0"
                )
            result *= scheduler.value(step, group) / initial
        return result


class ScalePerParamScheduler(CombinedScheduler):
    """A scheduler's value times the group's `adjust_learning_rate`, else `adjust_val`, else 1."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        scheduler: Scheduler,
        param_group_tags: Tags = None,
        *,
        last_epoch: int = -1,
    ) -> None:
        if isinstance(scheduler, ChainedScheduler):
            raise BackendConfigError(
                f"{type(self).__name__} does not work with chained schedulers; use one scheduler "
                "or a sequence"
            )
        self._take([scheduler], optimizer, param_group_tags)
        super().__init__(optimizer, scheduler.total_iters, last_epoch, param_group_tags)

    def value(self, step: int, group: Group) -> float:
        """The scheduler's value times the factor of the group."""
        factor = group.get("adjust_learning_rate", group.get("adjust_val", 1.0))
        return self.schedulers[0].value(step, group) * float(factor)


def _tags(tags: Tags) -> frozenset[str | None]:
    return frozenset([tags]) if tags is None or isinstance(tags, str) else frozenset(tags)
