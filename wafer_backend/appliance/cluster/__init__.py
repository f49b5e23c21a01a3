"""The management of a cluster, which an emulated one has not."""

from wafer_backend.appliance.cluster import client

__all__ = ["client"]
