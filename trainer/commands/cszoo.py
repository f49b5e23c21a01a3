"""Commands of Model Zoo's `cszoo`, brought to the words of `train`:

    fit PARAMS [--target_device CSX]      CSX --params PARAMS
    validate PARAMS, validate_all PARAMS  the same with --mode eval, --mode eval_all
    checkpoint convert FILE               convert FILE
    checkpoint diff LEFT RIGHT            convert diff LEFT RIGHT

Only the words differ, so each does, prints and refuses what the command of `train` does. The
options are those of Model Zoo 2.10 (`cszoo fit --help`, `cszoo checkpoint convert --help`).
"""

import sys
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

from pipeline.core.errors import ConfigError
from trainer.commands.options import SEVERAL, without_effect

RUNS = {"fit": (), "validate": ("--mode", "eval"), "validate_all": ("--mode", "eval_all")}
"""Commands that are runs, and their options of `train`."""
COMMANDS = (*RUNS, "checkpoint")
_IDLE_FLAGS = ("--disable_version_check", "--export-safetensors", "--no-progress-bar", "--debug")
_IDLE = ("--debug_args_path", "--mgmt_namespace")
_IDLE_SEVERAL = ("--debug_args", "--ini")


def translate(words: Sequence[str], flags: Collection[str]) -> list[str]:
    """The same line in words of `train`; a line that begins with none of `COMMANDS` as it is.
    `flags`: options of a run that take no value. Raises ConfigError.

    >>> translate(["fit", "p.yaml", "--target_device", "CPU", "--num_steps", "9"], ())
    ['CPU', '--params', 'p.yaml', '--num_steps', '9']
    >>> translate(["checkpoint", "convert", "a.mdl", "--src-fmt", "hf", "--tgt-fmt=cs-2.5"], ())
    ['convert', 'a.mdl', '--out', 'a_to_mdl', '--src-fmt', 'hf', '--tgt-fmt', 'mdl']
    """
    match list(words):
        case [command, *rest] if command in RUNS:
            return _run(command, _Line(rest, flags))
        case ["checkpoint", "convert", *rest]:
            return _convert(_Line(rest, ("--drop-unmatched-keys",)))
        case ["checkpoint", "diff", *rest]:
            line = _Line(rest, ())
            if (op := line.take("--tensor_comparison_op") or "equal") != "equal":
                raise ConfigError(
                    f"train checkpoint diff: --tensor_comparison_op {op}: only equal is supported; "
                    "use train convert diff LEFT RIGHT --tolerance X"
                )
            return ["convert", "diff", *line.names, *line.rest()]
        case ["checkpoint", *rest]:
            raise ConfigError(f"train checkpoint {' '.join(rest[:1])}: expected convert or diff")
    return list(words)


class _Line:
    """Words that follow a command: `names` without an option, `options` with their values, None
    for a flag. Options that have no effect here are said once and left out."""

    def __init__(self, words: Sequence[str], flags: Collection[str]) -> None:
        self.names: list[str] = []
        self.options: dict[str, str | list[str] | None] = {}
        idle: dict[str, object] = {}
        self._words = deque(words)
        while self._words:
            word = self._words.popleft()
            name, is_joined, value = word.partition("=")
            if not word.startswith("-"):
                self.names.append(word)
            elif name in _IDLE_FLAGS:
                idle[name[2:]] = True
            elif name in _IDLE or name in _IDLE_SEVERAL:
                idle[name[2:]] = list(self._values(name in _IDLE_SEVERAL)) or True
            elif name in flags or name in ("-h", "--help"):
                self.options[name] = None
            elif is_joined:
                self.options[name] = value
            else:
                self.options[name] = list(self._values(name in SEVERAL))
        if note := without_effect(idle):
            print(note, file=sys.stderr)

    def _values(self, several: bool) -> Iterator[str]:
        """What follows an option: one word, or all up to the next option."""
        if self._words and not several:
            yield self._words.popleft()
        while several and self._words and not self._words[0].startswith("-"):
            yield self._words.popleft()

    def take(self, name: str) -> str | None:
        """The value of an option, which leaves the line."""
        value = self.options.pop(name, None)
        if isinstance(value, list):
            return value[0] if value else None
        return value

    def rest(self) -> Iterator[str]:
        """The options that are left, as words."""
        for name, value in self.options.items():
            yield name
            yield from [value] if isinstance(value, str) else value or []


def _run(command: str, line: _Line) -> list[str]:
    if len(line.names) != 1 and not {"-h", "--help"} & line.options.keys():
        given = f"got {', '.join(line.names)}" if line.names else "there is none"
        raise ConfigError(f"train {command}: expected one params file; {given}")
    target = line.take("--target_device")
    return [
        *([target] if target else []),
        *(word for name in line.names for word in ("--params", name)),
        *line.rest(),
        *RUNS[command],
    ]


def _convert(line: _Line) -> list[str]:
    source, target = line.take("--src-fmt") or "cs-auto", line.take("--tgt-fmt") or "hf"
    target = "mdl" if target.startswith("cs-") else target
    config, model, out = (line.take(f"--{name}") for name in ("config", "model", "output-dir"))
    if len(line.names) == 1:
        path = Path(line.names[0])
        line.options["--out"] = out or str(path.with_name(f"{path.stem}_to_{target}"))
    line.options["--src-fmt"] = "mdl" if source == "cs-auto" else source
    line.options["--tgt-fmt"] = target
    if config is not None:
        line.options["--config" if source == "hf" else "--params"] = config
    if model is not None and target == "hf":
        line.options["--model"] = model.replace("-", "_")
    return ["convert", *line.names, *line.rest()]
