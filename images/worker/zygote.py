# SPDX-License-Identifier: Apache-2.0
"""The zygote, started by the warden: imports what calls need, and makes slots, which make cells.

    python3 -I -S -B zygote.py [FD]     control socket: descriptor 3 (images/warden/control.h)

FD: a file with its configuration, where it was started anew by itself (restarting.py).

Worker code is loaded by explicit path before anything of the environment can be: `call`, what it
imports of ours, and `_hutch_cell` get private names in `sys.modules`, so a package's `call.py`
neither shadows ours nor is shadowed. /opt/env comes after the standard library in `sys.path`, like
site-packages, so a package's `json.py` shadows nothing. There is no `site`: `.pth` files and
`sitecustomize` of packages are not executed.

A module that hangs, kills the process, leaves threads running (a fork would copy its locks, not its
threads) or holds open what no cell can have cannot stay: this process reports that and ends, and
the warden starts another zygote without that module.

Everything here runs in a process that packages share; no reader trusts what it reports. One
thread.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib.machinery
import importlib.util
import io
import json
import os
import pickle
import subprocess
import sys
import time
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

HERE = os.path.dirname(os.path.abspath(__file__))
CONTROL = 3
CALL = 3  # in a cell
CELL_CONTROL = 4  # in a slot, and in a cell until it is ready

ENVIRONMENT = "/opt/env"
MODULES = "/opt/modules"
WARM_UP_RUNS = 8  # the interpreter specializes code that has run that often
SETUP = "setup()"  # no module has such a name, nor these:
EXERCISE = "exercise of "
FOOTPRINT = "footprint()"
MOST_LEFT_OUT = 2  # exercises, each of which costs a start; then all are
# The most that is copied ahead of a call, which takes a cell a microsecond for each KB.
FOOTPRINT_KB = 3072
FOOTPRINT_SHARE = 32  # of what its memory may be
PAGE_KB = os.sysconf("SC_PAGESIZE") >> 10
FOOTPRINT_LIMIT = 1 << 20  # the most bytes of one
NOTES_LIMIT = 16 * 1024
SETUP_SEC = 300  # of a setup function at most
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


if TYPE_CHECKING:
    import inherited
    import restarting
else:
    inherited = load_own("inherited")
    restarting = load_own("restarting")


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


class Zygote:
    def __init__(self, cell: Any, config: dict[str, str], hooks: inherited.ForkHooks) -> None:
        self.cell = cell
        self.config = config
        self.hooks = hooks
        self.exits = inherited.ExitHandlers()
        self.descriptors = inherited.Descriptors()
        self.generators = inherited.Generators()
        self.notes: dict[str, Any] = {"preloaded": {}, "skipped": {}}
        self.reseed: tuple[Any, ...] = ()  # called in each cell
        self.exercises: list[str] = []
        self.left_out: dict[str, str] = {}  # of what is done for speed alone
        for line in config.get("HUTCH_SKIP", "").splitlines():
            name, _, reason = line.partition("\t")
            of_speed = name.startswith(EXERCISE) or name == FOOTPRINT
            (self.left_out if of_speed else self.notes["skipped"])[name] = reason

    def number(self, name: str, otherwise: int) -> int:
        try:
            return int(self.config.get(name, otherwise))
        except ValueError:
            return otherwise

    def preload(self) -> None:
        deadline = self.number("HUTCH_PRELOAD_SEC", 30)
        names = [name for name in self.config.get("HUTCH_PRELOAD", "").split(",") if name]
        if names or self.config.get("HUTCH_SETUP"):
            self.generators.begin()
        for name in names:
            if name in self.notes["skipped"]:
                continue
            self.begin(name, deadline)
            start = time.monotonic()
            try:
                importlib.import_module(name)
            except BaseException as error:
                self.notes["skipped"][name] = shorten(error)
            else:
                self.notes["preloaded"][name] = round(time.monotonic() - start, 3)
            if settle_threads() > 1:
                self.start_again(name, "left threads running")
            kinds = self.descriptors.kinds()
            if kinds:
                held = ", ".join(kinds)[:150]
                self.start_again(name, f"holds open what calls do not have: {held}")
        self.end()

    def start_again(self, name: str, reason: str) -> None:
        self.cell.send(CONTROL, self.cell.SKIP, 0, 0, 0, 0, f"{name}\t{reason}".encode())
        os._exit(0)

    def exercise(self, exercise: Any, encode: Any, places: list[str]) -> None:
        """What a package's first use makes is made here. Its failure is nobody's concern."""
        notes = self.notes["exercised"] = {}
        for name in exercise.names(places):
            known = EXERCISE + name
            if known in self.left_out or len(self.left_out) >= MOST_LEFT_OUT:
                notes[name] = self.left_out.get(known, "left out too")
                continue
            self.begin(known, self.number("HUTCH_PRELOAD_SEC", 30))
            before, start = exercise.traces(), time.monotonic()
            notes[name] = exercise.run(name, encode) or round(time.monotonic() - start, 3)
            if settle_threads() > 1:
                self.start_again(known, "left threads running")
            if exercise.left(before):
                self.start_again(known, "left something open or to be called")
            self.exercises.append(name)
        self.end()

    def learn_footprint(self, exercise: Any, encode: Any) -> None:
        """Forks use each requested package once more, as a call may, and report which pages that
        writes. Packages that use others come first; pages beyond the limit are left to the call."""
        if not self.exercises or FOOTPRINT in self.left_out or self.number("HUTCH_SINGLE_CELL", 0):
            return
        self.begin(FOOTPRINT, self.number("HUTCH_PRELOAD_SEC", 30))
        most = min(FOOTPRINT_KB, self.limits()[0] // FOOTPRINT_SHARE) // PAGE_KB
        notes = self.notes["footprint"] = {}
        asked = {name.partition(".")[0] for name in self.notes["preloaded"]}
        for name in reversed(self.exercises):
            if name.partition(".")[0] not in asked:
                continue
            pages = self.footprint_of(functools.partial(exercise.once, name, encode, whole=False))
            copied = self.cell.keep_footprint(pages, most)
            if copied:
                notes[name] = copied
                most -= copied
        self.end()

    def footprint_of(self, use: Callable[[], None]) -> bytes:
        reader, writer = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.cell.watch_pages()
                with contextlib.suppress(Exception):
                    use()
                with open(writer, "wb") as file:
                    file.write(self.cell.touched_pages())
            finally:
                os._exit(0)
        os.close(writer)
        with open(reader, "rb") as file:
            pages = file.read(FOOTPRINT_LIMIT)
        os.waitpid(pid, 0)
        return pages

    def begin(self, what: str, seconds: int) -> None:
        """The warden starts a zygote without it when it takes longer or ends the process."""
        self.cell.send(CONTROL, self.cell.IMPORTING, 0, 0, seconds, 0, what.encode()[:120])

    def end(self) -> None:
        self.cell.send(CONTROL, self.cell.IMPORTING, 0, 0, 0, 0)

    def set_up(self) -> None:
        """Runs the caller's `setup=` function. A failure goes into the notes."""
        path = self.config.get("HUTCH_SETUP")
        if not path:
            return
        if SETUP in self.notes["skipped"]:
            self.notes["setup"] = self.notes["skipped"].pop(SETUP)
            return
        self.begin(SETUP, SETUP_SEC)
        try:
            with open(path, "rb") as file:
                pickle.load(file)()
        except BaseException as error:
            self.notes["setup"] = shorten(error)
        if settle_threads() > 1:
            self.start_again(SETUP, "it left threads running, which calls do not have")
        self.end()

    def prepare(self, call: Any) -> None:
        """What each cell needs and can be the same in all."""
        self.cell.find_openssl()
        for _ in range(WARM_UP_RUNS):
            self.cell.stir_openssl()  # makes its generators here, which takes milliseconds
        # Sources of random numbers that have no hook for a fork.
        self.reseed = (self.cell.stir_openssl,)
        if self.descriptors.remember():
            self.reseed += (self.descriptors.open_anew,)
        if self.generators.unseeded:
            self.reseed += (self.generators.seed_anew,)
        if not sys.modules.keys().isdisjoint(call.programs.STARTED_IN):
            self.reseed += (call.programs.tell_directory,)
        numpy_random = sys.modules.get("numpy.random")
        if numpy_random is not None:
            self.reseed += (numpy_random.seed,)
        call.Worker(self.cell, CALL).serve_with(self.number("HUTCH_CPUS", 1))

    def freeze(self) -> None:
        """Keeps the collector from what is there so far: a fork then copies no page for it."""
        sys.modules["__main__"] = types.ModuleType("__main__")
        gc.collect()
        gc.freeze()

    def ready(self) -> None:
        text = json.dumps(self.notes)
        if len(text) > NOTES_LIMIT:
            text = json.dumps({"preloaded": {}, "skipped": {"*": "too many notes"}})
        self.cell.send(CONTROL, self.cell.ZYGOTE_READY, 0, 0, 0, 0, text.encode())

    def serve(self) -> None:
        while True:
            frame = self.cell.recv(CONTROL)
            if frame is None:
                os._exit(0)
            kind, slot, _, _, _, _, descriptors = frame
            if kind != self.cell.MAKE_SLOT or len(descriptors) not in (1, 2):
                os._exit(70)
            if self.number("HUTCH_SINGLE_CELL", 0):
                self.be_only_cell(slot, descriptors[0])
            try:
                pid = self.cell.fork_slot()
            except OSError as error:
                self.cell.send(
                    CONTROL, self.cell.FAILED, slot, 0, error.errno or 0, 0, b"fork of a slot"
                )
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
            cell.send(
                where, cell.FAILED, slot, 0, error.errno or 0, 0, str(error.strerror).encode()
            )
            os._exit(71)
        gc.disable()  # collecting is the call's business: it is switched on again in the cell
        cell.send(CELL_CONTROL, cell.SLOT_READY, slot, 0, 0, 0)
        hooks = self.hooks
        cell.serve(hooks.before, hooks.parent, hooks.child, self.reseed)

    def be_only_cell(self, slot: int, control: int) -> None:
        """Where no namespaces are to be had, the container is the cell, and this its process."""
        try:
            gvisor = self.number("HUTCH_GVISOR", 0)
            self.cell.enter_single_cell(control, slot, *self.limits(), gvisor, self.reseed)
        except OSError as error:
            text = str(error.strerror).encode()
            self.cell.send(CELL_CONTROL, self.cell.FAILED, slot, 0, error.errno or 0, 0, text)
            os._exit(71)

    def limits(self) -> tuple[int, int, int, int]:
        config = self.config
        memory_kb, disk_kb = int(config["HUTCH_MEMORY_KB"]), int(config["HUTCH_DISK_KB"])
        return memory_kb, disk_kb, int(config["HUTCH_PIDS"]), int(config["HUTCH_NOFILE"])


def warm_up(cell: Any, call: Any) -> None:
    """What a first call makes, its caches and counters, is made here and not in each cell."""
    worker = call.Worker(cell, -1)
    worker.serve_with(0)
    for _ in range(WARM_UP_RUNS):
        worker.warm_up_all()


def prepare_streams(cell: Any) -> None:
    """The objects stay, with empty buffers, when descriptors 0, 1 and 2 become a call's own."""
    assert isinstance(sys.stdin, io.TextIOWrapper)
    sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    for stream in (sys.stdout, sys.stderr):
        assert isinstance(stream, io.TextIOWrapper)
        stream.reconfigure(encoding="utf-8", errors="backslashreplace", line_buffering=True)
    assert isinstance(sys.stdout, io.TextIOWrapper)
    stdout = cell.make_stdout(io.TextIOWrapper, sys.stdout.detach(), sys.addaudithook)
    stdout.mode = "w"
    sys.stdout = sys.__stdout__ = stdout  # type: ignore[misc]


def configuration(text: bytes) -> dict[str, str]:
    items = text.decode(errors="replace").split("\0")
    return dict(item.split("=", 1) for item in items if "=" in item)


def given_environment(config: dict[str, str]) -> dict[str, str]:
    try:
        given = json.loads(config.get("HUTCH_ENV") or "{}")
        return {str(key): str(value) for key, value in given.items()}
    except (ValueError, AttributeError):
        return {}


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
    if "matplotlib" in config.get("HUTCH_PRELOAD", "").split(","):
        # Else it makes a directory here, for its caches, that each call would remove at its end.
        os.environ["MPLCONFIGDIR"] = "/tmp/matplotlib"
    os.environ.update(given_environment(config))
    time.tzset()


def count_cpus(cpus: int) -> None:
    """Programs start as many processes as they may use processors, not as many as the host has."""

    def cpu_count() -> int:
        """The number of processors that the call may use (`cpus=`, rounded up)."""
        return cpus

    cpu_count.__module__, cpu_count.__qualname__ = "os", "cpu_count"
    os.cpu_count = cpu_count


def be_interpreter_of(environment: str, modules: list[str]) -> None:
    """Child interpreters see the packages and modules that this one sees. An environment that was
    built here is a virtual one, with an interpreter of its own; else PYTHONPATH names it.
    """
    if os.path.isfile(f"{environment}/pyvenv.cfg"):
        sys.executable = f"{environment}/bin/python"
        sys.prefix = sys.exec_prefix = environment
        modules = [path for path in modules if path != environment]
    if modules and "PYTHONPATH" not in os.environ:
        os.environ["PYTHONPATH"] = ":".join(modules)


def leave_flags_to_ourselves() -> None:
    """multiprocessing starts interpreters with this one's flags. Without `site`, as the zygote has
    to be, they would find no package.
    """
    flags = subprocess._args_from_interpreter_flags  # type: ignore[attr-defined]
    own = set(flags())
    subprocess._args_from_interpreter_flags = lambda: [  # type: ignore[attr-defined]
        flag for flag in flags() if flag not in own
    ]


def main() -> None:
    if sys.path[:1] == [HERE]:  # a start without -P, which 3.10 does not have
        del sys.path[0]
    hooks = inherited.ForkHooks()
    cell = load_own("_hutch_cell")
    cell.use_big_arenas()
    load_cloudpickle()
    sys.path.insert(0, HERE)
    call = load_own("call")
    exercise = load_own("exercise")
    sys.path.remove(HERE)
    for name, module in list(sys.modules.items()):
        origin = getattr(module, "__file__", None)
        if name != "__main__" and isinstance(origin, str) and os.path.dirname(origin) == HERE:
            del sys.modules[name]
            sys.modules["_hutch_" + name.removeprefix("_hutch_")] = module
    sys.meta_path.append(call.session.importing.kept)
    call.add_site_builtins()
    leave_flags_to_ourselves()
    gc.disable()
    prepare_streams(cell)
    warm_up(cell, call)
    # All that is the same for every pool is done: a spare worker waits here for its pool.
    text = restarting.config_given()
    if text is None:
        frame = cell.recv(CONTROL)
        if frame is None or frame[0] != cell.CONFIG:
            sys.exit("zygote.py is started by hutch-warden")
        text = bytes(frame[5])
        given = given_environment(configuration(text))
        restarting.restart(__file__, text, given, call.session.session_files.nameless_file)
    config = configuration(text)
    prepare_environment(config)
    count_cpus(max(1, int(config.get("HUTCH_CPUS", "1"))))
    # A worker that was started ahead has an empty one where its calls want nothing.
    of_base = config.get("HUTCH_PATH", "").split(":")
    there = [path for path in (MODULES, ENVIRONMENT, *of_base) if os.path.isdir(path)]
    there = [path for path in there if os.listdir(path)]
    sys.path += there
    given_path = [path for path in os.environ.get("PYTHONPATH", "").split(":") if path]
    be_interpreter_of(ENVIRONMENT, there)
    sys.argv = [""]
    zygote = Zygote(cell, config, hooks)
    zygote.preload()
    encode = functools.partial(call.replies.encoding.encode, max_bytes=1 << 24)
    zygote.exercise(exercise, encode, [path for path in there if path != MODULES])
    zygote.set_up()
    zygote.generators.end()
    hooks.end()
    zygote.exits.end()
    zygote.prepare(call)
    # Held as long as it is open. In a single-cell worker there is no other cell to lock out.
    lock = -1 if zygote.number("HUTCH_SINGLE_CELL", 0) else cell.lock_executable()
    # Looked at in calls first, which may bring those directories.
    sys.path[:0] = given_path
    sys.stdout.flush()
    sys.stderr.flush()
    zygote.freeze()
    # While nothing is in big pages yet, which a fork would have them divided.
    zygote.learn_footprint(exercise, encode)
    cell.settle_pages()
    zygote.ready()
    zygote.serve()
    del lock


if __name__ == "__main__":
    main()
