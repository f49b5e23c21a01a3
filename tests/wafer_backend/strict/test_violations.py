"""Each way to break a rule is caught by name, on the line of the script, with how to mend it."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import wafer_backend as cstorch
from wafer_backend.errors import StrictError
from wafer_backend.strict import RULES
from wafer_backend.strict.rules import OURS

HERE = Path(__file__).name


class Model(nn.Module):
    """Log-probabilities of 3 classes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return F.log_softmax(self.second(F.relu(self.first(x))), dim=-1)


@dataclass
class Script:
    """A small script in strict mode. `inside` runs in the step, on the loss and its 1-based number;
    `outside` in the loop, on what the step returned; `batches` come from the loader."""

    model: Callable[[], nn.Module] = Model
    inside: Callable[[Tensor, int], Any] = lambda loss, step: None
    outside: Callable[[Tensor, int], Any] = lambda loss, step: None
    batches: list[tuple[Tensor, Tensor]] = field(default_factory=lambda: [batch()] * 4)
    optimizer: Callable[..., Any] = cstorch.optim.SGD

    def run(self) -> list[float]:
        torch.manual_seed(0)
        backend = cstorch.backend("CSX", strict=True)
        cstorch.backends.csx.performance.micro_batch_size = 2
        model = self.model()
        compiled = cstorch.compile(model, backend)
        optimizer = self.optimizer(model.parameters(), lr=0.1, momentum=0.9)
        losses: list[float] = []

        @cstorch.trace
        def training_step(batch: Any, step: int) -> Tensor:
            inputs, targets = batch
            loss = F.nll_loss(compiled(inputs), targets)
            loss.backward()
            self.inside(loss, step)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        @cstorch.step_closure
        def log(loss: Tensor) -> None:
            print(loss)
            losses.append(loss.item())

        executor = cstorch.utils.data.DataExecutor(self.batches)
        for step, batch in enumerate(executor, start=1):
            loss = training_step(batch, step)
            self.outside(loss, step)
            log(loss)
        return losses


def batch(samples: int = 8, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 4, generator=generator)
    return x.to(dtype), torch.arange(samples) % 3


def forward(change: Callable[[Tensor, Any], Tensor]) -> Callable[[], nn.Module]:
    """A model whose hidden values go through `change(hidden, model)`."""

    class Changed(Model):
        def __init__(self) -> None:
            super().__init__()
            self.calls = 0
            self.register_buffer("scale", torch.ones(()))

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return F.log_softmax(self.second(change(F.relu(self.first(x)), self)), dim=-1)

    return Changed


def after(calls: int, then: Callable[[Tensor], Tensor], else_: Callable[[Tensor], Tensor]) -> Any:
    """What a module does that counts its calls: a batch of 8 is 4 leaves."""
    return forward(lambda h, model: then(h) if model.calls > calls else else_(h))


def write_to_input(x: Tensor) -> Tensor:
    x += 1
    return x


class WritesToInput(Model):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(write_to_input(x))


class Wide(Model):
    def __init__(self) -> None:
        super().__init__()
        self.double()


held: list[Tensor] = []

SAME, TWICE = (lambda h: h * 1.0), (lambda h: h * 1.0 * 1.0)

VIOLATIONS = {
    "item": ("value-fetched", Script(inside=lambda loss, step: loss.item()), ".item()"),
    "item in the loop": (
        "value-fetched",
        Script(outside=lambda loss, step: loss.item()),
        ".item()",
    ),
    "float": ("value-fetched", Script(outside=lambda loss, step: float(loss)), "float(...)"),
    "what follows from a loss": (
        "value-fetched",
        Script(outside=lambda loss, step: float(loss.detach() * 2)),
        "float(...)",
    ),
    "if": ("value-fetched", Script(inside=lambda loss, step: 1 if loss > 0 else 2), "bool(...)"),
    "print": ("value-fetched", Script(outside=lambda loss, step: print(loss)), "printing"),
    "format": ("value-fetched", Script(outside=lambda loss, step: f"{loss:.2f}"), "formatting"),
    "tolist": ("value-fetched", Script(inside=lambda loss, step: loss.tolist()), ".tolist()"),
    "numpy": (
        "value-fetched",
        Script(inside=lambda loss, step: loss.detach().numpy()),
        ".numpy()",
    ),
    "cpu": ("value-fetched", Script(inside=lambda loss, step: loss.cpu()), ".cpu()"),
    'to("cpu")': ("value-fetched", Script(inside=lambda loss, step: loss.to("cpu")), '.to("cpu")'),
    "if in the model": (
        "value-fetched",
        Script(forward(lambda h, model: h if h.sum() > 0 else -h)),
        "bool(...), as an if does, in the forward of Changed",
    ),
    "a writer in the loop": (
        "value-fetched",
        Script(outside=lambda loss, step: writer().add_scalar("loss", loss, step)),
        ".item()",
    ),
    "a weight in the loop": (
        "value-fetched",
        Script(outside=lambda loss, step: [float(p.sum()) for p in weights()]),
        "float(...)",
    ),
    "another branch": (
        "graph-changed",
        Script(after(6, torch.tanh, torch.sigmoid)),
        "runs tanh(float32[2, 8]); operation",
    ),
    "one leaf more operations": ("graph-changed", Script(after(6, TWICE, SAME)), "runs mul"),
    "a longer loop in the step": (
        "graph-changed",
        Script(inside=lambda loss, step: [loss * 2 for _ in range(step)]),
        "has operation",
    ),
    "a shorter loop in the step": (
        "graph-changed",
        Script(inside=lambda loss, step: [loss * 2 for _ in range(4 - step)]),
        "ends after",
    ),
    "another shape inside": (
        "graph-changed",
        Script(inside=lambda loss, step: torch.cat([loss.detach().view(1)] * step) * 2),
        "runs cat(float32[1], float32[1])",
    ),
    "another dtype inside": (
        "graph-changed",
        Script(inside=lambda loss, step: loss.to(torch.float16 if step > 1 else torch.bfloat16)),
        "torch.float16",
    ),
    "a number of Python": (
        "scalar-changed",
        Script(inside=lambda loss, step: loss * (0.5 / step)),
        "gives mul the number 0.25; in the first run it was 0.5",
    ),
    "a smaller last batch": (
        "batch-changed",
        Script(batches=[batch(), batch(), batch(6)]),
        "[0][0] is float32[6, 4]; in the first step it was float32[8, 4]",
    ),
    "a batch of another dtype": (
        "batch-changed",
        Script(batches=[batch(), batch(dtype=torch.bfloat16)]),
        "is bfloat16[8, 4]; in the first step it was float32[8, 4]",
    ),
    "an optimizer of torch with state": (
        "state-in-step",
        Script(optimizer=torch.optim.SGD),
        "training_step",
    ),
    "nonzero": (
        "shape-from-data",
        Script(inside=lambda loss, step: torch.ones(3).nonzero()),
        "nonzero in training_step",
    ),
    "a boolean mask": (
        "shape-from-data",
        Script(forward(lambda h, model: h[h > -1].view(h.shape))),
        "index in the forward of Changed",
    ),
    "masked_select": (
        "shape-from-data",
        Script(forward(lambda h, model: h.masked_select(h > -1).view(h.shape))),
        "masked_select in",
    ),
    "unique": (
        "shape-from-data",
        Script(inside=lambda loss, step: torch.unique(torch.arange(3))),
        "_unique2 in",
    ),
    "float64": (
        "dtype-unsupported",
        Script(forward(lambda h, model: h.double().float())),
        "gives float64[2, 8]",
    ),
    "complex": (
        "dtype-unsupported",
        Script(inside=lambda loss, step: torch.fft.fft(torch.ones(4))),
        "gives complex64[",
    ),
    "a batch of float64": (
        "dtype-unsupported",
        Script(batches=[batch(dtype=torch.float64)]),
        "[0][0] is float64[8, 4]",
    ),
    "weights of float64": ("dtype-unsupported", Script(Wide), "parameter first.weight is float64"),
    "writing to an input": (
        "input-modified",
        Script(WritesToInput),
        "add_ in the forward of WritesToInput writes to an input",
    ),
    "losses in a list": (
        "tensor-held",
        Script(outside=lambda loss, step: held.append(loss)),
        "made here in step 1, float32[], is still held in step 3",
    ),
    "tensors of a step in a list": (
        "tensor-held",
        Script(inside=lambda loss, step: held.append(loss.detach() * 2)),
        "is still held in step 3",
    ),
}


def writer() -> Any:
    from wafer_backend.utils.tensorboard import SummaryWriter

    return SummaryWriter.__new__(SummaryWriter)


def weights() -> list[nn.Parameter]:
    from wafer_backend.backends import current

    return list(current._modules[0].module.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", VIOLATIONS)
def test_a_violation_is_caught_by_name(name: str) -> None:
    rule, script, text = VIOLATIONS[name]
    held.clear()
    with pytest.raises(StrictError) as caught:
        script.run()
    message = str(caught.value)
    assert caught.value.rule == rule, message
    assert text in message
    assert re.match(rf"\S*{HERE}:[1-9]\d* in \S+: ", message), message
    assert f"On the wafer, {RULES[rule].why}. To mend it, {RULES[rule].mend}. [" in message
    assert message.endswith(f". [{rule}: {RULES[rule].source}]")
    assert "\n" not in message
    held.clear()


def test_every_rule_is_broken_by_some_violation() -> None:
    assert {rule for rule, *_ in VIOLATIONS.values()} == set(RULES)
    assert len(VIOLATIONS) >= 12


def test_a_rule_names_its_document_or_says_that_it_is_ours() -> None:
    for rule in RULES.values():
        assert rule.source == OURS or "https://" in rule.source


def test_the_page_has_every_rule_with_its_source() -> None:
    page = (Path(__file__).parents[3] / "docs" / "strict.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line for line in page.splitlines() if line.startswith("| `")}
    assert set(rows) == set(RULES)
    for name, rule in RULES.items():
        assert (OURS in rows[name]) == (rule.source == OURS)
        for address in re.findall(r"https://\S+?(?=\))", rule.source):
            assert address in page


def test_the_line_is_the_one_that_breaks_the_rule() -> None:
    with pytest.raises(StrictError) as caught:
        Script(WritesToInput).run()
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    number = int(str(caught.value).split(":")[1].split()[0])
    assert lines[number - 1].strip() == "x += 1"


# What is no violation.

GOOD = {
    "nothing": Script(),
    "a number in a tensor": Script(forward(lambda h, model: h * model.scale)),
    "torch.where": Script(forward(lambda h, model: torch.where(h > 1, h, h * 0.5))),
    "indices of whole numbers": Script(forward(lambda h, model: h[:, torch.arange(8)])),
    "a loop of fixed length": Script(inside=lambda loss, step: [loss * 2 for _ in range(3)]),
    "to a device": Script(forward(lambda h, model: h.to(h.device))),
    "whole-number batches": Script(batches=[batch()] * 3),
    "clipping": Script(inside=lambda loss, step: nn.utils.clip_grad_norm_(weights(), 1.0)),
    "Adam": Script(
        optimizer=lambda parameters, lr, momentum: cstorch.optim.AdamW(parameters, lr=lr)
    ),
    "a host number": Script(outside=lambda loss, step: torch.tensor(step).item()),
    "a smaller leaf": Script(batches=[batch(7)] * 3),
}


@pytest.mark.parametrize("name", GOOD)
def test_a_good_script_passes_with_equal_losses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    strict = GOOD[name].run()
    cstorch.reset()
    real = cstorch.backend
    monkeypatch.setattr(cstorch, "backend", lambda kind, strict: real(kind))
    assert GOOD[name].run() == strict


def test_closures_of_an_evaluation_inside_the_loop_may_look() -> None:
    """As may the loop at what a closure has kept, which has a value."""
    seen: list[Tensor] = []

    @cstorch.trace
    def evaluation_step(x: Tensor) -> Tensor:
        return x.square().mean()

    @cstorch.step_closure
    def look(value: Tensor) -> None:
        assert float(value) >= 0
        seen.append(value)

    def evaluate(loss: Tensor, step: int) -> None:
        look(loss)
        for inputs, _ in cstorch.utils.data.DataExecutor([batch()] * 2):
            look(evaluation_step(inputs))
        assert float(seen[-1]) > 0

    Script(outside=evaluate).run()
    assert len(seen) == 4 * 3


@pytest.mark.parametrize("rule", ["recompute", "evict"])
def test_wherever_activations_wait(rule: str) -> None:
    cstorch.backends.csx.emulation.activations = rule
    with pytest.raises(StrictError) as caught:
        VIOLATIONS["another branch"][1].run()
    assert caught.value.rule == "graph-changed"
    cstorch.reset()
    cstorch.backends.csx.emulation.activations = rule
    assert len(GOOD["torch.where"].run()) == 4


def test_python_without_tensors_is_not_seen() -> None:
    seen: list[int] = []
    Script(inside=lambda loss, step: seen.append(step)).run()
    assert seen == [1, 2, 3, 4]


def test_strict_is_for_csx() -> None:
    with pytest.raises(cstorch.BackendConfigError, match="no setting 'strict'"):
        cstorch.backend("CPU", strict=True)


def test_the_script_may_keep_what_its_last_step_returned() -> None:
    """A second loop begins while the names of the first still hold its last tensors."""
    kept: dict[int, Tensor] = {}
    script = Script(outside=lambda loss, step: kept.update({0: loss}))
    script.run()
    steps = [0]

    @cstorch.trace
    def another(x: Tensor) -> Tensor:
        steps[0] += 1
        return x * 2

    for inputs, _ in cstorch.utils.data.DataExecutor([batch()] * 4):
        another(inputs)
    assert steps == [4]
    assert kept


@pytest.mark.parametrize("name", ["nothing", "if in the model", "float64"])
def test_also_where_cbfloat16_is_emulated(name: str) -> None:
    cstorch.backends.csx.emulation.cbfloat16 = "exact"
    cstorch.amp.set_half_dtype("cbfloat16")
    if name in GOOD:
        losses = GOOD[name].run()
        assert losses[-1] < losses[0]
        return
    rule, script, _ = VIOLATIONS[name]
    with pytest.raises(StrictError) as caught:
        script.run()
    assert caught.value.rule == rule
