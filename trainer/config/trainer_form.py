"""The `trainer:` form of Model Zoo R2.3 and later, brought to the sections of R2.2."""

import itertools
import math
from collections.abc import Iterator
from typing import Any

from trainer.config.initializers import TruncatedNormal
from trainer.config.legacy_values import IN_TRAINER_FORM
from trainer.config.params_file import Draft

INIT = "trainer.init"

MOVED: dict[str, dict[str, str | None]] = {
    INIT: {"seed": "runconfig.seed", "model_dir": "runconfig.model_dir", "device": None},
    f"{INIT}.backend": {
        "backend_type": None, "artifact_dir": None, "compile_dir": None,
        "compile_only": "runconfig.compile_only", "validate_only": "runconfig.validate_only",
        "enable_distributed": None, "main_process_id": None, "dist_backend": None,
        "init_method": None, "sync_batchnorm": None,
    },
    f"{INIT}.backend.cluster_config": {
        "num_csx": "runconfig.num_csx", "max_wgt_servers": "runconfig.max_wgt_servers",
        "job_labels": "runconfig.job_labels", "num_workers_per_csx": None, "max_act_per_csx": None,
        "mgmt_address": None, "mgmt_namespace": None, "credentials_path": None, "mount_dirs": None,
        "python_paths": None, "job_priority": None, "job_time_sec": None, "cbcore_image": None,
        "disable_version_check": None, "disable_mount_check": None, "automount": None,
        "mount_all": None, "workflow_id": None, "notifications": None,
    },
    f"{INIT}.precision": {
        "enabled": "model.mixed_precision", "fp16_type": "model.fp16_type",
        "loss_scaling_factor": "optimizer.loss_scaling_factor",
        "max_gradient_norm": "optimizer.max_gradient_norm",
        "max_gradient_value": "optimizer.max_gradient_value", "precision_opt_level": None,
        "initial_loss_scale": None, "steps_per_increase": None, "min_loss_scale": None,
        "max_loss_scale": None, "overflow_tolerance": None, "log_loss_scale": None,
    },
    f"{INIT}.loop": {
        "num_steps": "runconfig.num_steps", "max_steps": "runconfig.max_steps",
        "num_epochs": "runconfig.num_epochs", "steps_per_epoch": "runconfig.steps_per_epoch",
        "eval_frequency": "runconfig.eval_frequency", "eval_steps": "runconfig.eval_steps",
        "grad_accum_steps": None,
    },
    f"{INIT}.checkpoint": {
        "steps": "runconfig.checkpoint_steps",
        "autoload_last_checkpoint": "runconfig.autoload_last_checkpoint",
        "disable_strict_checkpoint_loading": "runconfig.disable_strict_checkpoint_loading",
        "save_initial_checkpoint": "runconfig.save_initial_checkpoint",
        "checkpoint_root": None, "checkpoint_name": None, "strict_version": None,
    },
    f"{INIT}.logging": {
        "log_steps": "runconfig.log_steps", "log_level": None, "wsc_log_level": None,
        "enable_act_frequency": None,
    },
    f"{INIT}.autorestart": {
        "max_num_restarts": "runconfig.autorestart.max_num_restarts",
        "min_num_csx": "runconfig.autorestart.min_num_csx",
    },
}  # fmt: skip
"""Where a key of R2.2 stands in the trainer form; None: it has no effect here."""

_LEAF = "csx.performance.micro_batch_size"
CALLBACKS: dict[str, dict[str, tuple[str, ...]]] = {
    "KeepNCheckpoints": {"n": ("runconfig.max_checkpoints",)},
    "LoadCheckpointStates": {"load_checkpoint_states": ("runconfig.load_checkpoint_states",)},
    "OpProfiler": {
        "start_step": ("runconfig.op_profiler_config.start_step",),
        "end_step": ("runconfig.op_profiler_config.end_step",),
    },
    "GlobalFlags": {_LEAF: ("train_input.micro_batch_size", "eval_input.micro_batch_size")},
    "ScopedTrainFlags": {_LEAF: ("train_input.micro_batch_size",)},
    "ScopedValidateFlags": {_LEAF: ("eval_input.micro_batch_size",)},
}
"""Callbacks that say what keys of R2.2 do."""

IDLE_CALLBACKS = (
    "ComputeNorm",
    "NaNChecker",
    "CheckLoss",
    "FlopUtilization",
    "LogInputSummaries",
    "LogSparsity",
    "DumpActivations",
    "DebugArgsPath",
    "HFCacheDir",
    "ModelEvalMetrics",
    "RateProfiler",
    "SavePerformanceData",
    "Profiler",
    "LogOptimizerParamGroup",
    "WeightCompression",
)
LOGGERS = ("ProgressLogger", "TensorBoardLogger", "WandbLogger")
PARALLEL_MODELS = ("gptj", "gpt-neox", "falcon")
MODELS = (
    "gpt2",
    "gpt3",
    "llama",
    "btlm",
    "jais",
    "mistral",
    "mpt",
    "bloom",
    "gemma2",
    "mixtral",
    "santacoder",
    "starcoder",
    "bert",
    "t5",
    *PARALLEL_MODELS,
)
NORMAL = ("truncated_normal", "normal")
"""Initializers that muP can scale."""
OTHER_INIT = (
    "backend",
    "model",
    "optimizer",
    "schedulers",
    "precision",
    "loop",
    "checkpoint",
    "logging",
    "callbacks",
    "loggers",
    "autorestart",
    "sparsity",
)


def to_sections(draft: Draft) -> None:
    """Replace `trainer` by the sections of R2.2. Raises ConfigError for a key that is unknown or
    asks for what is not there."""
    trainer = draft.sections.pop("trainer")
    for key in draft.sections:
        raise draft.unknown(key, ["trainer"])
    if not isinstance(trainer, dict):
        raise draft.error("trainer", "expected one trainer, a mapping with init and fit")
    form = _Form(draft, {"trainer": trainer})
    form.mapping("trainer", ("init", "fit", "validate", "validate_all"))
    form.mapping(INIT, (*MOVED[INIT], *OTHER_INIT))
    if (sparsity := form.value(f"{INIT}.sparsity")) is not None:
        form.put("sparsity", sparsity, f"{INIT}.sparsity")
    form.section("model", f"{INIT}.model")
    _optimizer(form)
    form.section("train_input", "trainer.fit.train_dataloader")
    _validation(form)
    draft.sections.setdefault("runconfig", {})
    if start := form.value("trainer.fit.ckpt_path"):
        form.put("runconfig.checkpoint_path", start, "trainer.fit.ckpt_path")
    for path in ("trainer.validate.ckpt_path", "trainer.validate_all.ckpt_paths"):
        if form.value(path):
            raise draft.error(path, "not supported; use --mode eval and --checkpoint_path")
    for path in MOVED:
        _move(form, path)
    _callbacks(form)
    _defaults(form)


class _Form:
    """The trainer form being read, and the sections being made."""

    def __init__(self, draft: Draft, root: dict[str, Any]) -> None:
        self.draft = draft
        self.root = root

    def value(self, path: str) -> Any:
        value: Any = self.root
        for name in path.split("."):
            value = value.get(name) if isinstance(value, dict) else None
        return value

    def mapping(self, path: str, names: tuple[str, ...] = ()) -> dict[str, Any]:
        """The mapping at a path, {} for none; with `names`, the keys it may have."""
        value = self.value(path)
        if value is None:
            return {}
        if not isinstance(value, dict):
            raise self.draft.error(path, "expected a mapping")
        for key in value if names else ():
            if key not in names:
                raise self.draft.unknown(f"{path}.{key}", names)
        return value

    def section(self, name: str, path: str) -> None:
        self.draft.spelled[name] = path
        if self.value(path) is not None:
            self.draft.sections[name] = dict(self.mapping(path))

    def put(self, dotted: str, value: Any, path: str) -> None:
        *parents, last = dotted.split(".")
        target = self.draft.sections
        for name in parents:
            target = target.setdefault(name, {})
        target[last] = value
        self.draft.spelled[dotted] = path


def _move(form: _Form, path: str) -> None:
    table = MOVED[path]
    names = (*table, *OTHER_INIT) if path == INIT else (*table, "cluster_config")
    for key, value in form.mapping(path, names).items():
        here = f"{path}.{key}"
        if key not in table:
            continue
        if table[key] is None:
            form.draft.ignore(here)
        elif key == "eval_frequency" and isinstance(value, float):
            if value == 1.0:  # at the end, as without the key
                continue
            steps = form.value(f"{INIT}.loop.max_steps") or form.value(f"{INIT}.loop.num_steps")
            if not 0 < value < 1:
                raise form.draft.error(
                    here, "expected a number of steps, or a share of max_steps below 1"
                )
            if not isinstance(steps, int):
                raise form.draft.error(here, "a share of the steps needs loop.max_steps here")
            form.put("runconfig.eval_frequency", max(1, round(value * steps)), here)
        else:
            form.put(str(table[key]), value, here)


def _optimizer(form: _Form) -> None:
    path = f"{INIT}.optimizer"
    optimizers = form.mapping(path)
    form.draft.spelled["optimizer"] = path
    if len(optimizers) > 1:
        raise form.draft.error(path, f"expected one optimizer, found {', '.join(optimizers)}")
    for name in optimizers:
        form.section("optimizer", f"{path}.{name}")
        values = form.draft.sections.setdefault("optimizer", {})
        form.put("optimizer.optimizer_type", name, f"{path}.{name}")
        if "lr" in values:
            form.put("optimizer.learning_rate", values.pop("lr"), f"{path}.{name}.lr")
    schedulers = form.value(f"{INIT}.schedulers")
    if schedulers is None:
        return
    rates = list(_rates(form, schedulers, f"{INIT}.schedulers"))
    form.put("optimizer.learning_rate", [rate for rate, _ in rates], f"{INIT}.schedulers")
    for index, (_, where) in enumerate(rates):
        form.draft.spelled[f"optimizer.learning_rate.{index}"] = where


def _rates(form: _Form, entries: Any, path: str) -> Iterator[tuple[dict[str, Any], str]]:
    """The schedulers of a list, those within others laid out, and where each stands."""
    for index, entry in enumerate(entries if isinstance(entries, list) else [entries]):
        here = f"{path}.{index}" if isinstance(entries, list) else path
        if not isinstance(entry, dict) or len(entry) != 1:
            raise form.draft.error(here, "expected one scheduler, such as LinearLR: {...}")
        ((name, values),) = entry.items()
        here = f"{here}.{name}"
        if values is not None and not isinstance(values, dict):
            raise form.draft.error(here, "expected a mapping of its settings")
        values = dict(values or {})
        if name == "SequentialLR":
            inner = list(_rates(form, values.get("schedulers"), f"{here}.schedulers"))
            _check_milestones(form, values, [rate for rate, _ in inner], here)
            yield from inner
        elif name == "ScalePerParamLR":
            yield from _rates(form, values.get("scheduler"), f"{here}.scheduler")
        elif name in IN_TRAINER_FORM:
            yield {"scheduler": IN_TRAINER_FORM[name], **values}, here
        else:
            raise form.draft.unknown(here, [*IN_TRAINER_FORM, "SequentialLR", "ScalePerParamLR"])


def _check_milestones(
    form: _Form, values: dict[str, Any], rates: list[dict[str, Any]], path: str
) -> None:
    lengths = [rate.get("total_iters") for rate in rates[:-1]]
    given = values.get("milestones")
    if given is None or not all(isinstance(length, int) for length in lengths):
        return
    ends = list(itertools.accumulate(length for length in lengths if length is not None))
    if given != ends:
        raise form.draft.error(
            f"{path}.milestones", f"expected {ends}, where the total_iters of the schedulers end"
        )


def _validation(form: _Form) -> None:
    """One validation set: that of fit, or where there is none that of validate."""
    sources = (
        "trainer.fit.val_dataloader",
        "trainer.validate.val_dataloader",
        "trainer.validate_all.val_dataloaders",
    )
    form.mapping("trainer.fit", ("train_dataloader", "val_dataloader", "ckpt_path"))
    form.mapping("trainer.validate", ("val_dataloader", "ckpt_path"))
    form.mapping("trainer.validate_all", ("val_dataloaders", "ckpt_paths"))
    data_sets = [(path, value) for path in sources if (value := form.value(path)) is not None]
    if not data_sets:
        return
    path, value = data_sets[0]
    if isinstance(value, list):
        if len(value) != 1:
            raise form.draft.error(path, f"expected one data set, found {len(value)}")
        path, value = f"{path}.0", value[0]
    if not isinstance(value, dict):
        raise form.draft.error(path, "expected a mapping")
    form.draft.sections["eval_input"] = dict(value)
    form.draft.spelled["eval_input"] = path
    for other, another in data_sets[1:]:
        if another not in (value, [value]):
            form.draft.remark(
                other,
                f"another data set than {path}, which is used; only one validation data set is "
                "supported",
            )


def _callbacks(form: _Form) -> None:
    draft = form.draft
    for name, values, here in _named(form, f"{INIT}.callbacks"):
        if name in IDLE_CALLBACKS:
            draft.ignore(here)
        elif name not in CALLBACKS:
            raise draft.unknown(here, [*CALLBACKS, *IDLE_CALLBACKS])
        for key, value in values.items() if name in CALLBACKS else ():
            dotted_keys = CALLBACKS[name].get(key)
            if dotted_keys is None:
                draft.ignore(f"{here}.{key}")
            for dotted in dotted_keys or ():
                if dotted.partition(".")[0] in draft.sections:
                    form.put(dotted, value, f"{here}.{key}")
    for name, _, here in _named(form, f"{INIT}.loggers"):
        if name not in LOGGERS:
            raise draft.unknown(here, LOGGERS)
        draft.ignore(here)


def _named(form: _Form, path: str) -> Iterator[tuple[str, dict[str, Any], str]]:
    entries = form.value(path) or []
    if not isinstance(entries, list):
        raise form.draft.error(path, "expected a list")
    for index, entry in enumerate(entries):
        for name, values in entry.items() if isinstance(entry, dict) else [(str(entry), None)]:
            here = f"{path}.{index}.{name}"
            if values is not None and not isinstance(values, dict):
                raise form.draft.error(here, "expected a mapping of its settings")
            yield name, values or {}, here


def _defaults(form: _Form) -> None:
    model = form.draft.section("model")
    name = model.get("name")
    if name is not None and name not in MODELS:
        raise form.draft.error(
            "model.name", f"{name!r} is not supported; expected one of {', '.join(MODELS)}"
        )
    if name in PARALLEL_MODELS:
        model.setdefault("parallel_block", True)
        if model.setdefault("use_untied_layer_norm", False) is None:
            model["use_untied_layer_norm"] = False
    precision = form.mapping(f"{INIT}.precision")
    if precision and "enabled" not in precision:
        form.put("model.mixed_precision", True, f"{INIT}.precision")
        form.draft.remark(f"{INIT}.precision", "enabled: true, Model Zoo's default")
    _scaled_output_initializer(form.draft, model)


def _scaled_output_initializer(draft: Draft, model: dict[str, Any]) -> None:
    """With muP the trainer form gives `output_layer_initializer` before it is scaled by width and
    depth; in R2.2 keys, as here, it is the one that is used."""
    rule, base = model.get("output_layer_initializer"), model.get("mup_base_hidden_size")
    width, layers = model.get("hidden_size"), model.get("num_hidden_layers")
    if isinstance(rule, str):
        rule = {"name": rule}
    if not isinstance(rule, dict) or not base:
        return
    if str(rule.get("name", NORMAL[0])).lower() not in NORMAL:
        raise draft.error(
            "model.output_layer_initializer",
            f"{rule['name']} has no muP form; expected {' or '.join(NORMAL)}",
        )
    if rule == model.get("initializer"):
        del model["output_layer_initializer"]  # what follows from `initializer` is the same
    elif isinstance(width, int) and isinstance(layers, int) and isinstance(base, int):
        if min(width, layers, base) < 1:
            return
        factor = 1 / math.sqrt(2 * layers * width / base)
        widths = {"std": TruncatedNormal.model_fields["std"].default, **rule}
        for key in ("std", "a", "b"):
            if isinstance(widths.get(key), int | float):
                widths[key] *= factor
        model["output_layer_initializer"] = widths
