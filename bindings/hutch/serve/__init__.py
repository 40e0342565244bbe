# SPDX-License-Identifier: Apache-2.0
"""`hutch serve`: runs programs that are posted over HTTP, in the protocols that trainers and
evaluations speak already. Needs `hutch[serve]`: Starlette, uvicorn, httptools and uvloop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from hutch.serve.settings import Settings


def make_app(settings: Settings | None = None) -> Starlette:
    """The ASGI application, for a server of your own. `settings=None` reads agent.toml."""
    from hutch.serve.app import make_app as make
    from hutch.serve.settings import read

    return make(read() if settings is None else settings)
