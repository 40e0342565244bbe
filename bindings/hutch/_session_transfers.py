# SPDX-License-Identifier: Apache-2.0
"""Files between the host and a session, in parts: many small files at once, a large one piece by
piece. What the session's process says of its files may be anything: it is checked here, and names
nothing on the host. `ask(verb, *args)` has the process do something (images/worker/session_files.py
says what), and returns what it gave or raises the system's error.
"""

from __future__ import annotations

import errno
import inspect
import marshal
import os
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain, groupby
from pickle import PickleBuffer
from struct import Struct
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from hutch._carry import beneath
from hutch._carry.trees import (
    DEEPEST,
    LONGEST_PATH,
    MOST_ENTRIES,
    Content,
    Entry,
    Links,
    Tally,
    changed,
    is_a_name,
)
from hutch._errors import SandboxExecutionError

if TYPE_CHECKING:
    from hutch._carry.archives import Packer

PART = 4 << 20  # bytes of content in one message, at most
_PIECE = 1 << 20  # bytes of an open file in one message, at most
_AT_ONCE = 1000  # files in one message, at most
_PAGE = 4096  # of a file system
_FIVE = Struct("=5q")

Ask = Callable[..., Any]
Step = Callable[[int], object]  # gets each number of bytes moved


def not_said() -> SandboxExecutionError:
    return SandboxExecutionError(
        "the session's process gave an invalid reply",
        hint="its code may have replaced what replies; reset() starts a fresh interpreter",
    )


# ---- to the session


def _beside(path: str) -> str:
    """A new name in the same directory."""
    return os.path.join(os.path.dirname(path), f".hutch-{secrets.token_hex(8)}")


class Sender:
    """Puts entries there. A file of more than one part is put beside its place, and takes it at the
    end.
    """

    def __init__(self, ask: Ask, part: int, step: Step) -> None:
        self._ask = ask
        self._step = step
        self._room = bytearray(part)
        self._used = 0
        self._listed: list[tuple[Any, ...]] = []

    def send(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if len(self._listed) >= _AT_ONCE:
                self._flush()
            if entry.open is not None:
                self._add_file(entry)
            elif entry.target:
                self._listed.append((entry.path, entry.kind, entry.target))
            else:
                self._listed.append((entry.path, entry.kind))
        self._flush()

    def _flush(self) -> None:
        if self._listed:
            # Of bytes: CPython 3.11 ends where its collector finds a slice of a memoryview that is
            # exported in a circle, as that of a traceback.
            with memoryview(self._room) as view:
                content = PickleBuffer(bytes(view[: self._used]))
            self._ask("put", marshal.dumps(self._listed), content)
            self._listed.clear()
            self._used = 0

    def _add_file(self, entry: Entry) -> None:
        assert entry.open is not None
        content = entry.open()
        try:
            if content.size > len(self._room):
                self._put_beside(entry, content)
                return
            if content.size > len(self._room) - self._used:
                self._flush()
            self._read(content, 0, content.size)
            self._tell(entry.path, 0, content.size, content.size, entry.executable)
            content.check()
        finally:
            content.close()

    def _put_beside(self, entry: Entry, content: Content) -> None:
        self._flush()
        beside = _beside(entry.path)
        try:
            size: int | None = content.size
            offset = 0
            while size is not None or offset < content.size:
                start, end = content.next_data(offset)
                length = min(end - start, len(self._room) - self._used)
                self._read(content, start, length)
                self._tell(beside, start, length, size, entry.executable)
                size = None
                offset = start + length
                if self._used == len(self._room) or len(self._listed) >= _AT_ONCE:
                    self._flush()
            content.check()
            self._listed.append((beside, "rename", entry.path))
            self._flush()
        except BaseException:
            with suppress(Exception):
                self._ask("remove", beside)
            raise

    def _read(self, content: Content, offset: int, length: int) -> None:
        end = self._used + length
        with memoryview(self._room) as view:
            content.read(view[self._used : end], offset)
        self._used = end

    def _tell(self, path: str, start: int, length: int, size: int | None, executable: bool) -> None:
        self._listed.append((path, "file", start, length, size, executable))
        self._step(length)


def write_file(ask: Ask, path: str, file: IO[str] | IO[bytes], part: int, append: bool) -> None:
    """What an open file has from where it is. One of more than a piece is put beside its place, and
    takes it at the end, unless it is appended.
    """
    pieces = pieces_of(file, min(part, _PIECE))
    first = next(pieces, b"")
    second = next(pieces, b"")
    if append or not second:
        ask("write", path, first, append)
        for piece in chain((second,) if second else (), pieces):
            ask("write", path, piece, True)
        return
    beside = _beside(path)
    try:
        offset = 0
        for piece in chain((first, second), pieces):
            listed = [(beside, "file", offset, len(piece), None, False)]
            ask("put", marshal.dumps(listed), PickleBuffer(piece))
            offset += len(piece)
        ask("rename", beside, path)
    except BaseException:
        with suppress(Exception):
            ask("remove", beside)
        raise


def pieces_of(file: IO[str] | IO[bytes], most: int) -> Iterator[bytes]:
    """Its content in pieces of `most` bytes; the last one may be shorter."""
    gathered = bytearray()
    kind = type(file).__name__
    if inspect.iscoroutinefunction(file.read):
        raise TypeError(f"{kind}.read() is async: give what it gives when it is awaited")
    try:
        inspect.signature(file.read).bind(most)
    except TypeError:
        raise TypeError(f"{kind}.read() takes no size: give its content") from None
    except ValueError:  # its parameters are not known
        pass
    while True:
        read: Any = file.read(most)  # characters, of text
        if type(read) is str:
            read = read.encode("utf-8", "surrogateescape")
        if not isinstance(read, (bytes, bytearray, memoryview)):
            given = type(read).__name__
            raise TypeError(f"{kind}.read() gave {given}: an open file gives text or bytes")
        gathered += read
        while len(gathered) > most or (gathered and not read):
            yield bytes(gathered[:most])
            del gathered[:most]
        if not read:
            return


# ---- from the session


class Found(NamedTuple):
    """An entry of a session's tree, as its process tells of it."""

    name: bytes  # below the tree; its steps are names of a directory's entries
    kind: str  # "file", "directory", "link" or "other"
    executable: bool
    size: int
    mtime_ns: int
    inode: int
    target: bytes  # of a link


_KINDS = ("file", "directory", "link", "other")


def listing(ask: Ask, path: str) -> list[Found]:
    """What is in a directory and those in it. Raises OSError where that is too much."""
    return listed(ask("tree", path, MOST_ENTRIES, DEEPEST), path)


def listed(reply: Any, path: str) -> list[Found]:
    """What the answer to "tree" says."""
    if type(reply) is not tuple or [type(part) for part in reply] != [bytes] * 3:
        raise not_said()
    names, targets = _texts(reply[0]), _texts(reply[1])
    numbers = _numbers(reply[2])
    if not len(names) == len(targets) == len(numbers):
        raise not_said()
    tally = Tally(path)
    found = []
    for name, target, (kind, executable, size, mtime_ns, inode) in zip(names, targets, numbers):
        tally.add(name)  # first: a long one would take its time
        if not 0 <= kind < len(_KINDS) or size < 0 or not all(map(is_a_name, name.split(b"/"))):
            raise not_said()
        if len(target) >= LONGEST_PATH:
            raise not_said()
        entry = Found(name, _KINDS[kind], bool(executable), size, mtime_ns, inode, target)
        found.append(entry)
    return found


def _texts(data: bytes) -> list[bytes]:
    """Each ends with a zero."""
    if data[-1:] not in (b"", b"\0") or data.count(b"\0") > MOST_ENTRIES + 1:
        raise not_said()
    return data.split(b"\0")[:-1]


def _numbers(data: bytes) -> list[tuple[int, int, int, int, int]]:
    """Five for each."""
    if len(data) % _FIVE.size or len(data) > (MOST_ENTRIES + 1) * _FIVE.size:
        raise not_said()
    return list(_FIVE.iter_unpack(data))


class Piece(NamedTuple):
    file: int  # which of those that are asked for
    start: int
    content: memoryview
    size: int  # of the whole file


class Reader:
    """The content of files below `path`, each with its size as far as it is known, one after
    another: what is to be asked, until `is_over`, and what is taken from the reply.
    """

    def __init__(self, path: str, files: Sequence[tuple[bytes, int]], part: int) -> None:
        self._path = path
        self._files = files
        self._part = part
        self._at = self._offset = 0
        self._before: tuple[int, ...] = ()  # size, time and inode of a file of which there was one

    @property
    def is_over(self) -> bool:
        return self._at >= len(self._files)

    def question(self) -> tuple[Any, ...]:
        batch = _batch(self._files, self._at, self._offset, self._part)
        return "get", self._path, marshal.dumps((self._offset, batch)), self._part

    def take(self, reply: Any) -> Iterator[Piece]:
        """What lies between two pieces of a file is zeros."""
        if type(reply) is not tuple or len(reply) != 2:
            raise not_said()
        if [type(part) for part in reply] != [bytes, bytearray]:
            raise not_said()
        described, content = _numbers(reply[0]), reply[1]
        if not described:
            raise not_said()
        view = memoryview(content)
        for i, one in enumerate(described):
            start, length, size = one[:3]
            end = start + length
            if self.is_over or not (
                self._offset <= start <= end <= size and 0 <= length <= len(view)
            ):
                raise not_said()
            is_last = i == len(described) - 1
            if end < size and not (is_last and len(content) == self._part):
                raise not_said()
            if self._before and one[2:] != self._before:
                raise changed(os.path.join(self._path, os.fsdecode(self._files[self._at][0])))
            yield Piece(self._at, start, view[:length], size)
            view = view[length:]
            if end == size:
                self._at, self._offset, self._before = self._at + 1, 0, ()
            else:
                self._offset, self._before = end, one[2:]
        if view:
            raise not_said()


def failed(error: OSError) -> OSError:
    """Of the answer to what a Reader asks."""
    return changed(error.filename) if error.errno == errno.EBUSY else error


def pieces(ask: Ask, path: str, files: Sequence[tuple[bytes, int]], part: int) -> Iterator[Piece]:
    """All that a Reader takes."""
    reader = Reader(path, files, part)
    while not reader.is_over:
        try:
            reply = ask(*reader.question())
        except OSError as error:
            raise failed(error) from None
        yield from reader.take(reply)


def _batch(files: Sequence[tuple[bytes, int]], at: int, offset: int, part: int) -> list[bytes]:
    """The names of those that fit into a part, and at least one."""
    names = [files[at][0]]
    room = part - (files[at][1] - offset)
    for name, size in files[at + 1 : at + _AT_ONCE]:
        room -= size
        if room < 0:
            break
        names.append(name)
    return names


def content_of(ask: Ask, path: str, part: int, most: int) -> bytes:
    """Of one file. Raises OSError if it has more than `most` bytes."""
    return joined(pieces(ask, path, [(b"", 0)], part), path, most)


def joined(content: Iterable[Piece], path: str, most: int) -> bytes:
    """The pieces of one file."""
    return b"".join(whole for _, whole in contents_of(content, path, most))


def contents_of(content: Iterable[Piece], path: str, most: int) -> Iterator[tuple[int, bytes]]:
    """The whole content of each file: which one, and its bytes."""
    gathered: list[bytes | memoryview] = []
    end = total = 0
    for piece in content:
        if not end and not gathered:
            total += piece.size
            require_room(total, path, most)
        if piece.start > end:
            gathered.append(bytes(piece.start - end))
        gathered.append(piece.content)
        end = piece.start + len(piece.content)
        if end == piece.size:
            yield piece.file, b"".join(gathered)
            gathered, end = [], 0


def travelling(found: Iterable[Found]) -> Iterator[tuple[Found, str]]:
    """What of a tree an archive takes, and why not the others: each with "", or the reason."""
    links = Links()
    for entry in found:
        name, target = os.fsdecode(entry.name), os.fsdecode(entry.target)
        if links.is_crossed(name):
            raise not_said()
        if entry.kind == "link" and not links.add(name, target):
            yield entry, "a link that may lead out of the directory"
        elif entry.kind == "other":
            yield entry, "neither a file, a directory nor a link"
        else:
            yield entry, ""


def pack(
    ask: Ask,
    path: str,
    found: Sequence[Found],
    part: int,
    packer: Packer,
    require_room: Callable[[int], None],
    step: Step,
) -> None:
    """What travels of a tree, into an archive. `require_room(total)` raises where the files are too
    large.
    """
    for entry in found:
        if entry.kind != "file":
            target = os.fsdecode(entry.target)
            packer.add(os.fsdecode(entry.name), entry.kind, entry.mtime_ns, b"", False, target)
    files = [entry for entry in found if entry.kind == "file"]
    total = 0
    content = pieces(ask, path, [(entry.name, entry.size) for entry in files], part)
    for number, of_file in groupby(content, lambda piece: piece.file):
        entry, end = files[number], -1
        for piece in of_file:
            if end < 0:
                total, end = total + piece.size, 0
                require_room(total)
                name = os.fsdecode(entry.name)
                packer.begin_file(name, entry.mtime_ns, piece.size, entry.executable)
            for at in range(end, piece.start, PART):
                packer.write(bytes(min(PART, piece.start - at)))
            packer.write(piece.content)
            end = piece.start + len(piece.content)
            step(len(piece.content))
        packer.end_file()


class Received:
    """What is taken of the host's disk: `most_mb` at most, in whole pages. Raises OSError."""

    def __init__(self, path: str, most_mb: float) -> None:
        self._path = path
        self._most_mb = most_mb
        self._room = int(most_mb * (1 << 20))
        self._tally = Tally(path)

    def add(self, piece: Piece, is_first: bool) -> None:
        if is_first:
            self._tally.add_bytes(piece.size)
        self._room -= -len(piece.content) // _PAGE * -_PAGE
        if self._room < 0:
            raise OSError(
                errno.EFBIG,
                f"it has more than {self._most_mb:g} MiB, without holes: give download() a larger "
                "limit_mb",
                self._path,
            )


def require_room(size: int, path: str, most: int) -> None:
    if size > most:
        text = (
            f"that is more than result_mb ({most / (1 << 20):g} MiB): download() it, or "
            "give the session a larger result_mb"
        )
        raise OSError(errno.EFBIG, text, path)


def download_file(
    ask: Ask, path: str, target: str, executable: bool, part: int, received: Received, step: Step
) -> None:
    """To a file of the host, which is replaced once the new one is whole."""
    with beneath.new_file(target, executable) as file:
        _write(file, pieces(ask, path, [(b"", 0)], part), received, step)


def _write(file: int, content: Iterable[Piece], received: Received, step: Step) -> None:
    size = -1
    for piece in content:
        received.add(piece, size < 0)
        size = piece.size
        beneath.write_at(file, piece.start, piece.content)
        step(len(piece.content))
    os.ftruncate(file, max(size, 0))


def download_tree(
    ask: Ask,
    path: str,
    target: str,
    found: Sequence[Found],
    part: int,
    received: Received,
    step: Step,
) -> None:
    """To a new or empty directory of the host."""
    files = [entry for entry in found if entry.kind == "file"]
    with beneath.new_tree(target) as tree:
        for entry in found:
            if entry.kind == "directory":
                tree.add_directory(entry.name)
        content = pieces(ask, path, [(entry.name, entry.size) for entry in files], part)
        for number, of_file in groupby(content, lambda piece: piece.file):
            entry = files[number]
            file = tree.add_file(entry.name, entry.executable)
            try:
                _write(file, of_file, received, step)
            finally:
                os.close(file)
