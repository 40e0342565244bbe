# SPDX-License-Identifier: Apache-2.0
"""What a session has when it begins, and what is taken of it by a snapshot, or saved of a named
one: its files, the names of its code, its history.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hutch._carry.container import Container, Given
from hutch._errors import SandboxError
from hutch._restored import Dispensable, Restored
from hutch._session_cell import SessionCell
from hutch._session_files import SessionFiles, entries_of
from hutch._session_packages import Packages
from hutch._session_snapshots import Snapshots

if TYPE_CHECKING:
    from hutch._options.options import Options
    from hutch._session_named import Named


@dataclass(frozen=True)
class BeginsAs:
    """What a session has before its first call; `container`: of a snapshot."""

    container: Container | None = None
    with_globals: bool = True
    named: Named | None = None

    def close(self) -> None:
        if self.container is not None:
            self.container.close()
        if self.named is not None:
            self.named.close()


def begins_as_of(
    id: str | None, storage: Any, steal: bool, snapshot: Given | None, with_globals: bool
) -> BeginsAs:
    """Of Session's keywords of these names. Raises ValueError, TypeError, and what Named does."""
    if id is None:
        if storage is not None or steal:
            raise ValueError("storage= and steal= are for a session with a name: give it an id=")
        return BeginsAs(None if snapshot is None else Container(snapshot), with_globals)
    if snapshot is not None:
        raise ValueError(
            "a session with an id= begins as it was saved: open it without snapshot=, and restore()"
        )
    from hutch._session_named import Named

    named = Named(storage, id, steal)
    return BeginsAs(named.container, with_globals, named)


class Contents:
    """`execs`: how many pieces of code ran. `left_out`: what the last snapshot does not have, by
    name, with why. `is_new`: its files are still to be put there. `packages`: added to it.
    """

    def __init__(
        self,
        begins_as: BeginsAs,
        files: Mapping[str, Any],
        place: tuple[SessionFiles, Snapshots],
        is_mounted: bool,
        cell: SessionCell,
        options: Options,
    ) -> None:
        """`files`: put there before the first call. `is_mounted`: its directory is the host's."""
        container = begins_as.container
        self.execs = 0 if container is None else container.notes.execs
        self.left_out = {} if container is None else dict(container.notes.left_out)
        self.is_new = True
        self._begins_as = begins_as
        self._initial = entries_of(files)
        self._files, self._snapshots = place
        self.packages = Packages(options, self._files)
        self._is_mounted = is_mounted
        self._cell = cell

    @property
    def needs_calls(self) -> bool:
        """Whether anything has to be sent or looked at when it begins."""
        return bool(self._initial or self.packages.pins) or self._looks

    @property
    def _looks(self) -> bool:
        """Whether there are files beside its initial ones when it begins."""
        return self._is_mounted or self._begins_as.container is not None

    def require(self) -> None:
        """Raises SnapshotError where it cannot begin as what it is to."""
        if self._begins_as.container is not None:
            self._snapshots.require(self._begins_as.container, self._begins_as.with_globals)

    def put_at_start(self) -> None:
        """Within a call of parts."""
        begins_as = self._begins_as
        quiet = contextlib.nullcontext() if begins_as.named is None else begins_as.named.quiet()
        with quiet:
            if begins_as.container is not None:
                self._snapshots.unwanted(begins_as.container)
            self.packages.bring_back(_pins(begins_as.container, begins_as.with_globals))
            if begins_as.container is not None:
                self._snapshots.restore_within(begins_as.container, begins_as.with_globals)
            self._files._begin(self._initial, self._looks)
        if begins_as.named is not None:
            # What reset(files=True) makes is a new one, not what was saved once.
            self._begins_as = replace(begins_as, container=None)

    def take(self, to: str | os.PathLike[str] | None, with_globals: bool) -> bytes | None:
        """A snapshot: its bytes, or None where they are in the file `to`."""
        data, self.left_out = self._snapshots.take(to, with_globals, self._header, {})
        return data

    def restore(
        self,
        container: Container,
        with_globals: bool,
        dispensable: Dispensable,
        end_of_names: Callable[[], None],
    ) -> Restored:
        """`end_of_names()` is called where those of before are there no more."""
        pins = _pins(container, with_globals)
        without: dict[str, str] = {}

        @contextlib.contextmanager
        def around() -> Iterator[None]:
            with self.packages.brought_back(pins, dispensable) as left_out:
                yield
            without.update(left_out)
            if with_globals and "globals" in container:
                end_of_names()
            self._files._begin((), True)

        receipt = self._snapshots.restore(container, with_globals, dispensable, around())
        self.execs = max(self.execs, container.notes.execs)
        self.left_out = {**receipt.left_out, **without}
        packages = [pin for pin in pins if pin not in without]
        return replace(receipt, packages=packages, left_out=dict(self.left_out))

    def taken_to_save(self, known_names: list[str]) -> Callable[[], None]:
        """Takes the state of a named session, within a call of parts. What is returned puts it into
        the storage.
        """
        named = self._begins_as.named
        assert named is not None
        with named.quiet():
            changes, names = named.changes, set(known_names)
            history, parts = named.history.sealed()
            data, self.left_out = self._taken(named, known_names, {"history": history})

        def save() -> None:
            named.save(data, changes, names - self.left_out.keys())
            named.history.forget(parts)

        return save

    def _taken(
        self, named: Named, known_names: list[str], sections: dict[str, bytes]
    ) -> tuple[bytes, dict[str, str]]:
        interpreter = self._cell.interpreter
        try:
            return self._snapshots.take_within(True, self._header, sections)
        except SandboxError as error:
            if self._cell.interpreter == interpreter or self._cell.closed:
                raise
            # Its names have ended the interpreter, and so themselves; its files are there.
            named.tell(error, "is saved without its names")
            why = f"it was lost when the session was saved: {error.message}"
            lost = dict.fromkeys(known_names, why)
            return self._snapshots.take_within(True, self._header, sections, lost)

    def close(self) -> None:
        self._begins_as.close()

    def _header(self) -> tuple[str, int, tuple[str, ...]]:
        """Of a snapshot: the digest of the environment, how many pieces of code ran, and which
        packages were added.
        """
        return self._cell.digest, self.execs, self.packages.pins


def _pins(container: Container | None, with_globals: bool) -> tuple[str, ...]:
    return tuple(container.notes.packages) if container is not None and with_globals else ()
