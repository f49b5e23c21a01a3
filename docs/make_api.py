"""Writes docs/api.md from signatures and docstrings, so that it cannot drift from the code.

python docs/make_api.py          # write the file
python docs/make_api.py --check  # exit 1 when it is out of date
"""

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, get_overloads

TARGET = Path(__file__).with_name("api.md")
WIDTH = 100

HEAD = """\
# The Python API

Everything that `prep` and `train` do for data and models can be called from Python: the functions
take Python values in place of options, say nothing unless `progress=True`, and return records with
types. `import pipeline` and `import trainer` take milliseconds; Arrow, PyTorch and the rest are
imported when a function is first used.

```python
import pipeline
import trainer

run = pipeline.run("quickstart", "runs/quickstart", workers=2)
pipeline.verify("runs/quickstart")
run = pipeline.open_run("runs/quickstart")
run.documents(["source", "state", "tokens"])  # an Arrow table
run.split("train")  # a data set for a DataLoader
run.search("Permission is hereby granted")

trainer.train(params="tiny", data=run, model_dir="runs/tiny", num_csx=2, num_steps=200)
pipeline.trace(run, step=57, train="runs/tiny")  # what step 57 read
model = trainer.load("runs/tiny")
trainer.generate(model, ["import "], max_new_tokens=24)[0].text
```

A script needs no `if __name__ == "__main__":` around the call: worker processes do not import it.

[examples/api.py](../examples/api.py) is a whole program. The names on this page are the public API;
all other modules, functions and attributes are internal and may change in any release. Pages on
[prep](prep.md), [training](training.md) and the other commands say what options mean.

In signatures, a path (`AnyPath`) is a `str` or an `os.PathLike[str]`, which a `FinishedRun` is too.
A config (`ConfigLike`, `ParamsLike`) is a file, the name of a shipped one, a mapping with the keys
of such a file ([of prep](configuration.md), [of train](train_configuration.md)), or a
`pipeline.Config` or `trainer.Params`. What ends a command with an exit code raises the error with
that `exit_code`, from `pipeline.errors`.

This page is written by `python docs/make_api.py`.
"""

PACKAGES = {
    "pipeline": "Preparing data, and what became of it.",
    "pipeline.errors": "",
    "pipeline.results": "",
    "pipeline.hdf5": "",
    "trainer": "Training, and models that were trained.",
    "dedup": "",
    "wafer_backend": "[Running cstorch scripts](cstorch.md) says how it is used.",
}
"""The public packages and modules, each with what its docstring leaves out."""

IN_FULL = ("pipeline", "trainer")
"""Packages of which functions are shown with their arguments."""


def document() -> str:
    """The whole page."""
    parts = [HEAD]
    for name, sentence in PACKAGES.items():
        module = import_module(name)
        parts.append(f"## {name}\n\n{sentence or first_sentence(module)}\n")
        members = {n: getattr(module, n) for n in module.__all__}
        if name in IN_FULL:
            parts += [section(name, n, m) for n, m in members.items() if inspect.isfunction(m)]
            members = {n: m for n, m in members.items() if not inspect.isfunction(m)}
            parts += [section_of_class(name, n, m) for n, m in members.items() if is_shown(m)]
        parts.append("| name | what it is |\n| --- | --- |")
        parts.append("\n".join(map(row, members, members.values())) + "\n")
    return "\n".join(parts)


def section(package: str, name: str, function: Any) -> str:
    """A function: its signature, and its docstring with arguments as a list."""
    return (
        f"### {package}.{name}\n\n```python\n{signature(name, function)}\n```\n\n{body(function)}\n"
    )


def section_of_class(package: str, name: str, kind: type) -> str:
    """A class with its methods, if it has some, a line each."""
    methods = [
        f"| `{n}{'' if isinstance(m, property) else '()'}` | {cell(first_sentence(m))} |"
        for n, m in methods_of(kind)
    ]
    table = ["", "| member | what it gives |", "| --- | --- |", *methods] if methods else []
    return "\n".join([f"### {package}.{name}\n\n{body(kind)}", *table, ""])


def is_shown(member: Any) -> bool:
    """Whether it is a class of the API itself, whose members or fields are shown."""
    if not inspect.isclass(member) or not re.search(r"\.(api|callbacks)\b", member.__module__):
        return False
    return bool(methods_of(member)) or dataclasses.is_dataclass(member)


def methods_of(kind: type) -> list[tuple[str, Any]]:
    """Public methods and properties, in the order of the source."""
    return [
        (name, member)
        for name, member in vars(kind).items()
        if not name.startswith("_") and isinstance(member, types.FunctionType | property)
    ]


def signatures(name: str, function: Any) -> str:
    """The signature as the source has it, or each of its overloads."""
    return "\n".join(signature(name, each) for each in get_overloads(function) or [function])


def signature(name: str, function: Any) -> str:
    """One signature, a parameter a line where it is long."""
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef)
    given = list(parameters(node.args))
    returned = f" -> {ast.unparse(node.returns)}" if node.returns else ""
    line = f"{name}({', '.join(given)}){returned}"
    if len(line) <= WIDTH:
        return line
    return "\n".join([f"{name}(", *(f"    {each}," for each in given), f"){returned}"])


def parameters(arguments: ast.arguments) -> Iterator[str]:
    """Each parameter as text, with the star between."""
    missing = len(arguments.args) - len(arguments.defaults)
    defaults = [None] * missing + list(arguments.defaults)
    yield from map(parameter, arguments.args, defaults)
    if arguments.kwonlyargs:
        yield "*"
        yield from map(parameter, arguments.kwonlyargs, arguments.kw_defaults)


def parameter(given: ast.arg, default: ast.expr | None) -> str:
    """One parameter with its type and default."""
    text = ast.unparse(given)
    return text if default is None else f"{text} = {ast.unparse(default)}"


def body(member: Any) -> str:
    """A docstring as Markdown: what is `name: meaning` becomes a list."""
    paragraphs = (inspect.getdoc(member) or "").split("\n\n")
    return "\n\n".join(map(as_list, paragraphs))


def as_list(paragraph: str) -> str:
    """A paragraph, each of its lines `name: meaning` an item.

    >>> as_list("a, b: some\\n    thing.\\nc: other.")
    '- `a`, `b`: some thing.\\n- `c`: other.'
    """
    joined = re.sub(r"\n    +", " ", paragraph)
    lines = joined.split("\n")
    if not all(re.match(r"[a-z_0-9]+(, [a-z_0-9]+)*: ", line) for line in lines):
        return joined
    items = []
    for line in lines:
        names, _, meaning = line.partition(": ")
        items.append(f"- {', '.join(f'`{name}`' for name in names.split(', '))}: {meaning}")
    return "\n".join(items)


def row(name: str, member: Any) -> str:
    """A line of a table."""
    return f"| `{name}` | {cell(first_sentence(member))} |"


def first_sentence(member: Any) -> str:
    """The first sentence of a docstring; of a value, its type."""
    if not (callable(member) or isinstance(member, types.ModuleType | property)):
        return f"a `{type(member).__name__}`"
    text = " ".join((inspect.getdoc(member) or "").split("\n\n")[0].split())
    found = re.match(r"(.*?[^.\s]{2}\.)(?= [A-Z`]|$)", text)
    return found[1] if found else text


def cell(text: str) -> str:
    """Text in a table."""
    return text.replace("|", "\\|")


def write_or_compare(target: Path, text: str) -> int:
    """Write the file; with --check, exit code 1 when it is out of date."""
    if "--check" in sys.argv[1:]:
        return 0 if target.read_text(encoding="utf-8") == text else 1
    target.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(write_or_compare(TARGET, document()))
