# SPDX-License-Identifier: Apache-2.0
"""What is used of packages ahead of calls: nothing of it is seen, and nothing of it can break."""

from __future__ import annotations

import importlib.util
import locale
import os
import random
import sys
import textwrap
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

driver = pytest.importorskip("driver", reason="cloudpickle and msgpack are not installed")

from driver import RESULT, Worker  # noqa: E402


@pytest.fixture
def exercise() -> ModuleType:
    path = Path(__file__).with_name("exercise.py")
    spec = importlib.util.spec_from_file_location("hutch_exercise", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_of_the_whole_process_is_put_back(
    exercise: ModuleType, capfd: pytest.CaptureFixture[str]
) -> None:
    def state() -> tuple[Any, ...]:
        mask = os.umask(0)
        os.umask(mask)
        words = locale.setlocale(locale.LC_ALL)
        streams = sys.stdin, sys.stdout, sys.stderr
        own = dict(os.environ), os.getcwd(), sys.path[:], random.getstate()
        return (mask, words, *streams, *own, list(warnings.filters), warnings.showwarning)

    before = state()
    with exercise.unseen():
        os.environ["HUTCH_TEST"] = "x"
        del os.environ["PATH"]
        os.chdir("/")
        os.umask(0o777)
        sys.path.insert(0, "/nowhere")
        random.seed(1)
        locale.setlocale(locale.LC_ALL, "C")
        print("seen")
        warnings.warn("seen", stacklevel=1)
        warnings.simplefilter("error")
        assert state() != before
    assert state() == before
    assert capfd.readouterr() == ("", "")


def test_what_fails_is_reported_and_contained(exercise: ModuleType) -> None:
    def fails(_: Any) -> Any:
        yield []
        raise SystemExit(1)

    exercise.USES["os"] = fails
    assert exercise.run("os", repr) == "SystemExit"


def test_only_what_the_environment_has_of_the_table_is_used(
    exercise: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("yaml", "other"):
        (tmp_path / f"{name}.py").touch()
        monkeypatch.delitem(sys.modules, name, raising=False)
        importlib.import_module(name)
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, name, importlib.import_module(name))
    assert exercise.names([str(tmp_path)]) == ["yaml"]
    assert exercise.names([str(tmp_path / "elsewhere")]) == []


# Of a package that is called as one of the table, whatever it does.
BREAKS = {
    "thread": "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(99,), daemon=True).start()",
    "descriptor": "kept = open('/dev/null')",
    "handler": "import atexit; atexit.register(print, 'seen')",
    "signal": "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)",
    "child": "import os, time\nif not os.fork(): time.sleep(99)",
    "hang": "while True: pass",
    "crash": "import os; os.abort()",
    "exit": "import os; os._exit(0)",
}
STAYS = {
    "error": "raise SystemExit(3)",
    "output": "import sys, warnings; print(1); print(2, file=sys.stderr); warnings.warn('x')",
    "environment": "import os; os.environ['SEEN'] = '1'; os.chdir('/tmp'); os.umask(0)",
}


PACKAGE = """
done = 0
def safe_dump(x):
    global kept, done
    done += 1
{}
    return x
safe_load = safe_dump
"""


@pytest.fixture
def worker_with(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Worker]:
    monkeypatch.setattr(driver, "ENVIRONMENT", "")

    def start(body: str) -> Worker:
        text = PACKAGE.format(textwrap.indent(body, "    "))
        return Worker(PRELOAD="yaml", PRELOAD_SEC=2, files={"environment/yaml.py": text.encode()})

    return start


LOOKS = """
def look():
    import os, sys, yaml
    assert len(os.listdir("/proc/self/task")) == 1 and os.getcwd() == "/work"
    assert "SEEN" not in os.environ
    mask = os.umask(0)
    return [yaml.done, mask, len(os.listdir("/proc/self/fd"))]
"""


def look(worker: Worker) -> Any:
    space: dict[str, Any] = {"__name__": "__main__"}
    exec(LOOKS, space)
    cell = worker.cell()
    cell.arm(5000)
    reply = cell.call(space["look"])
    cell.kill()
    assert reply is not None and reply.kind == RESULT, reply
    assert not reply.output and not reply.errors
    return reply.value


@pytest.mark.parametrize("kind", BREAKS)
def test_use_that_leaves_something_or_ends_the_process_is_left_out(
    kind: str, worker_with: Callable[[str], Worker]
) -> None:
    with worker_with(BREAKS[kind]) as worker:
        notes = worker.ready()
        assert list(notes["preloaded"]) == ["yaml"] and notes["skipped"] == {}, notes
        assert isinstance(notes["exercised"]["yaml"], str), notes
        assert look(worker)[0] == 0


def test_use_that_changes_the_process_is_not_seen(worker_with: Callable[[str], Worker]) -> None:
    with worker_with("pass") as worker:
        worker.ready()
        _, *plain = look(worker)
    for kind, body in STAYS.items():
        with worker_with(body) as worker:
            notes = worker.ready()
            assert "yaml" in notes["exercised"], (kind, notes)
            done, *rest = look(worker)
            assert done > 0 and rest == plain, kind
