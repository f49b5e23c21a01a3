"""Listeners of traced tensors: the names are here so that scripts import; a listener is refused."""

from typing import Any, NoReturn

from wafer_backend.errors import BackendConfigError

__all__ = ["create_listener", "register_traced_tensor_hook"]


def create_listener(listener_type: str | None = None, **settings: Any) -> NoReturn:
    """Raises BackendConfigError: steps run eagerly, so there is no graph to listen to."""
    _refuse(f"the listener {listener_type!r}")


def register_traced_tensor_hook(hook: Any) -> NoReturn:
    """Raises BackendConfigError: steps run eagerly, so there is no graph to listen to."""
    _refuse("a hook for traced tensors")


def _refuse(what: str) -> NoReturn:
    raise BackendConfigError(
        f"{what} is not supported: steps run eagerly and there is no graph whose tensors have "
        "names; use hooks of torch.nn.Module, or summarize_tensor, and take the listener out of "
        "the config"
    )
