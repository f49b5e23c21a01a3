"""The config section `inputs`: collections of raw shards, and where a record holds its text."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from pipeline.core.config_model import FrozenModel, RelativePath
from pipeline.sources.template import column_name, field_path, parse_template

ColumnType = Literal["string", "int", "float", "bool", "timestamp"]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]


def _paths(value: Any) -> Any:
    """A list becomes a tuple; anything that names no path is refused."""
    several = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not several or not all(isinstance(path, str) for path in several):
        raise ValueError("expected a path or a list of paths")
    return value if isinstance(value, str) else several


class InputConfig(FrozenModel):
    """One collection of raw shards."""

    name: Name = Field(description="identity of the collection; part of every document's key")
    path: Annotated[str | tuple[str, ...], BeforeValidator(_paths), RelativePath()] = Field(
        description="a file, a directory or a glob, relative to this config, or a list of them; or "
        "builtin:quickstart"
    )
    format: Literal["jsonl", "parquet", "arrow", "text", "lines", "warc"] | None = Field(
        None,
        description="format of all files, whatever their names [default: by the name of each "
        "file]; text: each file is a document; lines: each line is a document",
    )
    text_key: str = Field("text", description="name of the field or column that holds the text")
    template: str | None = Field(
        None,
        description="fields joined to form the text, such as '{title}: {text}'; dots reach "
        "nested fields, {{ and }} are braces [default: text_key alone]",
    )
    meta_fields: dict[str, ColumnType] = Field(
        {},
        description="fields kept as typed columns, such as `meta.date: timestamp`; types are "
        "string, int, float, bool, timestamp",
    )
    source_key: str | None = Field(
        None,
        description="field or column that holds the source label, such as meta.source (dots "
        "reach nested fields); a record without it belongs to the source `name` "
        "[default: meta.pile_set_name or meta.redpajama_set_name]",
    )
    sources: tuple[str, ...] | None = Field(
        None, description="allowed source labels; a record with another label is a bad record"
    )

    @field_validator("template")
    @classmethod
    def _template_parses(cls, template: str | None) -> str | None:
        if template is not None:
            parse_template(template)
        return template

    @field_validator("source_key")
    @classmethod
    def _source_key_is_a_field(cls, source_key: str | None) -> str | None:
        if source_key is not None:
            field_path(source_key)
        return source_key

    @field_validator("meta_fields")
    @classmethod
    def _columns_differ(cls, fields: dict[str, ColumnType]) -> dict[str, ColumnType]:
        columns = [column_name(field_path(name)) for name in fields]
        twice = next((c for c in columns if columns.count(c) > 1), None)
        if twice:
            raise ValueError(
                f"expected a column of its own for each field; two fields fill {twice}"
            )
        return fields

    @model_validator(mode="after")
    def _one_text(self) -> "InputConfig":
        if self.template is not None and "text_key" in self.model_fields_set:
            raise ValueError("expected text_key or template, not both")
        return self
