"""Typed, frozen configs: pydantic models read from strict YAML, with errors a user can act on."""

import ast
import functools
import inspect
import itertools
import json
import os
import re
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated, Any, TypeVar, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    ValidationError,
)
from pydantic.fields import FieldInfo
from pydantic_core import core_schema

from pipeline.config.yaml import YamlDocument, loads_value
from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.words import did_you_mean_or_all, pluralise


class FrozenModel(BaseModel):
    """Base of every config section: immutable, no unknown keys, no silent type conversion."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)


class ConfigSection(FrozenModel):
    """A section whose fields are described by the strings behind them (`described_fields`)."""


@functools.cache
def described_fields(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a model with what the strings behind them say. It reads the source, which no
    run should wait for."""
    fields = model.model_fields
    for section in (kind for kind in model.__mro__ if issubclass(kind, ConfigSection)):
        for field, behind in itertools.pairwise(_read_body(section)):
            match field, behind:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(words))),
                ):
                    fields[name].description = fields[name].description or " ".join(words.split())
    return fields


def _read_body(kind: type) -> list[ast.stmt]:
    """The statements of a class; none where the package is installed without its sources."""
    try:
        (statement,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
    except OSError:
        return []
    return statement.body if isinstance(statement, ast.ClassDef) else []


_BYTE_UNITS = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40,
               "kB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}  # fmt: skip


def _bytes(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([A-Za-z]+)", value)
    if not match or match[2] not in _BYTE_UNITS:
        raise ValueError(
            f"expected bytes such as 1048576 or '64 MiB' (units {', '.join(_BYTE_UNITS)})"
        )
    return int(float(match[1]) * _BYTE_UNITS[match[2]])


def _share(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*%", value)
    if not match:
        raise ValueError("expected a share such as 0.01 or '1 %'")
    return float(Decimal(match[1]) / 100)


Bytes = Annotated[int, BeforeValidator(_bytes), Field(ge=0)]
"""A size in bytes: an integer, or a string with a unit such as `64 MiB`."""

Share = Annotated[float, BeforeValidator(_share), Field(ge=0, le=1)]
"""A share between 0 and 1: a number, or a string such as `0.17 %`."""


@dataclass(frozen=True)
class Unit:
    """Marks a field of a number with its unit, for the table of the documents."""

    words: str


_ELSEWHERE = re.compile(r"(builtin|hf):|[A-Za-z][A-Za-z0-9+.-]*://")
"""How the name of something begins that is no path on this machine."""


@dataclass(frozen=True)
class RelativePath:
    """Marks a field of text, or a list of it, that names a file: in a config file relative to that
    file, in `--set` relative to the working directory. `words` are values that name none."""

    words: tuple[str, ...] = ()

    def from_here(self, value: str) -> str:
        """A path of the command line as an absolute one; other names as they are."""
        if value in self.words or _ELSEWHERE.match(value):
            return value
        return os.path.abspath(value)

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> core_schema.CoreSchema:
        return core_schema.no_info_after_validator_function(_possible_path, handler(source))


def _possible_path(value: Any) -> Any:
    """The value, if a file can have each of its paths."""
    for path in (value,) if isinstance(value, str) else value or ():
        if "\0" in path or any(len(name.encode()) > 255 for name in path.split("/")):
            raise ValueError(
                "expected a path without NUL bytes, each of its names at most 255 bytes long"
            )
    return value


Model = TypeVar("Model", bound=BaseModel)

_MOST_ERRORS = 20


def parse(model: type[Model], loaded: YamlDocument, overrides: Iterable[str] = ()) -> Model:
    """Validate a loaded file, after applying `--set dotted.key=value` overrides.

    Raises ConfigError with a line for each mistake, in the order of the file:
    `FILE:LINE: dotted.key: expected …; got …`, with a did-you-mean for keys.
    """
    value = json.loads(json.dumps(loaded.value))
    overridden: list[str] = []
    problems: list[str] = []
    for text in overrides:
        try:
            overridden.append(_override(model, value, text))
        except ConfigError as error:
            problems.append(str(error))
    try:
        valid = model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        errors = _merge_errors(value, error.errors(include_url=False))
        problems += [_explain(model, loaded, one, overridden) for one in _in_order(loaded, errors)]
    if problems:
        more = [f"and {len(problems) - _MOST_ERRORS} more"] if len(problems) > _MOST_ERRORS else []
        raise ConfigError("\n".join([*problems[:_MOST_ERRORS], *more]))
    return valid


def _merge_errors(value: Any, errors: Iterable[Any]) -> list[dict[str, Any]]:
    """One error for each place: what the members of a union say of a value is put together."""
    merged: dict[tuple[str, ...], dict[str, Any]] = {}
    for error in errors:
        place = _place_in(value, error["loc"])
        first = merged.setdefault(place, {**error, "place": place, "messages": []})
        message = _message(error)
        if message not in first["messages"]:
            first["messages"].append(message)
    return list(merged.values())


def _place_in(value: Any, location: Sequence[str | int]) -> tuple[str, ...]:
    """The keys on the way to an error: its location but for the tags of unions, which are no key of
    the file. The last one may be missing."""
    place: list[str] = []
    for number, part in enumerate(location):
        inner = dict(enumerate(value)) if isinstance(value, list) else value
        if isinstance(inner, dict) and part in inner:
            value = inner[part]
        elif not isinstance(value, dict) or number + 1 < len(location):
            continue
        place.append(str(part))
    return tuple(place)


def _in_order(loaded: YamlDocument, errors: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The errors by line, without those that only say that something inside is wrong."""
    inside = {error["place"][:n] for error in errors for n in range(len(error["place"]))}
    own = (error for error in errors if error["place"] not in inside)
    return sorted(own, key=lambda error: loaded.line(".".join(error["place"])))


def _override(model: type[BaseModel], value: Any, text: str) -> str:
    dotted, equals, right = text.partition("=")
    if not equals or not dotted:
        raise ConfigError(f"--set {escape_text(text)}: expected dotted.key=value")
    target = value
    *parents, last = dotted.split(".")
    for name in parents:
        target = _child(target, name, dotted)
    parsed = _from_here(model, [*parents, last], loads_value(right, f"--set {dotted}"))
    if isinstance(target, list):
        _child(target, last, dotted)
        target[int(last)] = parsed
    else:
        target[last] = parsed
    return dotted


def _from_here(model: type[BaseModel], names: list[str], given: Any) -> Any:
    """The value given for a key, its paths made absolute."""
    options, info = [model], None
    for name in names:
        fields = [option.model_fields[name] for option in options if name in option.model_fields]
        if fields:
            info = fields[0]
            options = [inner for field in fields for inner in _models_in(field.annotation)]
        elif _is_mapping(info):
            info = None
        elif not name.isdigit():
            return given
    return _absolute(options, info, given)


def _absolute(options: list[type[BaseModel]], info: FieldInfo | None, given: Any) -> Any:
    if isinstance(given, list):
        return [_absolute(options, info, item) for item in given]
    if isinstance(given, dict):
        if not options:
            return given
        if _is_mapping(info):
            return {name: _absolute(options, None, item) for name, item in given.items()}
        return {name: _from_here(options[0], [name], item) for name, item in given.items()}
    marks = [mark for mark in info.metadata if isinstance(mark, RelativePath)] if info else []
    return marks[0].from_here(given) if marks and isinstance(given, str) else given


def _is_mapping(info: FieldInfo | None) -> bool:
    """Whether a field has a section for every key that is given."""
    return info is not None and get_origin(info.annotation) is dict


def _child(target: Any, name: str, dotted: str) -> Any:
    if isinstance(target, list):
        if name.isdigit() and int(name) < len(target):
            return target[int(name)]
        there = f"{pluralise(len(target), 'item')}, numbered from 0"
        raise ConfigError(f"--set {dotted}: there is no item {escape_text(name, 40)} of {there}")
    if isinstance(target, dict):
        child = target.setdefault(name, {})
        if isinstance(child, dict | list):
            return child
    raise ConfigError(f"--set {dotted}: {name} is not a section")


_LIKE_BOOLEANS = ("yes", "no", "on", "off", "True", "False", "YES", "NO")


def _explain(
    model: type[BaseModel], loaded: YamlDocument, error: dict[str, Any], overridden: list[str]
) -> str:
    location = list(error["place"])
    dotted = ".".join(location)
    is_of_section = error["type"] == "value_error" and isinstance(error["input"], dict)
    near = (o for o in overridden if _is_one_in_the_other(o, dotted))
    option = next((o for o in near if not is_of_section or len(o) <= len(dotted)), None)
    longer = max(option or "", dotted, key=len)
    key = f": {dotted}" if dotted else ""  # a mistake of the file as a whole
    place = f"--set {longer}" if option else f"{loaded.where(dotted)}{key}"
    where = escape_text(place, 1000)
    parent = _model_at(model, [str(part) for part in error["loc"][:-1]])
    fields = described_fields(parent) if parent else {}
    if error["type"] == "extra_forbidden":
        return f"{where}: unknown key{did_you_mean_or_all(location[-1], fields)}"
    if error["type"] == "missing":
        info = fields.get(location[-1])
        return f"{where}: missing; expected {(info and info.description) or 'a value'}"
    first, *others = error["messages"]
    message = " or ".join([first, *(other.removeprefix("expected ") for other in others)])
    if is_of_section:
        return f"{where}: {message}"  # of keys that contradict one another, which it names
    got = escape_text(json.dumps(error["input"], ensure_ascii=False, default=str), 60)
    is_word = error["type"] != "literal_error" and error["input"] in _LIKE_BOOLEANS
    hint = " (write true or false)" if is_word else ""
    return f"{where}: {message}; got {got}{hint}"


def _is_one_in_the_other(one: str, other: str) -> bool:
    """Whether one dotted key is the other, or of a section that the other names."""
    shorter, longer = sorted((f"{one}.", f"{other}."), key=len)
    return longer.startswith(shorter)


def _message(error: Any) -> str:
    """What pydantic says, in our words."""
    message = str(error["msg"]).removeprefix("Value error, ")
    message = message.replace("Input should be", "expected")
    message = message.replace(
        "Input is not a valid path for <class 'pathlib.Path'>", "expected a path"
    )
    return re.sub(r"^\w+ should have (.*?) after validation.*", r"expected \1", message)


def _model_at(model: type[BaseModel], location: list[str]) -> type[BaseModel] | None:
    """The model at a place; of a union the one whose tag, a value it has, stands next."""
    options = [model]
    for name in location:
        if name.isdigit():
            continue
        fields = [option.model_fields[name] for option in options if name in option.model_fields]
        if fields:
            options = [inner for info in fields for inner in _models_in(info.annotation)]
        else:
            tagged = [
                option
                for option in options
                if any(name in get_args(i.annotation) for i in option.model_fields.values())
            ]
            options = tagged or options
    return options[0] if options else None


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models_in(argument)]
