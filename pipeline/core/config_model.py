"""Typed, frozen configs: pydantic models read from strict YAML, with errors a user can act on."""

import difflib
import json
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from pipeline.core.errors import ConfigError, printable
from pipeline.core.strict_yaml import Loaded, loads_value


class FrozenModel(BaseModel):
    """Base of every config section: immutable, no unknown keys, no silent type conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


_BYTE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
               "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]+)", value)
    if not found or found[2] not in _BYTE_UNITS:
        raise ValueError(
            f"expected bytes such as 1048576 or '64 MiB' (units {', '.join(_BYTE_UNITS)})"
        )
    return int(float(found[1]) * _BYTE_UNITS[found[2]])


def _share(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", value)
    if not found:
        raise ValueError("expected a share such as 0.01 or '1 %'")
    return float(Decimal(found[1]) / 100)


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
"""A size in bytes: an integer, or a string with a unit such as `64 MiB`."""

Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]
"""A share between 0 and 1: a number, or a string such as `0.17 %`."""

Model = TypeVar("Model", bound=BaseModel)


def parse(model: type[Model], loaded: Loaded, overrides: Iterable[str] = ()) -> Model:
    """Validate a loaded file, after applying `--set dotted.key=value` overrides.

    Raises ConfigError: `FILE:LINE: dotted.key: expected …; got …`, with a did-you-mean for keys.
    """
    value = json.loads(json.dumps(loaded.value))
    overridden = [_override(value, text) for text in overrides]
    try:
        return model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise ConfigError(_explain(model, loaded, first, overridden)) from None


def _override(value: Any, text: str) -> str:
    dotted, equals, right = text.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {printable(text)}: expected dotted.key=value")
    target, *_ = [value]
    *parents, last = dotted.split(".")
    for name in parents:
        target = _child(target, name, dotted)
    if isinstance(target, list):
        if not last.isdigit() or int(last) >= len(target):
            raise ConfigError(f"--set {dotted}: there is no item {last}")
        target[int(last)] = loads_value(right)
    else:
        target[last] = loads_value(right)
    return dotted


def _child(target: Any, name: str, dotted: str) -> Any:
    if isinstance(target, list) and name.isdigit() and int(name) < len(target):
        return target[int(name)]
    if isinstance(target, dict):
        child = target.setdefault(name, {})
        if isinstance(child, dict | list):
            return child
    raise ConfigError(f"--set {dotted}: {name} is not a section")


def _explain(model: type[BaseModel], loaded: Loaded, error: Any, overridden: list[str]) -> str:
    location = [str(part) for part in error["loc"]]
    dotted = ".".join(location)
    option = next((o for o in overridden if o == dotted or o.startswith(f"{dotted}.")), None)
    place = f"--set {option}" if option else f"{loaded.where(dotted)}: {dotted}"
    where = printable(place, 1000)
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key{_did_you_mean(model, location)}"
    if error["type"] == "missing":
        return f"{where}: missing; expected {_described(model, location)}"
    message = error["msg"].removeprefix("Value error, ")
    message = message.replace("Input should be", "expected")
    message = message.replace(
        "Input is not a valid path for <class 'pathlib.Path'>", "expected a path"
    )
    message = re.sub(r"^\w+ should have (.*?) after validation.*", r"expected \1", message)
    got = printable(json.dumps(error["input"], ensure_ascii=False, default=str), 60)
    return f"{where}: {message}; got {got}{_boolean_hint(error)}"


def _boolean_hint(error: Any) -> str:
    words = ("yes", "no", "on", "off", "True", "False", "YES", "NO")
    return " (write true or false)" if error["input"] in words else ""


def _model_at(model: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    """The model at a place; of a union the one whose tag, a value it has, stands next."""
    options = [model]
    for name in location:
        if name.isdigit():
            continue
        fields = [option.model_fields[name] for option in options if name in option.model_fields]
        if fields:
            options = [found for info in fields for found in _models_in(info.annotation)]
        else:
            options = [option for option in options if _has_tag(option, name)] or options
    return options[0] if options else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]


def _has_tag(model: type[BaseModel], tag: str) -> bool:
    return any(tag in get_args(info.annotation) for info in model.model_fields.values())


def _did_you_mean(model: type[BaseModel], location: list[str]) -> str:
    parent = _model_at(model, location[:-1])
    names = list(parent.model_fields) if parent else []
    close = difflib.get_close_matches(location[-1], names, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; expected one of {', '.join(names)}" if names else ""


def _described(model: type[BaseModel], location: list[str]) -> str:
    parent = _model_at(model, location[:-1])
    info = parent.model_fields.get(location[-1]) if parent else None
    return info.description if info and info.description else "a value"
