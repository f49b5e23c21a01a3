"""A params file on its way to R2.2 keys: values, where each one stands, and what to tell the user.

A dotted key is `section.key` of R2.2, as in `optimizer.weight_decay`; `spelled` maps it to the key
as it stands in the file, as in `trainer.init.optimizer.AdamW.weight_decay`.
"""

import copy
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from pipeline.core.errors import ConfigError, escape_text
from pipeline.core.strict_yaml import YamlDocument
from pipeline.core.words import did_you_mean_or_all

NO_EFFECT = "no effect here: "


@dataclass
class Draft:
    """See the module. `idle`: keys without effect, as in the file."""

    loaded: YamlDocument
    sections: dict[str, Any]
    spelled: dict[str, str] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, loaded: YamlDocument) -> "Draft":
        """The file as it stands."""
        twice = [f"{key}: given twice, with the same value" for key in loaded.repeated]
        return cls(loaded, copy.deepcopy(loaded.value), remarks=twice)

    def section(self, name: str) -> dict[str, Any]:
        """A section to change; an empty one, which is not kept, where there is none."""
        found = self.sections.get(name)
        return found if isinstance(found, dict) else {}

    def written(self, dotted: str) -> str:
        """The key as it stands in the file."""
        head, tail = dotted, ""
        while head and head not in self.spelled:
            head, _, last = head.rpartition(".")
            tail = f".{last}{tail}"
        return f"{self.spelled[head]}{tail}" if head else dotted

    def error(self, dotted: str, message: str) -> ConfigError:
        """`FILE:LINE: key: message`, in the file's spelling."""
        key = self.written(dotted)
        return ConfigError(f"{self.loaded.where(key)}: {escape_text(key, 200)}: {message}")

    def unknown(self, dotted: str, names: Iterable[str]) -> ConfigError:
        """The error for a key that is none of `names`."""
        known = sorted(set(names))
        hint = did_you_mean_or_all(dotted.rpartition(".")[2], known)
        return self.error(dotted, f"unknown key{hint}")

    def remark(self, dotted: str, message: str) -> None:
        """Add a note on a key."""
        self.remarks.append(f"{self.written(dotted)}: {message}")

    def ignore(self, dotted: str) -> None:
        """List a key as one without effect."""
        self.idle.append(self.written(dotted))

    def rename(self, section: str, old: str, new: str) -> None:
        """Move a key of the section to its R2.2 name. Raises ConfigError when both are given."""
        values = self.section(section)
        if old not in values:
            return
        if new in values:
            raise self.error(
                f"{section}.{old}", f"the same setting as {new}; give only one of them"
            )
        values[new] = values.pop(old)
        self.remark(f"{section}.{old}", f"old spelling of {section}.{new}")
        self.spelled[f"{section}.{new}"] = self.written(f"{section}.{old}")

    def notes(self) -> tuple[str, ...]:
        """All notes, one line each."""
        idle = (NO_EFFECT + ", ".join(self.idle),) if self.idle else ()
        return (*self.remarks, *idle)

    def as_loaded(self) -> YamlDocument:
        """The R2.2 sections, each key with the line it has in the file."""
        lines = dict(self.loaded.lines)
        for dotted, key in self.spelled.items():
            lines[dotted] = int(self.loaded.where(key).rpartition(":")[2])
        return YamlDocument(self.loaded.path, self.sections, lines)

    def respelled(self, message: str) -> str:
        """Errors about R2.2 keys, a line `FILE:LINE: key: ...` each, in the file's spelling."""
        return "\n".join(map(self._respelled, message.split("\n")))

    def _respelled(self, message: str) -> str:
        head = f"{self.loaded.path}:"
        line, _, rest = message.removeprefix(head).partition(": ")
        dotted, colon, text = rest.partition(": ")
        if not (message.startswith(head) and line.isdigit() and colon):
            return message
        key = self.written(dotted)
        return f"{self.loaded.where(key)}: {key}: {text}"
