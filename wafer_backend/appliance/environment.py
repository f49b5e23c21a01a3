"""The environment of the processes of a cluster, which is that of this process."""

import os

appliance_environ = os.environ

__all__ = ["appliance_environ"]
