"""Types that several sections of `params.yaml` share."""

from typing import Annotated

from pydantic import Field

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(ge=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]
