# SPDX-License-Identifier: Apache-2.0
"""Snapshots of a session: what they are made of, and how a session gets it back.

Names are pickled and opened by the session's own process; here they are bytes. What comes from it,
and what a snapshot holds, may be anything.
"""

from __future__ import annotations

import errno
import io
import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pickle import PickleBuffer
from typing import Any, BinaryIO

from hutch import _session_transfers as transfers
from hutch._carry import beneath
from hutch._carry.container import MOST_NAME, MOST_REASON, Container, Notes, Writer
from hutch._carry.trees import Entry
from hutch._errors import SnapshotError
from hutch._restored import NOTHING, Dispensable, Restored, RestoredPart, Sums, names_said
from hutch._session_files import checked, progress_of
from hutch._session_transfers import not_said
from hutch._text import brief_repr, one_line, shortened

Header = Callable[[], tuple[str, int, tuple[str, ...]]]
_MOUNTED = "it is a mount: its files are the host's"
_CONFLICTS = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOENT, errno.ENOTEMPTY)
_NO_ROOM = "all files of the snapshot are more than disk_mb"
_WITHOUT = "globals=False takes its files alone"


@dataclass(frozen=True)
class Place:
    """What a session is, to a snapshot. `python`: as "3.11"; `mounted`: its directory is the
    host's; `files_mb`, `memory_mb`: its limits.
    """

    python: str
    mounted: bool
    files_mb: float
    memory_mb: float


class Snapshots:
    """`hold`: the session is busy meanwhile; `send(verb, *args)` has its process do something."""

    def __init__(
        self,
        hold: Callable[[], AbstractContextManager[None]],
        send: Callable[..., Any],
        place: Place,
        part: int,
    ) -> None:
        self._hold = hold
        self._send = send
        self._place = place
        self._part = part

    # ---- taking one

    def take(
        self,
        to: str | os.PathLike[str] | None,
        with_globals: bool,
        header: Header,
        sections: dict[str, bytes],
    ) -> tuple[bytes | None, dict[str, str]]:
        """Its bytes, or None where they are in the file `to`, and what was left out. `header()`:
        the digest of the environment, how many pieces of code ran, and the packages that were
        added. `sections`: more of them.
        """
        with self._hold():
            if to is None:
                return self.take_within(with_globals, header, sections)
            target = os.fsdecode(to)
            with beneath.new_file(target, False) as fd, open(fd, "wb", closefd=False) as file:
                return None, self._write(file, with_globals, header, sections)

    def take_within(
        self,
        with_globals: bool,
        header: Header,
        sections: dict[str, bytes],
        lost: Mapping[str, str] | None = None,
    ) -> tuple[bytes, dict[str, str]]:
        """Within a hold: its bytes. `lost`: what is left out in any case, with why."""
        out = io.BytesIO()
        left_out = self._write(out, with_globals, header, sections, lost)
        return out.getvalue(), left_out

    def _write(
        self,
        out: BinaryIO,
        with_globals: bool,
        header: Header,
        more: dict[str, bytes],
        lost: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        left_out: dict[str, str] = dict(lost or {})
        found = self._listing(left_out)
        size = self._begin_names(left_out) if with_globals else 0
        try:
            environment, execs, packages = header()
            notes = Notes(self._place.python, environment, execs, left_out, packages)
            count = (found is not None) + with_globals + len(more)
            writer = Writer(out, notes, count)
            total = sum(entry.size for entry in found or () if entry.kind == "file")
            with progress_of("snapshot", "receiving", total + size) as step:
                if found is not None:
                    with writer.section("files") as section:
                        self._write_files(section, found, step)
                if with_globals:
                    with writer.section("globals") as section:
                        self._write_names(section, size, step)
            for name, data in more.items():
                with writer.section(name) as section:
                    section.write(data)
            writer.finish()
        finally:
            if with_globals:
                with suppress(Exception):
                    self._send("state.drop")
        return left_out

    def _listing(self, left_out: dict[str, str]) -> list[transfers.Found] | None:
        """The entries of its directory that travel; None: it is the host's."""
        if self._place.mounted:
            left_out["./"] = _MOUNTED
            return None
        found, kept = transfers.listing(self._ask, "."), []
        for entry, why in transfers.travelling(found):
            if why:
                left_out[f"./{os.fsdecode(entry.name)}"[:MOST_NAME]] = why
            else:
                kept.append(entry)
        return kept

    def _write_files(self, out: Writer, found: list[transfers.Found], step: transfers.Step) -> None:
        from hutch._carry.archives import Packer

        packer = Packer(out.write)
        transfers.pack(self._ask, ".", found, self._part, packer, self._require_room, step)
        packer.close()

    def _require_room(self, total: int) -> None:
        if total > self._place.files_mb * (1 << 20):
            text = (
                f"its files are larger than disk_mb ({self._place.files_mb:g} MiB), holes "
                "included: delete some, or give the session a larger disk_mb"
            )
            raise OSError(errno.EFBIG, text)

    def _begin_names(self, left_out: dict[str, str]) -> int:
        """How many bytes they are."""
        reply = self._send("state.take")
        if type(reply) is not tuple or len(reply) != 2:
            raise not_said()
        size, refused = reply
        if type(size) is not int or type(refused) is not list or size < 0:
            raise not_said()
        if size > self._place.memory_mb * (1 << 20):
            raise not_said()
        for one in refused:
            if type(one) is not tuple or [type(text) for text in one] != [str, str]:
                raise not_said()
            left_out[one[0][:MOST_NAME]] = shortened(one_line(one[1]), MOST_REASON - 10)
        return size

    def _write_names(self, out: Writer, size: int, step: transfers.Step) -> None:
        done = 0
        while done < size:
            part = self._send("state.part", done, self._part)
            if type(part) not in (bytes, bytearray) or len(part) != min(self._part, size - done):
                raise not_said()
            out.write(part)
            done += len(part)
            step(len(part))

    # ---- restoring one

    def require(self, container: Container, with_globals: bool) -> None:
        """Raises SnapshotError for one that this session cannot have."""
        made = container.notes.python
        if with_globals and "globals" in container and made != self._place.python:
            raise SnapshotError(
                f"the snapshot's globals are of Python {brief_repr(made)[1:-1]}, and this session "
                f"has Python {self._place.python}",
                hint=f"take the same Python, or {_WITHOUT}",
            )
        if self._place.mounted and "files" in container:
            raise SnapshotError(
                "the snapshot has files, and this session's directory is a mount of the host's",
                hint="give the session a cwd= in /work",
            )

    def restore(
        self,
        container: Container,
        with_globals: bool,
        dispensable: Dispensable,
        around: AbstractContextManager[None],
    ) -> Restored:
        """All of it, or nothing, within `around`. Raises SnapshotError, or what the session's calls
        raise.
        """
        self.require(container, with_globals)
        unwanted = self.unwanted(container, dispensable)
        with self._hold(), around:
            return self.restore_within(container, with_globals, dispensable, unwanted)

    def restore_within(
        self,
        container: Container,
        with_globals: bool,
        dispensable: Dispensable = NOTHING,
        unwanted: Dispensable = NOTHING,
    ) -> Restored:
        """Within a hold. The packages were added before."""
        has_files = "files" in container
        has_names = with_globals and "globals" in container
        left_out = dict(container.notes.left_out)
        left_out.update((f"./{path}", _NO_ROOM) for path in unwanted.paths)
        staged = f".hutch-{secrets.token_hex(8)}" if has_files else None
        files: dict[str, RestoredPart] = {}
        total = sum(container.size_of(name) for name in ("files", "globals") if name in container)
        try:
            with progress_of("restore", "sending", total) as step:
                if staged is not None:
                    files = self._send_files(container, staged, unwanted, step)
                if has_names:
                    self._send_names(container, step)
            reply = self._send("state.restore", staged, sorted(dispensable.names))
        except BaseException:
            if staged is not None:
                with suppress(Exception):
                    self._send("state.undo", staged)
            raise
        names, not_opened = _restored(reply)
        return Restored(names, files, [], {**left_out, **not_opened})

    def unwanted(self, container: Container, dispensable: Dispensable = NOTHING) -> Dispensable:
        """The files that are left out, for which there is no room. Nothing is sent yet. Raises
        SnapshotError for an archive that is refused.
        """
        if "files" not in container:
            return NOTHING
        wanted = [NOTHING, dispensable] if dispensable.paths else [NOTHING]
        for unwanted in wanted:
            with container.opened("files") as archive, _as_damage():
                try:
                    for _ in self._entries_of(archive, ".", unwanted):
                        pass
                    break
                except OSError as error:
                    if error.errno != errno.EFBIG or unwanted is wanted[-1]:
                        raise
        return unwanted

    def _send_files(
        self, container: Container, staged: str, unwanted: Dispensable, step: transfers.Step
    ) -> dict[str, RestoredPart]:
        """Of each its size and its sum."""
        sums = Sums(staged)
        with container.opened("files") as archive, _as_conflict():
            sender = transfers.Sender(self._ask, self._part, step)
            sender.send(sums.of(self._entries_of(archive, staged, unwanted)))
        return sums.files

    def _entries_of(self, archive: BinaryIO, path: str, unwanted: Dispensable) -> Iterator[Entry]:
        from hutch._carry import archives

        more = "give the session a larger disk_mb"
        files_mb = self._place.files_mb
        return archives.entries_of(archive, path, files_mb, more, unwanted.has_path)

    def _send_names(self, container: Container, step: transfers.Step) -> None:
        self._send("state.begin", container.size_of("globals"))
        for chunk in container.chunks("globals", self._part):
            self._send("state.give", PickleBuffer(chunk))
            step(len(chunk))

    def _ask(self, verb: str, *args: Any) -> Any:
        return checked(self._send("files." + verb, *args), args[0])


@contextmanager
def _as_damage() -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise SnapshotError(f"the snapshot's files are refused: {error}") from None
    except OSError as error:
        if error.errno not in (errno.EFBIG, errno.ENAMETOOLONG):
            raise
        raise SnapshotError(f"the snapshot's files are refused: {error.strerror}") from None


@contextmanager
def _as_conflict() -> Iterator[None]:
    """For files of which one takes the place of another."""
    try:
        yield
    except OSError as error:
        if error.errno not in _CONFLICTS:
            raise
        why = f"two of them have one place: {error.strerror}"
        raise SnapshotError(f"the snapshot's files are refused: {why}") from None


def _restored(reply: Any) -> tuple[dict[str, RestoredPart], dict[str, str]]:
    if type(reply) is tuple and reply[:1] == ("ok",):
        return names_said(reply[1:])
    if type(reply) is not tuple or not all(type(one) is str for one in reply):
        raise not_said()
    said = [shortened(one_line(one), MOST_REASON) for one in reply[1:]]
    if reply[0] == "missing" and len(said) == 2:
        raise SnapshotError(
            f"the snapshot's globals need the module {said[0]!r}, which this session does not have",
            hint=f"name its package in dependencies=, or {_WITHOUT}",
        )
    if reply[0] == "refused" and len(said) == 1:
        raise SnapshotError(
            f"the snapshot's globals cannot be opened in this session: {said[0]}", hint=_WITHOUT
        )
    raise not_said()
