# SPDX-License-Identifier: Apache-2.0
"""`hutch serve`: the server of hutch.serve, in one process or several, on one socket."""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import signal
import socket
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from hutch.serve.settings import Settings

_FLAGS = (
    "host", "port", "socket", "workers", "concurrency", "queue", "timeout_sec", "memory_mb",
    "dependencies", "isolation", "allow_from", "hosts",
)  # fmt: skip
_PR_SET_PDEATHSIG = 1
_GIVEN = "HUTCH_SERVE_OPTIONS"  # to the other processes


def serve(options: argparse.Namespace) -> int:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError:
        raise ValueError("hutch serve needs more packages: pip install 'hutch[serve]'") from None
    given = {name: getattr(options, name) for name in _FLAGS if getattr(options, name) is not None}
    given.update(_set(options.set))
    settings = _settings(given, as_agent=True)
    if options.unit is not None:
        print(_units(options, settings), end="")
        return 0
    from hutch.serve import log
    from hutch.serve.protocol import raise_descriptors

    raise_descriptors()
    signal.signal(signal.SIGHUP, lambda *_: None)  # until it serves, nothing is to be read again
    listener = listen(settings)
    if not settings.socket:
        given["port"] = listener.getsockname()[1]  # which port 0 leaves to the kernel
    os.environ[_GIVEN] = json.dumps(given)
    print(f"hutch: serving on {_address(settings, listener)}", file=sys.stderr, flush=True)
    config = uvicorn.Config(
        "hutch.cli.serve:app",
        factory=True,
        workers=settings.workers,
        timeout_graceful_shutdown=int(settings.drain_sec),
        http="hutch.serve.protocol:Protocol",
        ws="none",
        server_header=False,
        access_log=False,
        log_level="warning",
        log_config=log.config(),
        proxy_headers=False,
    )
    server = uvicorn.Server(config)
    signal.signal(signal.SIGTERM, _end)  # once it has served; the socket is to go, too
    try:
        if settings.workers == 1:
            server.run(sockets=[listener])
        else:
            from hutch.serve import between, figures
            from hutch.serve.processes import Processes

            figures.share()
            with between.share():
                Processes(config, sockets=[listener]).run()
    finally:
        if settings.socket:
            with contextlib.suppress(OSError):
                os.unlink(settings.socket)
    return 0


def _end(number: int, frame: object) -> None:
    raise SystemExit(0)


def _units(options: argparse.Namespace, settings: Settings) -> str:
    from hutch import _core
    from hutch.cli import units

    words = []
    for name in _FLAGS:
        value = getattr(options, name)
        if value is None:
            continue
        flag = "--with" if name == "dependencies" else f"--{name.replace('_', '-')}"
        words += [flag, ",".join(value) if type(value) is list else str(value)]
    for pair in options.set:
        words += ["--set", pair]
    paths = _core.paths()
    return units.text(
        paths,
        str(Path.home()),
        sys.executable,
        words,
        settings.drain_sec,
        options.unit,
        os.environ.get("HUTCH_HOME", ""),
        (Path(paths["state_dir"]) / "agent.toml").exists(),
    )


def _set(pairs: list[str]) -> dict[str, Any]:
    """NAME=VALUE, as each is written in [serve]. Raises ValueError."""
    from hutch.serve.settings import checked, loads

    return checked(loads("\n".join(pairs), "--set"), "--set")


def _settings(given: dict[str, Any], as_agent: bool = False) -> Settings:
    """`as_agent`: what its agent would refuse in the file is refused, too. Raises ValueError."""
    from hutch.serve.settings import read

    if as_agent:
        _check_as_agent()
    listed = {name: tuple(x) if type(x) is list else x for name, x in given.items()}
    settings = read(None, **listed)
    if as_agent:
        _check_as_programs(settings)
    return settings


def _check_as_programs(settings: Settings) -> None:
    """What every program has. Raises ValueError."""
    from hutch._options.options import NORMAL
    from hutch.serve.runner import keywords_of
    from hutch.serve.settings import Client

    try:
        NORMAL.changed(keywords_of(settings, Client(), settings.memory_mb))
    except TypeError as error:
        raise ValueError(str(error)) from None


def _check_as_agent() -> None:
    from hutch import _core
    from hutch._connect import launcher

    try:
        launcher.run("--check")
    except _core.Error as error:
        if error.code == "invalid_argument":
            hint = f"\n  hint: {error.hint}" if error.hint else ""
            raise ValueError(f"{error.message}{hint}") from None


def app() -> Starlette:
    """In each process. SIGHUP has it read the file again."""
    from hutch.serve.app import make_app

    given = json.loads(os.environ.get(_GIVEN, "{}"))
    settings = _settings(given)
    if settings.workers > 1:
        _end_with_parent()
    return make_app(settings, lambda: _settings(given, as_agent=True))


def _end_with_parent() -> None:
    """As by SIGTERM. A server that lost its parent would hold the address for nobody."""
    import ctypes
    import multiprocessing

    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    parent = multiprocessing.parent_process()
    if parent is not None and not parent.is_alive():
        os.kill(os.getpid(), signal.SIGTERM)


def listen(settings: Settings) -> socket.socket:
    """A Unix socket is for this user alone. Raises ValueError where another server is there."""
    try:
        if not settings.socket:
            family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
            return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
        if os.path.lexists(settings.socket) and not Path(settings.socket).is_socket():
            raise ValueError(f"{settings.socket} cannot be served on: it is there, and no socket")
        _lock(settings.socket)
        _remove_stale(settings.socket)
        listener = socket.socket(socket.AF_UNIX)
        before = os.umask(0o177)
        try:
            listener.bind(settings.socket)
        finally:
            os.umask(before)
        listener.listen(2048)
        return listener
    except OSError as error:
        where = settings.socket or f"{settings.host}:{settings.port}"
        raise ValueError(f"{where} cannot be served on: {error.strerror or error}") from None


def _lock(path: str) -> None:
    """Held until this process ends: of two that start at once, one has the socket."""
    lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise ValueError(f"{path} cannot be served on: another server is there") from None


def _remove_stale(path: str) -> None:
    if not Path(path).is_socket():
        return
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise ValueError(f"{path} cannot be served on: another server is there")


def _address(settings: Settings, listener: socket.socket) -> str:
    if settings.socket:
        return f"the Unix socket {settings.socket}"
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
