"""Names that Model Zoo programs import: what each does, or that it does nothing."""

import copy
import importlib
import inspect
import logging
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree

import wafer_backend as cstorch
from wafer_backend.cluster.labels import take_int32_labels
from wafer_backend.cstorch.core import (
    AnnotationMode,
    create_annotation,
    create_listener,
    kernel_annotater,
    register_traced_tensor_hook,
)
from wafer_backend.errors import BackendConfigError, CheckpointError
from wafer_backend.storage.checkpoint import PyTorchH5Saver
from wafer_backend.tracing import (
    register_after_tensor_to_cpu,
    register_trace_fn_post_hook,
    register_trace_fn_pre_hook,
)
from wafer_backend.utils.module_names import MODULES, find_module_name
from wafer_backend.utils.nest import call_once, recurse_spec, visit_torch_tensors


@pytest.fixture(autouse=True)
def fresh() -> Any:
    cstorch.reset()
    yield
    cstorch.reset()


def test_every_module_of_the_table_is_there() -> None:
    for path in MODULES:
        module = importlib.import_module(f"wafer_backend.{find_module_name(path)}".rstrip("."))
        if "." not in path and path != "backend":
            assert getattr(cstorch, path) is module
        if path.startswith("utils.") and "data" not in path:
            assert getattr(cstorch.utils, path.removeprefix("utils.")) is module


def test_int32_labels_on_csx_only() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    labels = torch.tensor([0, 2, 1, 2], dtype=torch.int32)
    expected = nn.functional.cross_entropy(logits, labels.long())
    losses = (nn.CrossEntropyLoss(), lambda x, y: nn.NLLLoss()(x.log_softmax(1), target=y))

    @cstorch.trace
    def step(labels: torch.Tensor) -> list[torch.Tensor]:
        return [loss(logits, labels) for loss in losses]

    with pytest.raises(RuntimeError, match="Long"):
        step(labels)
    cstorch.backend("CSX")
    assert all(torch.equal(value, expected) for value in step(labels))
    with take_int32_labels({"y": labels.long()}) as mode:
        assert mode is None


def test_annotations_and_hooks_leave_functions_as_they_are() -> None:
    @dataclass
    class Config(AnnotationMode.Config):
        name: str

    annotate = create_annotation(
        Config, lambda c, b: AnnotationMode.Attribute("n", c.name), name="x",
        enable_fwd=True, enable_bwd=False,
    )  # fmt: skip
    assert annotate(torch.matmul) is kernel_annotater("fast")(torch.matmul) is torch.matmul
    with pytest.raises(TypeError):
        create_annotation(Config, lambda c, b: None, wrong=1)  # type: ignore[arg-type, return-value]
    register_traced_tensor_hook(print).remove()
    with pytest.raises(BackendConfigError, match="the listener 'norm' is not supported"):
        create_listener(listener_type="norm")


def test_closures_report_their_tensors() -> None:
    seen: list[float] = []
    handle = register_after_tensor_to_cpu(lambda tensor, name: seen.append(tensor.item()))
    note = cstorch.step_closure(lambda *values: None)
    for batch in cstorch.utils.data.DataExecutor([torch.ones(2)], 2):
        note(batch.sum(), 3)
    handle.remove()
    for batch in cstorch.utils.data.DataExecutor([torch.ones(2)], 1):
        note(batch.sum(), 3)
    assert seen == [2.0, 2.0]


def test_nested_structures_name_their_tensors() -> None:
    Pair = namedtuple("Pair", "x y")
    nested = {"b": [torch.zeros(1), 5], "a": Pair(torch.ones(1), (torch.ones(2),))}
    found = {".".join(way): tensor.numel() for way, tensor in visit_torch_tensors(nested)}
    assert found == {"b.0": 1, "a.x": 1, "a.y.0": 2}
    spec = _pytree.tree_flatten(nested)[1]
    assert [".".join(way) for way in recurse_spec(spec)] == ["b.0", "b.1", "a.x", "a.y.0"]


def test_once() -> None:
    calls: list[int] = []

    @call_once()
    def note(value: int) -> int:
        calls.append(value)
        return value

    assert [note(1), note(2)] == [1, 1]
    assert calls == [1]


def test_parameter_groups_leave_out_biases_and_norms() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3), nn.Embedding(4, 3))
    model[2].weight.requires_grad = False
    decayed, others = cstorch.optim.configure_param_groups(model, {"weight_decay_rate": 0.1})
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert [id(p) for p in decayed["params"]] == [id(model[0].weight)]
    assert [id(p) for p in others["params"]] == [
        id(p) for p in (model[0].bias, model[1].weight, model[1].bias)
    ]


class Decoder(nn.Module):
    """Parameters named as in the decoders of Model Zoo."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding_layer, self.norm = nn.Embedding(4, 3), nn.LayerNorm(3)
        self.proj_q_dense_layer, self.linear_layer = nn.Linear(3, 3), nn.Linear(3, 3)
        self.lm_head = nn.Linear(3, 4, bias=False)


def test_parameter_groups_are_cut_by_factors_on_the_learning_rate() -> None:
    model = Decoder()
    optim = cstorch.optim
    section = {"weight_decay": 0.1, "adjust_learning_rate": {"decoder_kernel": 0.25}}
    groups = optim.configure_param_groups(model, section)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    found = [
        (
            group["weight_decay"],
            group["adjust_learning_rate"],
            [names[id(p)] for p in group["params"]],
        )
        for group in groups
    ]
    biases = ["norm.weight", "norm.bias", "proj_q_dense_layer.bias", "linear_layer.bias"]
    assert found == [
        (0.1, 0.25, ["proj_q_dense_layer.weight", "linear_layer.weight"]),
        (0.1, 1.0, ["embedding_layer.weight", "lm_head.weight"]),
        (0.0, 1.0, biases),
    ]
    section["adjust_learning_rate"] = {"embedding": 2.0, "decoder_kernel": 0.25}
    factors = [g["adjust_learning_rate"] for g in optim.configure_param_groups(model, section)]
    assert factors == [2.0, 0.25, 1.0, 1.0]
    optimizer = optim.configure_optimizer("adamw", groups, learning_rate=0.0)
    optim.configure_lr_scheduler(optimizer, 0.1, section["adjust_learning_rate"])
    assert [group["lr"] for group in optimizer.param_groups] == [0.025, 0.1, 0.1]
    expected = "adjust_learning_rate has no key 'head'; expected one of embedding, decoder_kernel"
    with pytest.raises(BackendConfigError, match=expected):
        optim.configure_param_groups(model, {"adjust_learning_rate": {"head": 2.0}})


def test_sections_of_params_files_are_checked() -> None:
    optim = cstorch.optim
    kind, arguments = optim.configure_optimizer_params(
        "adamw", {"learning_rate": [{"scheduler": "x"}], "optim_params": {"eps": 1e-8}}
    )
    assert kind is optim.AdamW and arguments["eps"] == 1e-8
    scaling = {"initial_loss_scale": 2.0**31, "max_loss_scale": 2.0**31, "steps_per_increase": 9}
    clipping = {"max_gradient_norm": 1.0, "max_gradient_value": None}
    section = {"learning_rate": 0.1, "optim_params": {"eps": 1e-8, **scaling}, **clipping}
    assert optim.configure_optimizer_params("adamw", section)[1] == {
        "learning_rate": 0.1,
        "eps": 1e-8,
    }
    with pytest.raises(BackendConfigError, match="AdamW has no argument 'epz'"):
        optim.configure_optimizer_params("adamw", {"optim_params": {"epz": 1}})
    schedule = {"scheduler": "Linear", "initial_learning_rate": 0.0}
    with pytest.raises(BackendConfigError, match="needs end_learning_rate"):
        optim.configure_scheduler_params(schedule)
    full = schedule | {"end_learning_rate": 1.0, "total_iters": 3}
    assert optim.configure_scheduler_params(full)[0] is optim.LinearLR
    assert cstorch.sparse.map_sparsity_algorithm("RigL") is cstorch.sparse.RigL


def test_schedulers_tell_the_arguments_of_their_init() -> None:
    optim = cstorch.optim
    linear = inspect.signature(optim.LinearLR.__init__).parameters
    assert list(linear)[:4] == ["self", "optimizer", "initial_learning_rate", "end_learning_rate"]
    assert linear["optimizer"].annotation is torch.optim.Optimizer
    for kind, base in (("LR", "LRScheduler"), ("WD", "WeightDecayScheduler")):
        sequential = inspect.signature(getattr(optim, f"Sequential{kind}").__init__)
        module = optim.lr_scheduler if kind == "LR" else optim.weight_decay_scheduler
        assert sequential.parameters["schedulers"].annotation == list[getattr(module, base)]
        piecewise = getattr(optim, f"PiecewiseConstant{kind}")
        assert issubclass(piecewise, optim.scheduler.PiecewiseConstantScheduler)


def test_precision_that_is_set_decides() -> None:
    amp, flags = cstorch.amp, cstorch.backends.csx.emulation
    assert amp.get_floating_point_dtype() is torch.float32
    amp.set_half_dtype("bfloat16")
    assert (amp.get_floating_point_dtype_str(), amp.mixed_precision()) == ("bfloat16", True)
    assert not amp.is_cbfloat16_tensor(torch.ones(1))
    flags.precision = "float32"
    amp.enable_mixed_precision(True)
    assert (amp.get_floating_point_dtype(), amp.mixed_precision()) == (torch.float32, False)
    flags.precision = "float16"
    assert amp.get_floating_point_dtype() is amp.get_half_dtype() is torch.float16


def test_a_saver_reads_tensor_by_tensor(tmp_path: Path) -> None:
    path = tmp_path / "a.mdl"
    saver = PyTorchH5Saver()
    saver.save(path, {"model": {"w": torch.arange(3)}, "step": 4})
    assert saver.is_valid_checkpoint(path) and not saver.is_valid_checkpoint(tmp_path / "b.mdl")
    (name,) = saver.tensor_names(path)
    assert torch.equal(saver.load_tensor(path, name), torch.arange(3))
    with pytest.raises(CheckpointError, match="has no tensor 'v'"):
        saver.load_tensor(path, "v")
    with pytest.raises(CheckpointError, match="cannot be added one by one"):
        saver.save_tensor(path, "v", torch.ones(1))


def test_loaders_metrics_and_backends_answer_what_trainers_ask() -> None:
    loaders = [cstorch.utils.data.DataLoader(lambda: [1]) for _ in range(2)]
    assert loaders[1].id == loaders[0].id + 1 and loaders[0].dataloader == [1]
    metric = cstorch.metrics.Accuracy()
    metric(labels=torch.ones(2), predictions=torch.ones(2))
    assert metric.num_updates == 1
    metric.reset()
    assert metric.num_updates == 0
    assert cstorch.current_backend(raise_exception=False, raise_warning=False) is None
    assert cstorch.BackendType.from_str("csx").is_csx
    model = nn.Linear(2, 2)
    cstorch.compile(model, cstorch.backend("CSX", micro_batch_size=3))
    assert model.device == torch.device("cpu")  # type: ignore[comparison-overlap]
    assert cstorch.backends.csx.performance.micro_batch_size == 3
    assert "artifact_dir" in cstorch.backends.get_backend_args("CSX")
    assert copy.copy(cstorch.utils.CSConfig(num_csx=2)).num_csx == 2
    spec = cstorch.distributed.service_resolver().cluster_spec
    assert (spec.task().rank, spec.num_csx, cstorch.distributed.get_world_size()) == (0, 1, 1)


def test_a_worker_cache_knows_what_fits(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a").write_bytes(b"x" * 7)
    full, size, free = cstorch.distributed.hit_worker_cache_limit(
        str(tmp_path / "data"), str(tmp_path / "not" / "there")
    )
    assert (full, size) == (False, 7) and free > 7


def test_debug_scopes_are_accepted_and_said_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        cstorch.set_debug_scope("decoder.fwd")
        cstorch.set_debug_scope(None)
    assert [record.getMessage() for record in caplog.records] == [
        "accepted without effect on an emulated cluster: set_debug_scope"
    ]


def test_debug_names_are_the_ways_to_modules() -> None:
    model = nn.Sequential(nn.ModuleDict({"fc": nn.Linear(1, 1)}))
    assert cstorch.get_debug_name(model) == "Sequential"
    cstorch.add_debug_name(model, "net")
    assert [cstorch.get_debug_name(m) for m in model.modules()] == ["net", "0", "0.fc"]


def test_hooks_run_around_traced_functions() -> None:
    order: list[str] = []
    handles = [
        register_trace_fn_pre_hook(lambda: order.append("before")),
        register_trace_fn_post_hook(lambda: order.append("after")),
    ]
    step = cstorch.trace(lambda: order.append("step"))
    step()
    for handle in handles:
        handle.remove()
    step()
    assert order == ["before", "step", "after", "step"]


def test_debug_flags_are_kept_until_reset() -> None:
    csx = cstorch.backends.csx
    csx.debug.debug_args.a.b = 1
    csx.debug.ini.check_nans = True
    csx.storage.s3.profile = "mine"
    csx.cluster.auto_taint = True
    assert csx.debug.debug_args.to_dict() == {"a": {"b": 1}}
    assert (csx.debug.ini.check_nans, csx.storage.s3.profile) == (True, "mine")
    cstorch.reset()
    assert csx.debug.debug_args.to_dict() == {} and csx.storage.s3.profile is None
