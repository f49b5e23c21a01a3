"""about.yaml: what only people can say of a data set. Every key may be left out; what a document
needs and nobody said becomes an explicit `TODO(key: what is needed)` in it.
"""

import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, Field

from pipeline.config.model import FrozenModel, parse
from pipeline.config.yaml import load_yaml

Basis = Literal["about", "tables", "todo"]
Date = Annotated[
    str,
    BeforeValidator(lambda value: str(value) if type(value) is int else value),
    Field(pattern=r"^[0-9]{4}(-[0-9]{2}){0,2}$"),
]
"""An ISO date, or a month or year of one; YAML reads a plain year as a number."""
Language = Annotated[str, Field(pattern=r"^[a-z]{2,3}(-[A-Za-z0-9]{2,8})*$")]
Url = Annotated[str, Field(pattern=r"^https?://[^\s]+$")]
Text = Annotated[str, Field(min_length=1)]

SourceKind = Literal["public", "licensed", "private", "crawled", "user", "synthetic", "other"]


class Creator(FrozenModel):
    """A person or organisation that made the data set."""

    name: Text = Field(description="the name")
    kind: Literal["organisation", "person"] = Field("organisation", description="which it is")
    url: Url | None = Field(None, description="a page about it")


class Licence(FrozenModel):
    """The licence of the data set as a whole, not those of its documents."""

    expression: Text | None = Field(
        None,
        description="SPDX expression of the licence of the data set as a whole, such as CC-BY-4.0",
    )
    name: Text | None = Field(None, description="its name, if SPDX does not list it")
    link: Url | None = Field(None, description="where its text can be read")


class Claims(FrozenModel):
    """Where rightsholders and other people write to."""

    contact: Text | None = Field(
        None, description="e-mail address or form for takedown and correction requests"
    )
    procedure: Text | None = Field(
        None, description="how a request is handled, and within how many days it is answered"
    )


class Provider(FrozenModel):
    """Who places the model on the market."""

    name: Text | None = Field(None, description="full name of the provider of the model")
    contact: Text | None = Field(None, description="its contact for questions about training data")
    representative: Text | None = Field(
        None,
        description="authorised representative in the Union, for a provider outside it; "
        "otherwise 'not applicable'",
    )
    representative_contact: Text | None = Field(
        None, description="contact of the representative, or 'not applicable'"
    )


class Models(FrozenModel):
    """What was trained on the data set."""

    names: tuple[Text, ...] = Field((), description="versioned names of the models")
    dependencies: Text | None = Field(
        None, description="models that these are based on, with links to their summaries, or 'none'"
    )
    market_date: Date | None = Field(
        None, description="date on which the models were placed on the Union market"
    )


class Summary(FrozenModel):
    """The public summary of training content as a document."""

    version: Text | None = Field(
        None, description="version of the summary, with links to earlier ones"
    )
    last_update: Date | None = Field(None, description="ISO date of its last update")


class Dates(FrozenModel):
    """ISO dates: 2026, 2026-03 or 2026-03-31."""

    built: Date | None = Field(None, description="ISO date on which this run was made")
    published: Date | None = Field(None, description="ISO date on which the data set is published")
    collected_from: Date | None = Field(None, description="first date of data collection")
    collected_to: Date | None = Field(None, description="last date of data collection")
    first_used: Date | None = Field(
        None, description="date on which the data was first used to develop the system"
    )


class Crawlers(FrozenModel):
    """Data gathered from the web by the provider or for it."""

    used: bool | None = Field(None, description="whether the provider crawled, true or false")
    names: tuple[Text, ...] = Field((), description="names of the crawlers")
    purpose: Text | None = Field(None, description="what they are for")
    behaviour: Text | None = Field(
        None, description="how they treat robots.txt, captchas and paywalls"
    )
    period: Text | None = Field(None, description="when they ran: month and year of start and end")
    content: Text | None = Field(None, description="kinds of content and of websites")


class UserData(FrozenModel):
    """Data of the provider's own users."""

    from_model: bool | None = Field(
        None, description="whether interactions with the model were used, true or false"
    )
    from_services: bool | None = Field(
        None, description="whether data of other services or products was used, true or false"
    )
    description: Text | None = Field(None, description="which services and what data, or 'none'")


class Synthetic(FrozenModel):
    """Data made by models."""

    used: bool | None = Field(
        None, description="whether data was generated by AI models for training, true or false"
    )
    models: Text | None = Field(
        None, description="which models generated it, with links to their summaries, or 'none'"
    )
    purpose: Text | None = Field(None, description="why it was needed, or 'none'")


class Measures(FrozenModel):
    """What was done about rights reservations and about illegal content."""

    code_of_practice: bool | None = Field(
        None,
        description="whether the provider signed the Code of Practice with its copyright "
        "chapter, true or false",
    )
    reservations: Text | None = Field(
        None,
        description="measures before and during collection to respect reservations of rights "
        "from text and data mining",
    )
    illegal_content: Text | None = Field(
        None, description="measures to avoid or remove illegal content"
    )


class AboutSource(FrozenModel):
    """What one source label of the run stands for."""

    kind: SourceKind = Field(description=f"one of {', '.join(get_args(SourceKind))}")
    name: Text | None = Field(None, description="name of the data set as published")
    link: Url | None = Field(None, description="where it is published")
    owner: Text | None = Field(None, description="who publishes or owns it")
    description: Text | None = Field(None, description="what it contains, in one sentence")
    period: Text | None = Field(None, description="when its data was collected")


class About(FrozenModel):
    """All of about.yaml."""

    name: Text | None = Field(None, description="name of the data set")
    version: Text | None = Field(None, description="its version, such as 1.0.0")
    description: Text | None = Field(None, description="what it is, in one paragraph")
    url: Url | None = Field(None, description="the page of the data set")
    citation: Text | None = Field(None, description="how to cite it, as BibTeX if possible")
    creators: tuple[Creator, ...] = Field((), description="who made it: name, kind and url of each")
    licence: Licence = Field(Licence(), description="licence of the data set as a whole")
    languages: tuple[Language, ...] = Field(
        (), description="languages of the text as BCP 47 tags, such as [en, de]"
    )
    jurisdiction: Text | None = Field(None, description="law under which the data set is published")
    content_types: Text | None = Field(
        None, description="kinds of content, such as 'news, fiction, source code'"
    )
    task_categories: tuple[Text, ...] = Field(
        ("text-generation",), description="task categories of the Hugging Face Hub"
    )
    purposes: Text | None = Field(
        None, description="what the data is for, and how it serves that purpose"
    )
    out_of_scope: Text | None = Field(None, description="uses that the data is not meant for")
    collection: Text | None = Field(None, description="how the data was collected, and by whom")
    funding: Text | None = Field(None, description="who paid for the creation of the data set")
    protected_material: Text | None = Field(
        None,
        description="whether it contains data protected by copyright, trade mark or patent, "
        "or is entirely in the public domain",
    )
    personal_information: Text | None = Field(
        None, description="whether personal information is in the data, and what was done about it"
    )
    sensitive_information: Literal["yes", "no", "unknown"] | None = Field(
        None, description="whether sensitive personal information is in the data: yes, no, unknown"
    )
    aggregate_consumer_information: Text | None = Field(
        None, description="whether aggregate consumer information is in the data"
    )
    characteristics: Text | None = Field(
        None, description="regional, demographic and other characteristics of the data, or 'none'"
    )
    biases: Text | None = Field(None, description="known biases")
    limitations: Text | None = Field(
        None, description="limitations other than those of the screening"
    )
    social_impact: Text | None = Field(None, description="social impact of the data set")
    maintenance: Text | None = Field(
        None, description="who maintains it, how it is updated, what happens to old versions"
    )
    other_sources: Text | None = Field(
        None, description="data from sources of any other kind, or 'none'"
    )
    claims: Claims = Field(Claims(), description="where to send requests")
    provider: Provider = Field(Provider(), description="who places the model on the market")
    models: Models = Field(Models(), description="what was trained on the data set")
    summary: Summary = Field(Summary(), description="the EU summary as a document")
    dates: Dates = Field(Dates(), description="ISO dates")
    crawlers: Crawlers = Field(Crawlers(), description="data gathered from the web")
    user_data: UserData = Field(UserData(), description="data of the provider's own users")
    synthetic: Synthetic = Field(Synthetic(), description="data made by models")
    measures: Measures = Field(Measures(), description="reservations of rights, illegal content")
    sources: dict[str, AboutSource] = Field(
        {}, description="what each source label of the run stands for"
    )


@dataclass(frozen=True)
class Table:
    """Rows of words under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Answer:
    """A text and what it rests on: about.yaml, the tables of the run, or nothing yet. `check`: what
    to compare with the official text before this is handed on."""

    text: str
    basis: Basis
    check: str = ""
    table: Table | None = None


def load_about(path: Path | None) -> About:
    """Read about.yaml; nothing is said without one. Raises ConfigError with file, line and key."""
    return About() if path is None else parse(About, load_yaml(path))


def find_answer(about: About, key: str) -> Answer:
    """What about.yaml says under a dotted key, in words, or what is needed there.

    >>> find_answer(About(name="tiny"), "name").text
    'tiny'
    >>> find_answer(About(), "dates.published").text
    'TODO(dates.published: ISO date on which the data set is published)'
    """
    value: Any = about
    for part in key.split("."):
        value = getattr(value, part)
    if isinstance(value, bool):
        return Answer("yes" if value else "no", "about")
    if isinstance(value, tuple):
        value = ", ".join(v.name if isinstance(v, Creator) else str(v) for v in value)
    if value:
        return Answer(str(value), "about")
    model: type[BaseModel] = About
    *sections, last = key.split(".")
    for section in sections:
        model = _model_of(model.model_fields[section].annotation) or model
    return todo(key, model.model_fields[last].description or last)


def todo(key: str, needed: str, check: str = "") -> Answer:
    """A placeholder for something that nobody said."""
    return Answer(f"TODO({key}: {needed})", "todo", check)


def from_tables(text: str, check: str = "", table: Table | None = None) -> Answer:
    """Something that the tables of the run say."""
    return Answer(text, "tables", check, table)


def _model_of(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (types.UnionType, tuple, dict):
        return next((m for a in get_args(annotation) if (m := _model_of(a))), None)
    return None


def about_template() -> str:
    """A commented about.yaml that says nothing yet; it loads as it stands."""
    head = [
        "# about.yaml: what only people know about a data set (`prep disclose DIR --about "
        "about.yaml`).",
        "# Replace ~, [] and {} with what you know; what is left becomes a TODO in the documents.",
        "# Nothing here can be checked by the program: whoever writes it is responsible for it.",
    ]
    return "\n".join([*head, "", *_template_lines(About, ""), ""])


def _template_lines(model: type[BaseModel], indent: str) -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = _model_of(field.annotation)
        yield f"{indent}# {field.description}"
        if inner is not None and isinstance(field.default, BaseModel):
            yield f"{indent}{name}:"
            yield from _template_lines(inner, indent + "  ")
        else:
            yield f"{indent}{name}: {_empty(field.default)}"
            yield from _example(name, inner, indent)


def _example(name: str, inner: type[BaseModel] | None, indent: str) -> Iterator[str]:
    """What an item of a list or mapping of sections looks like, as comments."""
    if inner is None:
        return
    first = f"{indent}#   LABEL OF THE RUN:" if name == "sources" else ""
    if first:
        yield first
    mark = "    " if first else "- "
    for key, field in inner.model_fields.items():
        yield f"{indent}#   {mark}{key}: {field.description}"
        mark = "    " if first else "  "


def _empty(default: Any) -> str:
    if isinstance(default, tuple):
        return f"[{', '.join(default)}]"
    return "{}" if isinstance(default, dict) else "~"
