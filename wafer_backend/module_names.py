"""Where the modules of the cstorch API are in this package, when they have another name here."""

MODULES = {
    "appliance.storage.base_storage": "appliance.storage",
    "appliance.storage.h5_storage": "appliance.storage",
    "appliance.storage.s3_storage": "appliance.storage",
    "backend": "backends",
    "backend.ltc_backend": "backends.hooks",
    "core": "cstorch.core",
    "core.annotation": "cstorch.annotations",
    "core.compile": "tracing",
    "core.modes": "cstorch.modes",
    "distributed.cluster_resolver": "distributed",
    "distributed.service_resolver": "distributed",
    "experimental": "",
    "experimental.listener": "cstorch.listeners",
    "lib": "cstorch.core",
    "listener": "cstorch.listeners",
    "metrics.metric": "metrics.base",
    "nn": "cstorch.nn",
    "nn.functional": "cstorch.nn_functional",
    "saver": "storage.saver",
    "saver.pt_h5_saver": "storage.saver",
    "utils.call_once": "utils.calls",
    "utils.data.data_executor": "utils.data.executor",
    "utils.data.dataloader": "utils.data.loader",
    "utils.data.sampler": "utils.data.samples",
    "utils.data.utils": "utils.data",
    "utils.kernel": "cstorch.annotations",
    "utils.num_kv_groups": "cstorch.annotations",
    "utils.tracker": "utils.profiler",
    "utils.utils": "sparse.selection",
}
"""Path below `cerebras.pytorch` -> path below `wafer_backend`; empty: the package itself."""


def find_module_name(path: str) -> str:
    """The path below `wafer_backend` of a module of the API.

    >>> find_module_name("utils.data.sampler"), find_module_name("optim.lr_scheduler")
    ('utils.data.samples', 'optim.lr_scheduler')
    """
    path = path.removeprefix("experimental.") if path not in MODULES else path
    return MODULES.get(path, path)
