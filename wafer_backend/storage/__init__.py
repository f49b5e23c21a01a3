"""Checkpoints: nested state, its bytes, and the `.mdl` file."""

from wafer_backend.storage import constants, serializers

__all__ = ["constants", "serializers"]
