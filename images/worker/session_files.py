# SPDX-License-Identifier: Apache-2.0
"""What a session does with its files for its client, in the user process of its cell.

Names go out as bytes. The other side believes nothing of what comes from here. One thread.
"""

from __future__ import annotations

import errno
import marshal
import os
import stat
from array import array
from collections.abc import Callable
from typing import Any

import added_packages

KINDS = ("file", "directory", "link", "other")
FILE_TYPES = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
READING = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
WRITING = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def failed(number: int, path: str) -> OSError:
    return OSError(number, os.strerror(number), path)


def kind_of(mode: int) -> str:
    return FILE_TYPES.get(stat.S_IFMT(mode), "other")


def open_file(path: str, flags: int) -> int:
    """A FIFO or a device is refused, and blocks nobody."""
    fd = os.open(path, flags, 0o644)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return fd
    os.close(fd)
    raise failed(errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL, path)


def write_all(fd: int, data: memoryview, offset: int | None = None) -> None:
    while data:
        part = data[: 1 << 30]
        if offset is None:
            written = os.write(fd, part)
        else:
            written = os.pwrite(fd, part, offset)
            offset += written
        data = data[written:]


def nameless_file(content: bytes) -> int:
    """With this content, to be read from its beginning, and gone once nobody has it open."""
    flags = os.O_RDWR | os.O_CLOEXEC
    try:
        fd = os.open("/tmp", os.O_TMPFILE | flags, 0o600)
    except OSError:  # gVisor has no such files
        path = f"/tmp/.{os.urandom(8).hex()}"  # several threads make one
        fd = os.open(path, os.O_CREAT | os.O_EXCL | flags, 0o600)
        os.unlink(path)
    try:
        write_all(fd, memoryview(content))
        os.lseek(fd, 0, os.SEEK_SET)
    except BaseException:
        os.close(fd)
        raise
    return fd


def write(path: str, content: Any, append: bool = False) -> None:
    make_above(path)
    fd = open_file(path, WRITING | (os.O_APPEND if append else os.O_TRUNC))
    try:
        write_all(fd, memoryview(content).cast("B"))
    finally:
        os.close(fd)


def make_above(path: str) -> None:
    above = os.path.dirname(path)
    if above:
        os.makedirs(above, exist_ok=True)


def stat_of(path: str) -> dict[str, Any]:
    found = os.stat(path)
    return {
        "type": kind_of(found.st_mode),
        "size": found.st_size,
        "mtime": found.st_mtime,
        "mode": stat.S_IMODE(found.st_mode),
    }


def entries(path: str) -> list[str]:
    return sorted(os.listdir(path))


def matches(cwd: str, pattern: str) -> list[str]:
    import glob

    return sorted(glob.glob(pattern, recursive=True, root_dir=cwd))


def put(cwd: str, listed: bytes, content: Any) -> None:
    """Many at once: (path, "directory"), (path, "link", target), (path, "hard link", file),
    (path, "rename", new path), or a piece of a file: (path, "file", where it starts, its length,
    size of the file or None, whether it may be executed). `content`: that of the pieces, one after
    another. The size comes with the first piece.
    """
    view = memoryview(content).cast("B")
    made = ""  # the directory that is known to be there
    for path, kind, *details in marshal.loads(listed):
        path = os.path.join(cwd, path)
        if kind == "directory":
            os.makedirs(path, exist_ok=True)
            continue
        above = os.path.dirname(path)
        if above != made:
            os.makedirs(above, exist_ok=True)
            made = above
        if kind in ("link", "hard link"):
            if os.path.lexists(path):
                os.unlink(path)
            if kind == "link":
                os.symlink(details[0], path)
            else:
                os.link(os.path.join(cwd, details[0]), path, follow_symlinks=False)
        elif kind == "rename":
            os.replace(path, os.path.join(cwd, details[0]))
        else:
            start, length, size, executable = details
            put_piece(path, start, view[:length], size, executable)
            view = view[length:]


def put_piece(
    path: str, start: int, content: memoryview, size: int | None, executable: bool
) -> None:
    fd = open_file(path, WRITING | (0 if size is None else os.O_TRUNC))
    try:
        write_all(fd, content, start)
        if size is not None:
            if size != start + len(content):
                os.ftruncate(fd, size)
            if executable:
                os.fchmod(fd, 0o755)
    finally:
        os.close(fd)


def tree(path: str, most: int, deepest: int) -> tuple[bytes, bytes, bytes]:
    """What is in a directory, one before what is in it: names, targets of links (each ends with a
    zero), and five numbers for each: kind (of KINDS), whether it may be executed, size, mtime_ns,
    inode. One entry more than `most` at most, and one level more than `deepest`.
    """
    names: list[bytes] = []
    targets: list[bytes] = []
    numbers = array("q")
    waiting = [(b"", 0)]
    root = os.fsencode(path)
    while waiting and len(names) <= most:
        above, depth = waiting.pop()
        try:
            directory = os.scandir(os.path.join(root, above))
        except FileNotFoundError:
            if not above:
                raise
            continue  # it went meanwhile
        with directory:
            for entry in directory:
                name = above + b"/" + entry.name if above else entry.name
                try:
                    status = entry.stat(follow_symlinks=False)
                    mode = status.st_mode
                    targets.append(os.readlink(entry.path) if stat.S_ISLNK(mode) else b"")
                except FileNotFoundError:
                    continue
                names.append(name)
                numbers.extend(
                    (
                        KINDS.index(kind_of(mode)),
                        stat.S_ISREG(mode) and mode & 0o100 != 0,
                        status.st_size,
                        status.st_mtime_ns,
                        status.st_ino,
                    )
                )
                if len(names) > most:
                    break
                if stat.S_ISDIR(mode) and depth <= deepest:
                    waiting.append((name, depth + 1))
    return zeroed(names), zeroed(targets), numbers.tobytes()


def zeroed(texts: list[bytes]) -> bytes:
    return b"".join([text + b"\0" for text in texts])


def get(path: str, listed: bytes, most: int) -> tuple[bytes, bytearray]:
    """Content of files below a directory, in the order in which they are named, up to `most` bytes:
    five numbers for each: where its piece starts, its length, size, mtime_ns, inode; and the
    pieces, one after another. `listed`: (offset of the first, names); an empty name is the path
    itself. A piece begins where there is data, and ends before the file's end only where there is
    no more room.
    """
    offset, names = marshal.loads(listed)
    root = os.fsencode(path)
    pieces = array("q")
    content = bytearray(most)
    used = 0
    with memoryview(content) as view:
        for name in names:
            place = os.path.join(root, name) if name else root
            piece = get_piece(os.fsdecode(place), offset, view[used:])
            pieces.extend(piece)
            used += piece[1]
            if piece[0] + piece[1] < piece[2]:
                break
            offset = 0
    del content[used:]
    return pieces.tobytes(), content


def get_piece(path: str, offset: int, room: memoryview) -> list[int]:
    fd = open_file(path, READING)
    try:
        status = os.fstat(fd)
        size = status.st_size
        start = min(next_data(fd, offset), size) if offset < size else size
        length = min(size - start, len(room))
        done = 0
        while done < length:
            got = os.preadv(fd, [room[done:length]], start + done)
            if not got:
                break
            done += got
        now = os.fstat(fd)
        if done < length or (now.st_size, now.st_mtime_ns) != (size, status.st_mtime_ns):
            raise failed(errno.EBUSY, path)
        return [start, length, size, status.st_mtime_ns, status.st_ino]
    finally:
        os.close(fd)


def next_data(fd: int, offset: int) -> int:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:  # none follows
            return os.fstat(fd).st_size
        return offset


def delete(path: str) -> None:
    """A file, a link, or a directory with all that is in it."""
    if os.path.isdir(path) and not os.path.islink(path):
        import shutil

        shutil.rmtree(path)
    else:
        os.unlink(path)


def make_directory(path: str) -> None:
    os.makedirs(path, exist_ok=True)


def real_path(path: str) -> str:
    return os.path.realpath(path, strict=True)


VERBS: dict[str, Callable[..., Any]] = {
    "write": write,
    "stat": stat_of,
    "list": entries,
    "put": put,
    "tree": tree,
    "get": get,
    "glob": matches,
    "exists": os.path.lexists,
    "delete": delete,
    "remove": os.unlink,
    "mkdir": make_directory,
    "rename": os.rename,
    "realpath": real_path,
    "distributions": added_packages.distributions,
    "take packages": added_packages.take,
    "drop packages": added_packages.drop,
}


def answer(verb: str, cwd: str, args: Any) -> tuple[str, Any]:
    """("ok", what it gave), or ("error", (errno, path)) of one that the system reported. Paths are
    relative to the session's directory, wherever its code has gone.
    """
    paths = 2 if verb == "rename" else 0 if verb in ("glob", "put") else 1
    args = [os.path.join(cwd, one) if i < paths else one for i, one in enumerate(args)]
    try:
        if verb in ("glob", "put"):
            return "ok", VERBS[verb](cwd, *args)
        return "ok", VERBS[verb](*args)
    except OSError as error:
        path = error.filename
        path = os.fsdecode(path) if isinstance(path, (str, bytes)) else ""
        return "error", [error.errno or errno.EIO, path]
