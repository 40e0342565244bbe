"""`Environment`: what a sandbox has installed, where a list of requirements does not say it all."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_LATER = ("python index_url extra_index_urls find_links constraints lock allow_urls base").split()


class Environment:
    """`dependencies` as `@sandbox` takes them. `allow_sdists` (default False): a package without a
    wheel may be built from source, which runs that package's code while it is installed; such a
    build has a cache of its own, so that it can spoil no other environment.

        @sandbox(environment=Environment(["docopt"], allow_sdists=True))
        def usage(text): ...

    Raises RequirementError for what is no requirement, ValueError for a field not yet there.
    """

    __slots__ = ("dependencies", "allow_sdists")

    def __init__(
        self,
        dependencies: Iterable[str] | str = (),
        *,
        allow_sdists: bool = False,
        **later: Any,
    ) -> None:
        for name, value in later.items():
            if name not in _LATER:
                raise TypeError(f"Environment has no field {name!r}")
            if value not in (None, (), [], False):
                raise ValueError(f"Environment({name}=) is not supported yet: leave it out")
        if not isinstance(allow_sdists, bool):
            raise TypeError(f"allow_sdists takes True or False, not {type(allow_sdists).__name__}")
        from hutch._requirements import normalize

        items = [dependencies] if isinstance(dependencies, str) else dependencies
        self.dependencies: tuple[str, ...] = normalize(items)
        self.allow_sdists = allow_sdists

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Environment):
            return NotImplemented
        return self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[Any, ...]:
        return (self.dependencies, self.allow_sdists)

    def __repr__(self) -> str:
        return f"Environment({list(self.dependencies)}, allow_sdists={self.allow_sdists})"
