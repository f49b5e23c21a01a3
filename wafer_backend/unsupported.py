"""Names of the cstorch API that are not here, and why: asking for one says so by name."""

REASONS: dict[str, str] = {
    "add_debug_name": "there is no compiler whose debug names could be set; use name_scope",
    "cirh": "there is no compiler dialect",
    "configure": 'use backend("CSX", compile_only=..., cluster_config=...) and DataExecutor',
    "device": "use backend().device or current_torch_device()",
    "device_annotation": "there is no device placement to annotate",
    "experimental": "its names are at the top of this package",
    "export": "steps run eagerly, there is no graph to export",
    "get_debug_name": "there is no compiler whose debug names could be read",
    "nn": "use torch.nn; its modules stream as they are",
    "register_decomposition": "operators are torch's own, none is decomposed for a compiler",
    "save_summaries": "use summarize_scalar, or utils.tensorboard.SummaryWriter in a closure",
    "saver": "use save and load",
    "scalar_summary": "use summarize_scalar",
    "set_debug_scope": "there is no compiler whose debug names could be set; use name_scope",
    "trainer": "training loops of Model Zoo are not included; see `train` and examples/cstorch/",
}


def missing(name: str) -> AttributeError:
    """The error for a name that this package does not have.

    >>> print(missing("device_annotation"))
    wafer_backend does not support device_annotation: there is no device placement to annotate
    """
    if name in REASONS:
        return AttributeError(f"wafer_backend does not support {name}: {REASONS[name]}")
    return AttributeError(f"module 'wafer_backend' has no attribute {name!r}")
