# SPDX-License-Identifier: Apache-2.0
"""Classes of a caller's that no data of a sandbox may be made into: as results, or as arguments of
tools.
"""

from __future__ import annotations

import fractions
import re
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
from pydantic import BaseModel, Field, ImportString
from pydantic.dataclasses import dataclass as pydantic_dataclass

READ: list[Any] = []  # what an __init__ was given


class Inner(BaseModel):
    hooks: list[Optional[ImportString]] = []


class Deep(BaseModel):
    inner: dict[str, tuple[Inner, ...]] = {}


@pydantic_dataclass
class Settings:
    hook: ImportString = None  # type: ignore[valid-type]


class Root(pydantic.RootModel[list[ImportString]]):
    pass


class OnDisk(BaseModel):
    path: pydantic.FilePath


class Plugin(BaseModel):
    kind: Literal["config"] = "config"
    hook: ImportString


class Other(BaseModel):
    kind: Literal["other"] = "other"


class Tagged(BaseModel):
    """Its choices and its field have the names that schemas have."""

    metadata: Annotated[Union[Plugin, Other], Field(discriminator="kind")]


# What acts on this process, with the field that does.
ACTING: list[tuple[Any, str]] = [
    (Inner, "Inner.hooks"),
    (Deep, "Deep.inner.hooks"),
    (Settings, "Settings.hook"),
    (Root, "Root.root"),
    (OnDisk, "OnDisk.path"),
    (Tagged, "Tagged.metadata.hook"),
]


class TakesMore(BaseModel, extra="allow"):
    """As pydantic-settings, whose `_env_file` names a file that is read here."""

    name: str = ""

    def __init__(given, _env_file: Any = None, **data: Any) -> None:
        if _env_file is not None:
            READ.append(_env_file)
        super().__init__(**data)


class TakesAny(BaseModel):
    name: str = ""

    def __init__(self, **data: Any) -> None:
        READ.extend(set(data) - {"name"})
        super().__init__(**data)


class Holds(BaseModel):
    """Within another one."""

    config: list[TakesMore] = []


# Whose own `__init__` would be given keys that are no fields.
OWN_INIT: list[Any] = [TakesMore, TakesAny, Holds]


class And(BaseModel):
    args: list[Union[And, Or, int]]


class Or(BaseModel):
    args: list[Union[And, Or, int]]


class Named(BaseModel):
    """A field with a name that schemas have leads back to the union."""

    config: Union[Named, Twin, None] = None


class Twin(BaseModel):
    config: Union[Named, Twin, None] = None


# What pydantic tries again and again, at every level.
TRIED_AGAIN: list[Any] = [And, Named]


class OfPattern(BaseModel):
    pattern: re.Pattern[str]


class OfFraction(BaseModel):
    ratio: fractions.Fraction


class OfJson(BaseModel):
    text: pydantic.Json[Any]


# What a text may keep busy for any time.
BOUNDLESS: list[Any] = [OfPattern, OfFraction, OfJson]
