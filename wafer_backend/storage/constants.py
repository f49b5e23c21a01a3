"""Names in checkpoints of the API."""

__CSTORCH_VERSION__ = "__cstorch_version__"
