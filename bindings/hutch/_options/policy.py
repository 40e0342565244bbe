# SPDX-License-Identifier: Apache-2.0
"""Policy: what one call may use and reach, as a value of its own; the presets; its TOML.

Immutable; safe on any thread.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from hutch._options.checks import nearest, quoted, unknown
from hutch._options.options import ALIASES, FIELDS, NORMAL, POLICY_FIELDS, Options

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from hutch._options.keyword_types import PolicyKeywords

    class PolicyFields(PolicyKeywords, total=False):
        """What a `Policy` takes."""

        allow_sdists: bool
        hard_limits: bool
        refuse_secrets: bool


_PRESETS: dict[str, dict[str, Any]] = {
    "strict": {
        "timeout_sec": 5,
        "cpu_sec": 5,
        "memory_mb": 256,
        "disk_mb": 64,
        "pids": 16,
        "result_mb": 16,
        "hard_limits": True,
        "refuse_secrets": True,
        "check_result": True,
    },
    "normal": {},
    "permissive": {
        "timeout_sec": 300,
        "memory_mb": 4096,
        "disk_mb": 2048,
        "pids": 512,
        "result_mb": 2048,
        "allow_sdists": True,
    },
}


class Policy:
    """What one call may use and reach. Frozen; what is not given is as in the preset "normal".

        untrusted = Policy.strict().replace(timeout_sec=2, hard_limits=False)

        @sandbox(policy=untrusted)
        def f(x): ...

    Seconds: `timeout_sec` (default 30; None: unlimited), `cpu_sec` (None), `queue_sec` (60),
    `build_sec` (600), `max_age_sec` (3600). MiB: `memory_mb` (1024), `disk_mb` (256, part of
    memory_mb), `output_mb` (1), `result_mb` (512). Numbers: `cpus` (1), `pids` (64), `max_calls`
    (10_000). `check_result` (False): a result that is not as annotated is an error. Then
    `isolation` ("cell"), `allow_network` (()), `env` ({}), `secrets` ({}), and three that are no
    keywords of @sandbox: `allow_sdists` (False): packages without a wheel may be built from source;
    `hard_limits` (False): refuse a host that cannot enforce each limit hard; `refuse_secrets`
    (False): refuse a function that carries the value of an environment variable of this process.

    Raises ValueError or TypeError, naming the field, the value and what is allowed; an unknown
    field with the one that was meant.
    """

    __module__ = "hutch"

    __slots__ = ("_options",)
    _options: Options

    def __init__(self, **fields: Unpack[PolicyFields]) -> None:
        object.__setattr__(self, "_options", _changed(NORMAL, fields))

    @classmethod
    def strict(cls) -> Policy:
        """For code of strangers: 5 s, 256 MiB, 16 processes; refuses what cannot be held hard."""
        return cls._preset("strict")

    @classmethod
    def normal(cls) -> Policy:
        """The defaults of every keyword."""
        return cls._preset("normal")

    @classmethod
    def permissive(cls) -> Policy:
        """For heavy work: 300 s, 4096 MiB, 512 processes, source builds. No network either."""
        return cls._preset("permissive")

    @classmethod
    def _preset(cls, name: str) -> Policy:
        return cls(**cast(Any, _PRESETS[name]))

    @classmethod
    def of(cls, value: Policy | str | os.PathLike[str]) -> Policy:
        """What `policy=` takes: a Policy, a preset's name, or the path of a TOML file."""
        if isinstance(value, Policy):
            return value
        if isinstance(value, str) and value in _PRESETS:
            return cls._preset(value)
        if not isinstance(value, (str, os.PathLike)):
            raise TypeError(
                f"policy takes a preset's name, a hutch.Policy or the path of a TOML file, not "
                f"{type(value).__name__}: {quoted(value)}"
            )
        if isinstance(value, str) and os.sep not in value and not value.endswith(".toml"):
            meant = nearest(value, _PRESETS)
            raise ValueError(
                f"policy={value!r} is not a preset ({', '.join(_PRESETS)}) or a path of a TOML file"
                + (f"; did you mean {meant!r}?" if meant else "")
            )
        return cls.from_toml(value)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Policy:
        """Reads a file of fields, as `memory_mb = 512`. `preset = "strict"` says what holds for
        those that are missing (default "normal"); "unlimited" stands for None.

        Raises OSError where it cannot be read; ValueError, with the file's name, for what is no
        TOML, an unknown field (with the one that was meant) and a bad value.
        """
        from hutch._options import toml

        fields = toml.read(path)
        preset = fields.pop("preset", "normal")
        try:
            if not isinstance(preset, str) or preset not in _PRESETS:
                raise ValueError(f"preset is one of {', '.join(_PRESETS)}, not {quoted(preset)}")
            return cls(**{**_PRESETS[preset], **fields})
        except (ValueError, TypeError) as error:
            raise ValueError(f"{os.fspath(path)}: {error}") from None

    def to_toml(self) -> str:
        """All its fields as TOML, which `from_toml` reads back as an equal policy."""
        from hutch._options import toml

        return toml.written(self.fields())

    def replace(self, **fields: Unpack[PolicyFields]) -> Policy:
        """The same with these fields in place of its own, checked."""
        changed = object.__new__(type(self))
        object.__setattr__(changed, "_options", _changed(self._options, fields))
        return changed

    def fields(self) -> dict[str, Any]:
        """Its fields by name, as they are kept: pairs for dicts, tuples for lists."""
        return {name: getattr(self._options, name) for name in POLICY_FIELDS}

    def __getattr__(self, name: str) -> Any:
        if name in POLICY_FIELDS:
            value = getattr(self._options, name)
            return dict(value) if name in ("env", "mounts", "secrets") else value
        raise AttributeError(f"Policy has no field {name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Policy is frozen: policy.replace({name}=...) gives a changed one")

    def __delattr__(self, name: str) -> None:
        self.__setattr__(name, None)

    def __dir__(self) -> list[str]:
        return sorted({*object.__dir__(self), *POLICY_FIELDS})

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Policy):
            return NotImplemented
        return self.fields() == other.fields()

    def __hash__(self) -> int:
        return hash(tuple(self.fields().values()))

    def __repr__(self) -> str:
        """What differs from "normal"."""
        parts = (
            f"{name}={getattr(self, name)!r}"
            for name in POLICY_FIELDS
            if getattr(self._options, name) != getattr(NORMAL, name)
        )
        return f"Policy({', '.join(parts)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_restored, (self.fields(),))


def _changed(options: Options, fields: Mapping[str, Any]) -> Options:
    for name in fields:
        if name not in POLICY_FIELDS:
            raise TypeError(unknown("field", name, POLICY_FIELDS, ALIASES))
    checked = {
        name: FIELDS[name].check(name, value)
        for name, value in fields.items()
        if not FIELDS[name].keyword
    }
    keywords = {name: value for name, value in fields.items() if FIELDS[name].keyword}
    return options.changed(keywords)._replace(**checked)


def _restored(fields: dict[str, Any]) -> Policy:
    policy = object.__new__(Policy)
    object.__setattr__(policy, "_options", NORMAL._replace(**fields))
    return policy
