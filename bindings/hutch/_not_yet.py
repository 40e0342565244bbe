# SPDX-License-Identifier: Apache-2.0
"""Names that are decided on but not supported yet, with what to do meanwhile: for the error of
whoever uses one. Values.
"""

from __future__ import annotations

from collections.abc import Container

KEYWORDS_OF_SESSION = {
    "checkpoint": "a limit that ends the interpreter costs its names; files stay",
    "forkable": "s.child() has the names that there are, and its own from then on",
}
OF_SESSION = {
    "fork": "s.child() has the names that there are, and its own from then on",
}
OF_HUTCH = {
    "run_notebook": "run the source of each cell by Session.exec()",
}


def refuse_keywords(given: Container[str]) -> None:
    """Raises TypeError for one of `given` that Session will take."""
    for name, instead in KEYWORDS_OF_SESSION.items():
        if name in given:
            raise TypeError(f"Session({name}=) is not implemented yet: {instead}")


def absent(kind: str, name: str) -> AttributeError:
    """For what a session has no attribute of."""
    instead = OF_SESSION.get(name)
    if instead is None:
        return AttributeError(f"{kind!r} object has no attribute {name!r}")
    return AttributeError(f"{kind}.{name} is not implemented yet: {instead}")
