# SPDX-License-Identifier: Apache-2.0
"""The keywords of `@sandbox`, `.options`, `hutch.run`, `Program` and `function`, as options."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hutch._options.options import NORMAL, POLICY_FIELDS, Options

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import ModuleType

    from hutch._options.environment import Environment
    from hutch._options.options import PolicyKeywords, Pool
    from hutch._options.policy import Policy
    from hutch._tools import Tool

    class Keywords(PolicyKeywords, total=False):
        """The keywords of `@sandbox`, `.options`, `hutch.run`, `Program` and `function`."""

        dependencies: Iterable[str] | str
        node_dependencies: Iterable[str] | str
        allow_private_index: bool
        environment: Environment | str | os.PathLike[str] | None
        modules: Iterable[ModuleType | str | os.PathLike[str]] | ModuleType | str
        preload: Iterable[str] | str | None
        setup: Callable[[], object] | None
        pool: Pool
        disable_cache: bool
        policy: Policy | str | os.PathLike[str] | None
        labels: Mapping[str, str]
        echo: bool | None
        on_stdout: Callable[[str], object] | None
        on_stderr: Callable[[str], object] | None
        key: str | None
        tools: Iterable[Callable[..., Any] | Tool]


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
