"""How a view of a stage's manifest is made: `StageOutput`, and what its attributes look up.

A shard attribute has the shards in the order of tasks, a counter attribute one value per task.
They are looked up when they are read: IntegrityError names what an earlier version did not write.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

from pipeline.core.errors import IntegrityError
from pipeline.core.manifest import Shard, StageManifest

Value = TypeVar("Value")


@dataclass(frozen=True)
class StageOutput:
    """What a stage published."""

    manifest: StageManifest


class Attribute(Generic[Value]):
    """Something that is looked up in the manifest, once."""

    def __init__(self, look_up: Callable[[StageManifest], Value]) -> None:
        self._look_up = look_up

    def __set_name__(self, owner: type[StageOutput], name: str) -> None:
        self._name = name

    def __get__(self, output: StageOutput, owner: type[StageOutput]) -> Value:
        try:
            value = self._look_up(output.manifest)
        except (KeyError, TypeError, StopIteration) as error:
            raise IntegrityError(
                f"manifests/{output.manifest.stage}.json: written by another version ({error!r}); "
                "to update it, run again the command that made this run"
            ) from error
        vars(output)[self._name] = value
        return value


def shards_in(directory: str, end: str = "") -> Attribute[tuple[Shard, ...]]:
    """The shards in a directory whose names end so."""
    return Attribute(lambda m: tuple(s for s in m.below(directory) if s.path.endswith(end)))


def file_at(path: str) -> Attribute[Shard]:
    """The one file of this path."""
    return Attribute(lambda m: m.find(path))


def parts_of(table: str) -> Attribute[tuple[Shard, ...]]:
    """The parts of a table at the top of a run; of an earlier version's run its one file."""
    return Attribute(lambda m: m.parts(table))


def counter(kind: type[Value], name: str) -> Attribute[list[Value]]:
    """A counter of every task; `kind` is the type of its values."""
    return Attribute(lambda m: [task.counters[name] for task in m.tasks])


def optional_counter(default: Value, name: str) -> Attribute[list[Value]]:
    """A counter that a task may lack, which then counts as the default."""
    return Attribute(lambda m: [task.counters.get(name, default) for task in m.tasks])


def setting(kind: type[Value], name: str) -> Attribute[Value]:
    """A setting of the stage; `kind` is its type."""
    return Attribute(lambda m: m.fields["settings"][name])


def optional_setting(default: Value, name: str) -> Attribute[Value]:
    """A setting that the stage may lack, which then is the default."""
    return Attribute(lambda m: m.fields["settings"].get(name, default))
