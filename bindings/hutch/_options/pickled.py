# SPDX-License-Identifier: Apache-2.0
"""Options as what a pickle may hold, for another process of the host.

A pickle may be written to a disk, so it has no value of a Secret: only the variable's name. Safe on
any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

from hutch._errors import SerializationError
from hutch._options.options import FIELDS, NORMAL, Options


def packed(options: Options) -> dict[str, Any]:
    """What differs from the defaults. Raises SerializationError for a Secret given by its value."""
    given = {
        name: value
        for name, value in options._asdict().items()
        if value is not getattr(NORMAL, name)
    }
    if options.modules:
        given["modules"] = tuple(
            one.__name__ if isinstance(one, ModuleType) else one for one in options.modules
        )
    if options.secrets:
        given["secrets"] = {
            host: {header: _fields(host, header, secret) for header, secret in headers}
            for host, headers in options.secrets
        }
    return given


def _fields(host: str, header: str, secret: Any) -> dict[str, Any]:
    try:
        fields: dict[str, Any] = secret.to_fields()
        return fields
    except ValueError:
        raise SerializationError(
            f"secrets= has a Secret for {header} of {host} by its value, which no pickle may hold",
            hint="name a variable that the other process has: Secret.from_env(...)",
            path="secrets",
            type_name="Secret",
        ) from None


def unpacked(given: Mapping[str, Any]) -> Options:
    """The options that `packed` was given."""
    options = NORMAL._replace(**given)
    if options.secrets:
        secrets = FIELDS["secrets"].check("secrets", options.secrets)
        options = options._replace(secrets=secrets)
    return options
