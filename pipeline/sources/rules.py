"""How records become documents: what an input's options and `read` say, as plain data."""

from dataclasses import dataclass

from pipeline.config import Config
from pipeline.input_config import InputConfig
from pipeline.sources.template import Path, Template, column_name, field_path, parse_template
from pipeline.sources.typed import TypedField


@dataclass(frozen=True)
class RecordRules:
    """How a record becomes a document: the text field or the template in its place, the size limit
    in bytes, the allowed source labels, the typed columns; how many decompressed bytes a file may
    have, at all and per byte on disk (None: any); and the field with the source label (None: those
    of `SOURCE_KEYS`)."""

    text_key: str
    max_document_bytes: int
    sources: tuple[str, ...] | None
    template: Template | None = None
    fields: tuple[TypedField, ...] = ()
    max_file_bytes: int | None = None
    max_ratio: float | None = None
    source_key: Path | None = None


def rules_of(input_config: InputConfig, config: Config) -> RecordRules:
    """The rules for the files of one input."""
    template = input_config.template
    return RecordRules(
        input_config.text_key,
        config.read.max_document_bytes,
        input_config.sources,
        None if template is None else parse_template(template),
        _fields(input_config, config),
        config.read.max_file_bytes,
        config.read.max_ratio,
        None if input_config.source_key is None else field_path(input_config.source_key),
    )


def typed_columns(config: Config) -> tuple[TypedField, ...]:
    """The typed columns of a run: those of all inputs, by name. Two inputs that name a column give
    it one type (the config sees to that)."""
    columns = {
        column_name(field_path(name)): kind
        for source in config.inputs
        for name, kind in source.meta_fields.items()
    }
    return tuple(TypedField(name, columns[name], None) for name in sorted(columns))


def _fields(input_config: InputConfig, config: Config) -> tuple[TypedField, ...]:
    """All columns of the run, with the fields that fill them in this input."""
    paths = {column_name(field_path(n)): field_path(n) for n in input_config.meta_fields}
    return tuple(
        TypedField(field.column, field.type, paths.get(field.column))
        for field in typed_columns(config)
    )
