# SPDX-License-Identifier: Apache-2.0
"""The keywords of `@sandbox`, `.options`, `hutch.run`, `Program` and `function`, as options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._options.options import NORMAL, POLICY_FIELDS, Options

if TYPE_CHECKING:
    from collections.abc import Mapping


def with_keywords(options: Options, keywords: Mapping[str, Any]) -> Options:
    """The options with the keywords, checked, in place of some. A `policy` among them comes first,
    wherever it stands. Raises ValueError or TypeError.
    """
    if "policy" not in keywords:
        return options.changed(keywords)
    others = dict(keywords)
    return _with_policy(options, others.pop("policy")).changed(others)


def _with_policy(options: Options, policy: Any) -> Options:
    if policy is None:
        return options
    if policy == "normal":
        return options._replace(**{name: getattr(NORMAL, name) for name in POLICY_FIELDS})
    from hutch._options.policy import Policy

    return options._replace(**Policy.of(policy).fields())
