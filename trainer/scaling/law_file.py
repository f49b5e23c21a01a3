"""A fitted law as a JSON file: written by `train scaling fit`, read by `train scaling predict`."""

import dataclasses
import json
from pathlib import Path
from typing import Any

from pipeline.core import storage
from pipeline.core.errors import InputError
from trainer.scaling.paper_points import Point
from trainer.scaling.power_law import PowerLaw

FORMAT = 1


def as_json(law: PowerLaw) -> dict[str, Any]:
    """JSON values: the fields of `PowerLaw`, with its points."""
    return {"format": FORMAT, "law": "loss = (flops / scale) ** -exponent + irreducible"} | (
        dataclasses.asdict(law)
    )


def write(path: Path, law: PowerLaw) -> None:
    """Publish the law."""
    storage.write_json(path, as_json(law))


def read(path: Path) -> PowerLaw:
    """The law of a file. Raises InputError."""
    try:
        value = json.loads(path.read_bytes())
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']!r}, expected {FORMAT}")
        fields = {field.name: value[field.name] for field in dataclasses.fields(PowerLaw)}
        points = tuple(Point(**point) for point in fields.pop("points"))
        for name in ("scale_interval", "exponent_interval", "irreducible_interval"):
            low, high = fields[name]
            fields[name] = (low, high)
        return PowerLaw(**fields, points=points)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a law of `train scaling fit`: {error}") from error
