"""Where the modules of the cstorch API are in this package, when they have another name here."""

MODULES = {
    "appliance.cluster": "appliance",
    "appliance.cluster.client": "appliance",
    "appliance.environment": "appliance",
    "appliance.errors": "errors",
    "appliance.log": "appliance",
    "appliance.run_utils": "backends.debug_args",
    "appliance.storage": "appliance",
    "appliance.storage.base_storage": "appliance",
    "appliance.storage.h5_storage": "appliance",
    "appliance.storage.s3_storage": "appliance",
    "appliance.utils": "appliance",
    "appliance.utils.classes": "appliance",
    "appliance.utils.debug_args": "backends.debug_args",
    "appliance.utils.file": "appliance",
    "appliance.utils.ini": "backends.debug_args",
    "appliance.utils.units": "appliance",
    "backend": "backends",
    "backend.ltc_backend": "tracing",
    "cirh": "cstorch.cirh",
    "core": "cstorch.core",
    "core.annotation": "cstorch.core",
    "core.compile": "tracing",
    "core.modes": "cstorch.core",
    "distributed.cluster_resolver": "distributed",
    "distributed.service_resolver": "distributed",
    "experimental": "",
    "experimental.listener": "cstorch.core",
    "lib": "cstorch.core",
    "listener": "cstorch.core",
    "metrics.metric": "metrics.base",
    "nn": "cstorch.nn",
    "nn.functional": "cstorch.nn",
    "saver": "storage.checkpoint",
    "saver.pt_h5_saver": "storage.checkpoint",
    "storage.constants": "storage",
    "storage.serializers": "storage",
    "utils.call_once": "utils.nest",
    "utils.data.data_executor": "utils.data.executor",
    "utils.data.dataloader": "utils.data.loader",
    "utils.data.sampler": "utils.data.samples",
    "utils.data.utils": "utils.data",
    "utils.kernel": "cstorch.core",
    "utils.num_kv_groups": "cstorch.core",
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
