"""The rules of strict mode: what is refused, why, how to mend it, and which document says so.

A rule whose `source` is OURS is in no document that was found; it follows from how a step is
traced, and is a choice of ours.
"""

from dataclasses import dataclass

_DOCS = "https://docs.cerebras.net/en/latest/wsc/tutorials/"
_TRAINING = "https://training-docs.cerebras.ai/rel-2.5.0/"

STATIC = f'"Static graphs" ({_DOCS}static_graphs.html)'
LIMITATIONS = f'"Limitations of PyTorch on Cerebras" ({_DOCS}cstorch-limitations.html)'
LOADERS = (
    f'"Creating custom dataloaders" ({_TRAINING}model-zoo/components/dataloaders/'
    "creating-custom-dataloaders)"
)
OURS = "our own choice; no document states it"


@dataclass(frozen=True)
class StrictRule:
    """`name`: of the rule. `why`: what the wafer does instead. `mend`: what to write. `source`: the
    document."""

    name: str
    why: str
    mend: str
    source: str


_RULES = (
    StrictRule(
        "value-fetched",
        "while a step is traced no tensor has a value yet, outside of a step closure",
        "pass the tensor to a function decorated with step_closure, or compute with tensors "
        "(torch.where instead of if)",
        LIMITATIONS,
    ),
    StrictRule(
        "graph-changed",
        "the graph of the first step is compiled, and there is no second compile",
        "run the same operations in every step; choose between values with torch.where, not with "
        "if, and make loops of a fixed length",
        STATIC,
    ),
    StrictRule(
        "scalar-changed",
        "a Python number is built into the graph when the first step is traced, so later steps "
        "would compute with the first number",
        "keep the number in a tensor that the step updates, such as a buffer; learning rates "
        "belong into cstorch.optim.lr_scheduler",
        STATIC,
    ),
    StrictRule(
        "batch-changed",
        "the shapes and dtypes of the inputs are compiled in, the batch size too",
        "give every batch the same shape: drop_last=True in the loader, padding to a fixed length",
        LOADERS,
    ),
    StrictRule(
        "state-in-step",
        "a state that appears in the first step has no value before it that the graph could begin "
        "with",
        "make the state before the first step: use an optimizer of cstorch.optim, whose state is "
        "allocated ahead, or a buffer made in __init__",
        LIMITATIONS,
    ),
    StrictRule(
        "shape-from-data",
        "the shape of the result depends on values, and the shapes of a graph are fixed when it is "
        "compiled",
        "keep a fixed shape: multiply by a mask, torch.where with three arguments, masked_fill, or "
        "top-k with a fixed k",
        STATIC,
    ),
    StrictRule(
        "dtype-unsupported",
        "weights are float32, and the rest is computed in float32 and a 16-bit format",
        "use float32; convert the data in the loader (x.float())",
        LIMITATIONS,
    ),
    StrictRule(
        "input-modified",
        "the batch is fed from the input workers; what is written into it goes nowhere",
        "write the result to a new tensor (x = x + 1 instead of x += 1)",
        OURS,
    ),
    StrictRule(
        "tensor-held",
        "a tensor of a step is gone when the step has ended",
        "pass it to a function decorated with step_closure, and keep what that gets",
        OURS,
    ),
)

RULES: dict[str, StrictRule] = {rule.name: rule for rule in _RULES}
