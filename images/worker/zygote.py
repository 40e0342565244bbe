"""The zygote, started by the warden: imports what calls need, and makes slots, which make cells.

    python3 -I -S -B zygote.py          control socket: descriptor 3 (images/warden/control.h)

Worker code is loaded by explicit path before anything of the environment can be: `call`, `encode`
and `_hutch_cell` get private names in `sys.modules`, so a package's `call.py` neither shadows ours
nor is shadowed. /opt/env comes after the standard library in `sys.path`, like site-packages, so a
package's `json.py` shadows nothing. There is no `site`: `.pth` files and `sitecustomize` of
packages are not executed.

A module that hangs, kills the process or leaves threads running cannot stay (a fork would copy its
locks, not its threads): this process says so and ends, and the warden starts another one without
it.

Everything here runs in a process that packages share; nobody believes what it says of itself. One
thread.
"""

from __future__ import annotations

import gc
import importlib.machinery
import importlib.util
import io
import json
import os
import pickle
import sys
import time
import types
from typing import Any

HERE = os.path.dirname(os.path.abspath(__file__))
CONTROL = 3
CALL = 3  # in a cell
CELL_CONTROL = 4  # in a slot, and in a cell until it is ready

MAKE_SLOT, ZYGOTE_READY, SLOT_READY, FAILED = 32, 65, 66, 69
CONFIG, IMPORTING, SKIP = 128, 129, 130

ENVIRONMENT = "/opt/env"
MODULES = "/opt/modules"
REHEARSALS = 8  # the interpreter specializes code that has run that often
SETUP = "setup()"  # no module has such a name
NOTES_LIMIT = 16 * 1024
TEXT_LIMIT = 300


def load_own(name: str) -> Any:
    """One of our modules, from our directory whatever `sys.path` says."""
    for suffix in importlib.machinery.EXTENSION_SUFFIXES + [".py"]:
        path = os.path.join(HERE, name + suffix)
        if os.path.exists(path):
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            sys.modules[name] = module
            spec.loader.exec_module(module)
            return module
    raise ImportError(f"{name} is not in {HERE}")


def load_cloudpickle() -> None:
    """The caller's cloudpickle: its functions name that version's internals."""
    root = os.path.join(os.path.dirname(HERE), "cloudpickle")
    if not os.path.exists(os.path.join(root, "__init__.py")):
        root = os.path.join(root, "cloudpickle")
    spec = importlib.util.spec_from_file_location(
        "cloudpickle", os.path.join(root, "__init__.py"), submodule_search_locations=[root]
    )
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["cloudpickle"] = module
    spec.loader.exec_module(module)


def threads() -> int:
    return len(os.listdir("/proc/self/task"))


def settle_threads() -> int:
    """The threads left after a plain fork, before which OpenBLAS and its like stop theirs."""
    if threads() == 1:
        return 1
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(20):
        if threads() == 1:
            break
        time.sleep(0.01)
    return threads()


def shorten(error: BaseException) -> str:
    try:
        text = f"{type(error).__name__}: {error}"
    except Exception:
        text = type(error).__name__
    return " ".join(text.split())[:TEXT_LIMIT]


class ForkHooks:
    """What modules register with os.register_at_fork() from now on.

    The interpreter runs them for forks of user code; slots run them from here when they make a
    cell. Those of `threading` and `logging` are left out: they renew locks that another thread may
    have held, and cost half as much as the fork.
    """

    LEFT_OUT = ("threading", "logging")

    def __init__(self) -> None:
        self.before: tuple[Any, ...] = ()
        self.parent: tuple[Any, ...] = ()
        self.child: tuple[Any, ...] = ()
        self._register = os.register_at_fork
        os.register_at_fork = self.register  # type: ignore[assignment]

    def register(self, **hooks: Any) -> None:
        self._register(**hooks)
        kept = {
            name: hook
            for name, hook in hooks.items()
            if getattr(hook, "__module__", None) not in self.LEFT_OUT
        }
        if "before" in kept:
            self.before = (kept["before"], *self.before)  # the last one first
        if "after_in_parent" in kept:
            self.parent += (kept["after_in_parent"],)
        if "after_in_child" in kept:
            self.child += (kept["after_in_child"],)

    def end(self) -> None:
        os.register_at_fork = self._register


class Zygote:
    def __init__(self, cell: Any, config: dict[str, str], hooks: ForkHooks) -> None:
        self.cell = cell
        self.config = config
        self.hooks = hooks
        self.notes: dict[str, Any] = {"preloaded": {}, "skipped": {}}
        self.reseed: tuple[Any, ...] = ()  # called in each cell
        for line in config.get("HUTCH_SKIP", "").splitlines():
            name, _, reason = line.partition("\t")
            self.notes["skipped"][name] = reason

    def number(self, name: str, otherwise: int) -> int:
        try:
            return int(self.config.get(name, otherwise))
        except ValueError:
            return otherwise

    def preload(self) -> None:
        deadline = self.number("HUTCH_PRELOAD_SEC", 30)
        for name in filter(None, self.config.get("HUTCH_PRELOAD", "").split(",")):
            if name in self.notes["skipped"]:
                continue
            self.cell.send(CONTROL, IMPORTING, 0, 0, deadline, 0, name.encode()[:120])
            start = time.monotonic()
            try:
                importlib.import_module(name)
            except BaseException as error:
                self.notes["skipped"][name] = shorten(error)
            else:
                self.notes["preloaded"][name] = round(time.monotonic() - start, 3)
            if settle_threads() > 1:
                self.start_again(name, "left threads running")
        self.cell.send(CONTROL, IMPORTING, 0, 0, 0, 0)

    def start_again(self, name: str, reason: str) -> None:
        self.cell.send(CONTROL, SKIP, 0, 0, 0, 0, f"{name}\t{reason}".encode())
        os._exit(0)

    def set_up(self) -> None:
        """The caller's own `setup=` function. Its failure is told; calls find nothing set up."""
        path = self.config.get("HUTCH_SETUP")
        if not path:
            return
        if SETUP in self.notes["skipped"]:
            self.notes["setup"] = self.notes["skipped"].pop(SETUP)
            return
        self.cell.send(
            CONTROL, IMPORTING, 0, 0, self.number("HUTCH_SETUP_SEC", 300), 0, SETUP.encode()
        )
        try:
            with open(path, "rb") as file:
                pickle.load(file)()
        except BaseException as error:
            self.notes["setup"] = shorten(error)
        if settle_threads() > 1:
            self.start_again(SETUP, "it left threads running, which calls do not have")
        self.cell.send(CONTROL, IMPORTING, 0, 0, 0, 0)

    def prepare(self, call: Any) -> None:
        """What each cell needs and can be the same in all."""
        self.cell.find_openssl()
        for _ in range(REHEARSALS):
            self.cell.stir_openssl()  # makes its generators here, which takes milliseconds
        # Sources of random numbers that have no hook for a fork.
        self.reseed = (self.cell.stir_openssl,)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            self.reseed += (numpy_random.seed,)
        call.Worker(self.cell, CALL).serve_with(self.number("HUTCH_CPUS", 1))

    def freeze(self) -> None:
        """Keeps the collector from what is there so far: a fork then copies no page for it."""
        sys.modules["__main__"] = types.ModuleType("__main__")
        gc.collect()
        gc.freeze()
        self.cell.settle_pages()

    def ready(self) -> None:
        text = json.dumps(self.notes)
        if len(text) > NOTES_LIMIT:
            text = json.dumps({"preloaded": {}, "skipped": {"*": "too many notes"}})
        self.cell.send(CONTROL, ZYGOTE_READY, 0, 0, 0, 0, text.encode())

    def serve(self) -> None:
        while True:
            frame = self.cell.recv(CONTROL)
            if frame is None:
                os._exit(0)
            kind, slot, _, _, _, _, descriptors = frame
            if kind != MAKE_SLOT or len(descriptors) not in (1, 2):
                os._exit(70)
            if self.number("HUTCH_BARE", 0):
                self.be_only_cell(slot, descriptors[0])
            try:
                pid = self.cell.fork_slot()
            except OSError as error:
                self.cell.send(CONTROL, FAILED, slot, 0, error.errno or 0, 0, b"fork of a slot")
            else:
                if pid == 0:
                    self.be_slot(slot, *descriptors)
            for descriptor in descriptors:
                os.close(descriptor)

    def be_slot(self, slot: int, control: int, cgroup: int = -1) -> None:
        cell = self.cell
        try:
            mounts = self.config.get("HUTCH_SHOWN", "") + self.config.get("HUTCH_MOUNTS", "")
            egress = self.config.get("HUTCH_EGRESS", "")
            cell.enter_slot(control, *self.limits(), mounts, cgroup, egress)
        except OSError as error:
            where = CELL_CONTROL if error.strerror == "/dev/null" else control
            cell.send(where, FAILED, slot, 0, error.errno or 0, 0, str(error.strerror).encode())
            os._exit(71)
        gc.disable()  # collecting is the call's business: it is switched on again in the cell
        cell.send(CELL_CONTROL, SLOT_READY, slot, 0, 0, 0)
        hooks = self.hooks
        cell.serve(hooks.before, hooks.parent, hooks.child, self.reseed)

    def be_only_cell(self, slot: int, control: int) -> None:
        """Where no namespaces are to be had, the container is the cell, and this its process."""
        try:
            gvisor = self.number("HUTCH_GVISOR", 0)
            self.cell.enter_bare(control, slot, *self.limits(), gvisor, self.reseed)
        except OSError as error:
            text = str(error.strerror).encode()
            self.cell.send(CELL_CONTROL, FAILED, slot, 0, error.errno or 0, 0, text)
            os._exit(71)

    def limits(self) -> tuple[int, int, int, int]:
        return (
            self.number("HUTCH_MEMORY_KB", 1 << 20),
            self.number("HUTCH_DISK_KB", 1 << 18),
            self.number("HUTCH_PIDS", 64),
            self.number("HUTCH_NOFILE", 1024),
        )


def rehearse(cell: Any, call: Any) -> None:
    """What a first call makes, its caches and counters, is made here and not in each cell."""
    worker = call.Worker(cell, -1)
    worker.serve_with(0)
    for _ in range(REHEARSALS):
        worker.rehearse_all()


def prepare_streams() -> None:
    """The objects stay, with empty buffers, when descriptors 0, 1 and 2 become a call's own."""
    assert isinstance(sys.stdin, io.TextIOWrapper)
    sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)


def prepare_environment(config: dict[str, str]) -> None:
    """The C environment too: os.environ writes through. How many threads a library starts is for it
    to read before it is loaded.
    """
    for name in (
        "OMP_NUM_THREADS",
        "OPENBLAS_NUM_THREADS",
        "MKL_NUM_THREADS",
        "NUMEXPR_MAX_THREADS",
    ):
        os.environ[name] = config.get("HUTCH_CPUS", "1")
    try:
        given = json.loads(config.get("HUTCH_ENV") or "{}")
        os.environ.update({str(key): str(value) for key, value in given.items()})
    except (ValueError, AttributeError):
        pass


def main() -> None:
    hooks = ForkHooks()
    cell = load_own("_hutch_cell")
    cell.use_big_arenas()
    load_cloudpickle()
    sys.path.insert(0, HERE)
    call = load_own("call")
    sys.path.remove(HERE)
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(origin, str) and os.path.dirname(origin) == HERE:
            del sys.modules[name]
            sys.modules["_hutch_" + name.removeprefix("_hutch_")] = module
    call.add_site_builtins()
    gc.disable()
    prepare_streams()
    rehearse(cell, call)
    # All that is the same for every pool is done: a spare worker waits here for its pool.
    frame = cell.recv(CONTROL)
    if frame is None or frame[0] != CONFIG:
        sys.exit("zygote.py is started by hutch-warden")
    config = dict(
        item.split("=", 1) for item in frame[5].decode(errors="replace").split("\0") if "=" in item
    )
    prepare_environment(config)
    # A worker that was started ahead has an empty one where its calls want nothing.
    of_base = config.get("HUTCH_PATH", "").split(":")
    there = [path for path in (MODULES, ENVIRONMENT, *of_base) if os.path.isdir(path)]
    sys.path += [path for path in there if os.listdir(path)]
    sys.argv = [""]
    zygote = Zygote(cell, config, hooks)
    zygote.preload()
    zygote.set_up()
    hooks.end()
    zygote.prepare(call)
    # Held for ever by being open. In a bare worker there is nobody to meet.
    lock = -1 if zygote.number("HUTCH_BARE", 0) else cell.lock_executable()
    sys.stdout.flush()
    sys.stderr.flush()
    zygote.freeze()
    zygote.ready()
    zygote.serve()
    del lock


if __name__ == "__main__":
    main()
