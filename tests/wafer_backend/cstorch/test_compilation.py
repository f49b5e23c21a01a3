"""`compile`: what binds when, and that a compiled module is the module on a global batch."""

import pytest
import torch
from torch import nn

import wafer_backend as cstorch
from wafer_backend import backends
from wafer_backend.backends.base import ClusterConfig
from wafer_backend.errors import BackendConfigError


class Classifier(nn.Module):
    def __init__(self, dropout: float = 0.0, *, returns_loss: bool = False) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(6, 8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3)
        )
        self.returns_loss = returns_loss

    def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> torch.Tensor:
        logits = self.layers(x)
        if not self.returns_loss:
            return logits
        return nn.functional.cross_entropy(logits, labels)


def batch(seed: int = 0, samples: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 6, generator=generator)
    return x, torch.randint(3, (samples,), generator=generator)


def made(**settings) -> Classifier:
    torch.manual_seed(0)
    return Classifier(**settings)


def test_outputs_and_gradients_are_the_modules_own():
    plain, streamed = made(), made()
    compiled = cstorch.compile(streamed, "CSX")
    x, labels = batch()
    expected = nn.functional.cross_entropy(plain(x), labels)
    expected.backward()
    loss = nn.functional.cross_entropy(compiled(x), labels)
    loss.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(streamed.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("kind", ["CSX", "CPU"])
def test_a_loss_inside_is_the_mean_over_the_global_batch(kind):
    plain, model = made(returns_loss=True), made(returns_loss=True)
    compiled = cstorch.compile(model, kind)
    backends.csx.performance.micro_batch_size = 3
    expected = plain(*batch())
    expected.backward()
    loss = compiled(*batch())
    loss.backward()
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(model.layers[0].weight.grad, plain.layers[0].weight.grad)


def test_a_sum_inside():
    class Total(Classifier):
        def forward(self, x, labels=None):
            return self.layers(x).square().sum()

    torch.manual_seed(0)
    model = Total()
    compiled = cstorch.compile(model, "CSX", loss_reduction="sum")
    x, _ = batch()
    torch.testing.assert_close(compiled(x), model.layers(x).square().sum())


def trained(num_csx: int, steps: int, late_cluster: bool = False) -> list[str]:
    """Losses of some steps with dropout, as exact hexadecimal floats."""
    cstorch.reset()
    torch.manual_seed(7)
    config = ClusterConfig(num_csx=num_csx)
    backend = (
        cstorch.backend("CSX") if late_cluster else cstorch.backend("CSX", cluster_config=config)
    )
    model = made(dropout=0.5)
    compiled = cstorch.compile(model, backend)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    if late_cluster:
        backends.configure_cluster(config)
    found = []
    for step in range(steps):
        x, labels = batch(step)
        loss = nn.functional.cross_entropy(compiled(x), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item().hex())
    return found


def test_num_csx_may_come_after_compile_and_changes_no_bit():
    one = trained(1, 4)
    assert trained(3, 4) == trained(3, 4, late_cluster=True) == one
    assert len(set(one)) == 4


def test_nothing_binds_before_the_first_call():
    compiled = cstorch.compile(made(), "CSX")
    assert compiled.engine is None
    assert compiled.bound_num_csx is None
    cstorch.current_backend().cluster_config.num_csx = 2
    backends.csx.performance.micro_batch_size = 2
    cstorch.amp.set_half_dtype("bfloat16")
    compiled(batch()[0])
    config = compiled.engine.config
    assert (config.num_csx, config.micro_batch_size, config.precision) == (2, 2, "bfloat16")
    assert compiled.bound_num_csx == 2


def test_the_cluster_is_bound_by_the_first_step():
    compiled = cstorch.compile(made(), "CSX")
    compiled(batch()[0])
    with pytest.raises(BackendConfigError, match="num_csx cannot change"):
        cstorch.current_backend().cluster_config.num_csx = 4
    with pytest.raises(BackendConfigError, match="num_csx cannot change from 1 to 4"):
        backends.configure_cluster(ClusterConfig(num_csx=4))
    backends.configure_cluster(ClusterConfig(num_csx=1, job_labels=["a=b"]))
    compiled(batch()[0])


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda: setattr(backends.csx.performance, "micro_batch_size", 4), "micro_batch_size"),
        (lambda: setattr(backends.csx.emulation, "threads", 2), "threads"),
        (lambda: cstorch.amp.set_half_dtype("bfloat16"), "precision"),
    ],
)
def test_settings_are_bound_by_the_first_step(change, name):
    compiled = cstorch.compile(made(), "CSX")
    compiled(batch()[0])
    change()
    with pytest.raises(BackendConfigError, match=f"{name} was .* at the first step and is .* now"):
        compiled(batch()[0])


@pytest.mark.parametrize(
    ("mixed_precision", "half", "expected"),
    [
        (None, None, "float32"),
        (None, "bfloat16", "bfloat16"),
        (True, None, "float16"),
        (False, "bfloat16", "float32"),
    ],
)
def test_precision(mixed_precision, half, expected):
    backend = cstorch.backend("CSX", mixed_precision=mixed_precision)
    if half is not None:
        cstorch.amp.set_half_dtype(half)
    compiled = cstorch.compile(made(), backend)
    compiled(batch()[0])
    assert compiled.engine.config.precision == expected


def test_none_is_one_leaf_of_the_whole_batch():
    compiled = cstorch.compile(made(), "CSX")
    backends.csx.performance.micro_batch_size = None
    compiled(batch()[0])
    assert compiled.engine.config.micro_batch_size == 8


def test_more_systems_than_leaves():
    cstorch.backend("CSX", cluster_config=ClusterConfig(num_csx=5))
    backends.csx.performance.micro_batch_size = 2
    compiled = cstorch.compile(made())
    with pytest.raises(BackendConfigError, match=r"num_csx = 5 .* 4 leaves"):
        compiled(batch()[0])


def test_it_has_the_face_of_the_module():
    model = made(dropout=0.5)
    compiled = cstorch.compile(model, "CSX")
    assert compiled.eval() is compiled
    assert not model.training
    assert not compiled.training
    assert compiled.train().training
    assert list(compiled.parameters()) == list(model.parameters())
    assert dict(compiled.named_parameters()).keys() == dict(model.named_parameters()).keys()
    assert compiled.state_dict().keys() == model.state_dict().keys()
    assert compiled.layers is model.layers
    assert compiled.apply(lambda module: None) is compiled
    assert len(list(compiled.modules())) == 6
    compiled.load_state_dict({name: torch.zeros_like(w) for name, w in model.state_dict().items()})
    assert model.layers[0].weight.abs().sum() == 0
    compiled.temperature = 0.5
    assert model.temperature == 0.5
    assert "compiled for Backend(CSX" in repr(compiled)
    with pytest.raises(AttributeError, match="nonsense"):
        compiled.nonsense  # noqa: B018


def test_evaluation_learns_nothing():
    model = made(dropout=0.5)
    compiled = cstorch.compile(model, "CSX").eval()
    x, _ = batch()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert compiled.progress()["step"] == 1


def test_moving_is_for_before_the_first_step():
    compiled = cstorch.compile(made(), "CSX")
    assert compiled.to("cpu") is compiled
    compiled(batch()[0])
    with pytest.raises(BackendConfigError, match="after its first step"):
        compiled.to("cpu")


def test_refused():
    with pytest.raises(BackendConfigError, match=r"takes a torch.nn.Module, got list"):
        cstorch.compile([], "CSX")
    with pytest.raises(BackendConfigError, match="no backend yet"):
        cstorch.compile(made())
    with pytest.raises(BackendConfigError, match=r"CompiledModule\(module, config\)"):
        cstorch.compile(made(), cstorch.BackendConfig(target="CSX", micro_batch_size=1))
    with pytest.raises(BackendConfigError, match="no parameters"):
        cstorch.compile(nn.ReLU(), "CSX")
    with pytest.raises(BackendConfigError, match="it is CSX, not CPU"):
        cstorch.compile(made(), "CPU")
    old = cstorch.current_backend()
    cstorch.reset()
    with pytest.raises(BackendConfigError, match="not the process's current one"):
        cstorch.compile(made(), old)


def test_progress_goes_from_run_to_run():
    compiled = cstorch.compile(made(), "CSX")
    torch.manual_seed(7)
    assert backends.run_state() == {"modules": [{}]}
    for step in range(3):
        compiled(batch(step)[0])
    state = backends.run_state()
    (progress,) = state["modules"]
    assert progress["step"] == 4
    assert progress["seed"] == 7
    assert progress["micro_batch_size"] == compiled.engine.micro_batch_size

    backends.load_run_state({"modules": [{"step": 99, "seed": 1, "micro_batch_size": 1}]})
    assert backends.run_state() == state, "a module that has run is left alone"

    cstorch.reset()
    resumed = cstorch.compile(made(), "CSX")
    backends.load_run_state(state)
    assert backends.run_state() == state
    resumed(batch(3)[0])
    assert resumed.engine.step == 5
    assert resumed.engine.config.seed == 7


def test_progress_may_be_loaded_before_compile():
    progress = {"step": 5, "seed": 3, "micro_batch_size": 2, "loss_scale": None}
    backends.load_run_state({"modules": [{}, progress]})
    first, second = cstorch.compile(made(), "CSX"), cstorch.compile(made(), "CSX")
    first(batch()[0])
    second(batch()[0])
    assert (first.engine.step, second.engine.step) == (2, 6)
    assert (second.engine.micro_batch_size, second.engine.config.seed) == (2, 3)


def test_another_leaf_size_on_resume_is_warned_about():
    compiled = cstorch.compile(made(), "CSX")
    backends.load_run_state(
        {"modules": [{"step": 5, "seed": 0, "micro_batch_size": 2, "loss_scale": None}]}
    )
    backends.csx.performance.micro_batch_size = 4
    with pytest.warns(
        UserWarning, match="4 samples in a leaf, but the run of the checkpoint had 2"
    ):
        compiled(batch()[0])


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_a_gpu_for_wafers_is_asked_for_by_a_flag():
    compiled = cstorch.compile(made(), "CSX")
    backends.csx.emulation.device = "cuda"
    with pytest.raises(BackendConfigError, match="torch finds no CUDA device"):
        compiled(batch()[0])


def test_inputs_in_half_are_computed_in_float32_where_that_is_asked_for() -> None:
    """What `launch --precision float32` sets: data processors make halves, weights are float32."""
    cstorch.backends.csx.emulation.precision = "float32"
    cstorch.backend("CSX")
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    samples = torch.randn(6, 4, dtype=torch.float16)
    cstorch.amp.set_half_dtype("float16")
    output = cstorch.compile(model)(samples)
    assert output.dtype == torch.float32
    torch.testing.assert_close(output, model(samples.float()))
