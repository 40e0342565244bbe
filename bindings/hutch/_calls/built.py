# SPDX-License-Identifier: Apache-2.0
"""An environment on this host, for callers that want its files alone. Safe on any thread."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from hutch import _core
from hutch._calls.target import Target
from hutch._connect.connection import environment_of

if TYPE_CHECKING:
    from hutch._options.environment import Environment
    from hutch._options.options import Options


def tree_of(environment: Environment, options: Options) -> str:
    """The directory of its packages, which are built if they are not there. `options`: of a caller
    whom the agent's configuration would let have it. Raises DependencyInstallError, SandboxError.
    """
    plain = options._replace(
        mounts=(), modules=(), setup=None, preload=None, tools=(), node_dependencies=()
    )
    request = Target("packages", plain.changed({"environment": environment}), "").request
    digest = environment_of(request).digest
    return os.path.join(str(_core.paths()["state_dir"]), "environments", digest, "tree")
