"""Expressions of SQL over the signals of a document, by DuckDB: `filters.keep`, `mixture.groups`.

One may use the columns it is given, constants, operators and scalar functions that always return
the same for the same values: no queries, aggregates or windows, and nothing that reads files or a
clock.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from pipeline.core.errors import ConfigError, escape_text

KEY = "filters.keep"
_TABLE = "documents"
_REFUSED = {"SUBQUERY": "a query", "WINDOW": "a window", "STAR": "*", "PARAMETER": "a parameter"}
_LONGEST = 500


def evaluate_expression(
    expression: str, columns: pa.Table, key: str = KEY
) -> npt.NDArray[np.bool_]:
    """For which rows the expression is true; not where it is NULL. (N,) bool. Raises ConfigError,
    which names the expression by `key`, where it cannot be computed of some row."""
    import duckdb

    connection = _connect()
    connection.register(_TABLE, columns)
    try:
        connection.execute(f"select coalesce((\n{expression}\n), false) from {_TABLE}")
    except duckdb.Error as error:
        raise ConfigError(
            f"{_show(expression, key)}: {_describe(error)}; expected an expression that can be "
            "computed of every document, such as try_cast(...) where cast fails"
        ) from None
    return np.fromiter((row[0] for row in connection.fetchall()), np.bool_, len(columns))


def check_expression(expression: str, schema: pa.Schema, key: str = KEY) -> tuple[str, ...]:
    """The columns that an expression over these uses, in the order of `schema`. Raises ConfigError,
    which names the expression by `key`, where it is none that can decide about documents."""
    import duckdb

    shown = _show(expression, key)
    connection = _connect()
    connection.register(_TABLE, schema.empty_table())
    query = f"select (\n{expression}\n) from {_TABLE}"
    try:
        [[text]] = connection.execute("select json_serialize_sql(?)", [query]).fetchall()
        parsed = json.loads(text)
        if parsed["error"] or len(parsed["statements"]) != 1:
            raise ConfigError(f"{shown}: expected one SQL expression, {_say(parsed)}")
        nodes = list(_nodes(parsed["statements"][0]))
        _check_nodes(nodes, connection, shown)
        connection.execute(query)
        kind = str(connection.description[0][1])
        connection.fetchall()
    except duckdb.Error as error:
        names = ", ".join(schema.names)
        raise ConfigError(f"{shown}: {_describe(error)} (it may use {names})") from None
    if kind != "BOOLEAN":
        raise ConfigError(
            f"{shown}: is of type {kind}; expected true or false, such as language = 'en' and "
            "word_count > 50"
        )
    used = {name for node in nodes for name in node.get("column_names", ())}
    return tuple(name for name in schema.names if name in used)


def describe_used(row: Mapping[str, Any], used: Sequence[str]) -> str:
    """The values that an expression looked at.

    >>> describe_used({"language": "en", "word_count": 3.0, "lines": 1}, ["language", "word_count"])
    'language = "en", word_count = 3.0'
    """
    return ", ".join(
        f"{name} = {json.dumps(row[name], ensure_ascii=False, default=str)}" for name in used
    )


def expression_software(key: str = KEY) -> dict[str, str]:
    """The version that the answers depend on. Raises ConfigError, which names the config key that
    needs it, when it is not installed."""
    try:
        return {"duckdb": version("duckdb")}
    except PackageNotFoundError:
        raise ConfigError(
            f"{key}: needs duckdb, which is not installed; pip install 'wafermill[signals]'"
        ) from None


def _connect() -> Any:
    import duckdb

    return duckdb.connect(config={"enable_external_access": "false", "threads": 1})


def _show(expression: str, key: str) -> str:
    return f"{key}: {escape_text(expression, 100)}"


def _describe(error: Exception) -> str:
    """What DuckDB says is wrong, in a line."""
    message = " ".join(str(error).split())[:_LONGEST].partition(" LINE ")[0]
    return escape_text(message, _LONGEST)


def _say(parsed: dict[str, Any]) -> str:
    message = parsed.get("error_message") or "and nothing behind it"
    return " ".join(escape_text(str(message), _LONGEST).split())


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    """Every expression in a parsed statement."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for value in tree.values():
            yield from _nodes(value)
    elif isinstance(tree, list):
        for value in tree:
            yield from _nodes(value)


def _check_nodes(nodes: list[dict[str, Any]], connection: Any, shown: str) -> None:
    for node in nodes:
        if (what := _REFUSED.get(node["class"])) is not None:
            raise ConfigError(f"{shown}: {what} cannot decide about one document")
    names = {node["function_name"] for node in nodes if node["class"] == "FUNCTION"}
    known = connection.execute(
        "select function_name, stability, function_type from duckdb_functions() "
        "where function_name in (select unnest(?))",
        [sorted(names)],
    ).fetchall()
    for name, stability, kind in known:
        if kind != "scalar":
            raise ConfigError(
                f"{shown}: {name} looks at several documents; expected an expression about one"
            )
        if stability != "CONSISTENT":
            raise ConfigError(
                f"{shown}: {name} does not always return the same; a run must be repeatable"
            )
