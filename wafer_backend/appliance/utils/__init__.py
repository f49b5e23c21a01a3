"""Small functions of `cerebras.appliance.utils`."""

from wafer_backend.appliance.utils import classes, debug_args, file, ini, units

__all__ = ["classes", "debug_args", "file", "ini", "units"]
