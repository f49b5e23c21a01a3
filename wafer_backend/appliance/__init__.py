"""The names of `cerebras.appliance` that scripts import; there is no appliance behind them."""

from wafer_backend.appliance import environment, errors, log, storage, utils
from wafer_backend.appliance.log import logger

__all__ = ["environment", "errors", "log", "logger", "storage", "utils"]

DEFAULT_COMPILE_DIR = "./cached_compile"
