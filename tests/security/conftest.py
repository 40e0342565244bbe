# SPDX-License-Identifier: Apache-2.0
"""Attacks on the walls, each with its harmless counterpart.

Probes are texts in probes/: functions named `probe_*`, run in one cell each file, after
probes/prelude.py. A probe answers plain data, which the tests judge outside; so a suite of hundreds
of attacks is a dozen calls. What must kill or hang its cell is a call of its own. Runs against the
real thing: Podman, an agent, a worker without packages.

With HUTCH_WITHOUT=WALL,…: the control. scripts/security-control has taken those walls down in the
copy of Hutch that is imported; only the attacks marked with just them run, and each must succeed:
its test must fail.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import hutch
from hutch import sandbox
from hutch._connect import launcher

PROBES = Path(__file__).parent / "probes"
TABLE = Path(__file__).parent / "README.md"
AREAS = {
    "PR": "processes", "FS": "file system", "KS": "kernel's surface", "PI": "information",
    "NW": "network", "EP": "egress proxy", "RX": "resources", "CS": "state between calls",
    "WP": "worker's protocol", "RD": "decoding", "AS": "agent's socket", "DB": "dependencies",
    "PF": "pool under faults", "PO": "podman under faults", "TL": "time and lifecycle",
}  # fmt: skip
WITHOUT = set(filter(None, os.environ.get("HUTCH_WITHOUT", "").split(",")))
Answers = dict[str, Any]


def run_probes(source: str, name: str) -> Answers:
    """Runs in the cell. What a probe raises is an answer too."""
    space: dict[str, Any] = {"__name__": name}
    exec(compile(source, name, "exec"), space)
    answers: dict[str, Any] = {}
    for key, probe in list(space.items()):
        if key.startswith("probe_"):
            try:
                answers[key[6:]] = probe()
            except Exception as error:
                answers[key[6:]] = f"{type(error).__name__}: {error}"
    return answers


def in_command(session: hutch.Session, source: str, name: str) -> Answers:
    session.files.write("probes.txt", source)
    session.files.write(
        "run.py",
        "from typing import Any\nAnswers = dict\n"
        f"{inspect.getsource(run_probes)}\n"
        f"answers = run_probes(open('probes.txt').read(), {name!r})\n"
        "open('answers', 'w').write(repr(answers))\n",
    )
    of_bash = "-u PWD -u OLDPWD -u SHLVL -u _"
    session.bash(f"env {of_bash} python run.py").unwrap()
    found: Answers = ast.literal_eval(session.files.read("answers"))
    return found


KINDS = ("call", "session", "hundredth exec", "restarted", "command")


@pytest.fixture(scope="session", params=KINDS)
def probes(request: pytest.FixtureRequest) -> Callable[[str], Answers]:
    """The answers of one file of probes; each file runs once in each kind of process: that of a
    call, of a session at its first exec, at a later one, and after a restart, and of a program that
    bash starts there.
    """
    known: dict[str, Answers] = {}
    limits: dict[str, Any] = {"timeout_sec": 300, "pids": 64, "memory_mb": 512}
    runner = sandbox(run_probes, **limits)
    prelude = (PROBES / "prelude.py").read_text()

    def answer(source: str, name: str) -> Answers:
        if request.param == "call":
            return runner(source, name)
        with hutch.Session(**limits) as session:
            for _ in range(99 if request.param == "hundredth exec" else 0):
                session.exec("x = 1").unwrap()
            if request.param == "command":
                return in_command(session, source, name)
            if request.param == "restarted":
                assert session.exec("import os; os._exit(3)").restarted
            found: Answers = session.call(run_probes, source, name)
            return found

    def answers(name: str) -> Answers:
        if name == "processes" and request.param == "command":
            pytest.skip("its probes kill what they can see, as the process that waits for them")
        if name not in known:
            known[name] = answer(prelude + (PROBES / f"{name}.py").read_text(), name)
        return known[name]

    return answers


@pytest.fixture
def next_call_works() -> Iterator[None]:
    """Whatever the test did, the next caller notices nothing."""
    yield
    assert honest([1, 2]) == 3


class Hold:
    """`held()` of a call that has its tool lasts until the test has seen enough."""

    def __init__(self) -> None:
        self._begun, self._over = threading.Semaphore(0), threading.Event()
        self.tool = hutch.Tool(self._wait, name="held")

    def _wait(self) -> bool:
        """Ends when it may."""
        self._begun.release()
        return self._over.wait(120)

    def await_begun(self) -> None:
        """Another one, each time."""
        assert self._begun.acquire(timeout=60)

    def release(self) -> None:
        self._over.set()


@pytest.fixture
def hold() -> Iterator[Hold]:
    made = Hold()
    yield made
    made.release()


@sandbox
def honest(numbers: list[int]) -> int:
    return sum(numbers)


def shared(*function: Any, **settings: Any) -> Any:
    """A sandbox whose cell serves the next call too: the wall "fresh" taken down."""
    return sandbox(*function, **{"isolation": "shared"} | settings)


@pytest.fixture(scope="session")
def without_namespaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Worker files whose filter knows no `unshare`."""
    runtime = tmp_path_factory.mktemp("bare") / "_runtime"
    shutil.copytree(launcher.RUNTIME, runtime)
    profile = json.loads((runtime / "seccomp-worker.json").read_text())
    for rule in profile["syscalls"]:
        rule["names"] = [name for name in rule["names"] if name not in ("unshare", "setns")] or [
            "getpid"
        ]
    (runtime / "seccomp-worker.json").write_text(json.dumps(profile))
    return runtime


@pytest.fixture(params=("cell", "container", "bare", "gvisor"))
def rung(request: pytest.FixtureRequest, without_namespaces: Path) -> Iterator[str]:
    """Each in turn; "bare" is a container where the host lets nobody make namespaces."""
    if request.param == "gvisor" and shutil.which("runsc") is None:
        pytest.skip("gVisor's runsc is not installed: apt-get install runsc")
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "bare":
            patch.setattr(launcher, "RUNTIME", str(without_namespaces))
            launcher.runtime_id.cache_clear()
        yield request.param
    launcher.runtime_id.cache_clear()


if "fresh" in WITHOUT:
    hutch.sandbox = shared  # before a test's file imports it


# What a program that is started does not inherit: where these walls are down, that one stands.
ENDS_WITH_EXEC = {"capabilities", "descriptors"}
broken: list[str] = []  # of the control: each attack that succeeded, and what its test said


@pytest.fixture(autouse=True, scope="session")
def a_call_works_without_the_wall() -> None:
    """Else every test would fail, and prove nothing."""
    if WITHOUT:
        assert honest([1, 2]) == 3


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not WITHOUT:
        return
    chosen = [
        item
        for item in items
        if any(set(m.args) == WITHOUT for m in item.iter_markers("wall"))
        and not ("[command]" in item.name and WITHOUT & ENDS_WITH_EXEC)
    ]
    config.hook.pytest_deselected(items=[item for item in items if item not in chosen])
    items[:] = chosen


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """In the control the verdict is turned round; what comes after the attack does not count."""
    made = yield
    if not WITHOUT:
        return
    report = made.get_result()  # type: ignore[attr-defined]
    if report.when == "call" and report.outcome == "failed":
        said = str(report.longrepr).splitlines()
        found = next((line for line in said if line.startswith("E ")), "E")[1:].strip()
        broken.append(f"{item.nodeid.partition('security/')[2]}: {found[:150]}")
        report.outcome, report.longrepr = "passed", None
    elif report.when == "call" and report.outcome == "passed":
        report.outcome, report.longrepr = "failed", "the wall is down, and the attack was refused"
    elif report.when == "teardown":
        report.outcome, report.longrepr = "passed", None


def cases() -> dict[str, set[tuple[str, str]]]:
    """The (file, test) of this folder that try each case of the table; test "": the whole file."""
    rows = re.findall(r"^\| (\w\w-\d\d) \| [^|]+ \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
    return {case: set(re.findall(r"`(test_\w+\.py)(?:::(\w+))?`", tried)) for case, tried in rows}


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """A line for each area: of how many cases every test that ran here held."""
    if WITHOUT:
        terminalreporter.section("the attacks that succeeded")
        for line in broken:
            terminalreporter.line(line)
        return
    ran: dict[tuple[str, str], bool] = {}
    for result in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(result, []):
            path = Path(report.nodeid.split("::")[0])
            if path.parent.name != "security" or not hasattr(report, "nodeid"):
                continue
            name = report.nodeid.split("::")[-1].partition("[")[0]
            for key in ((path.name, name), (path.name, "")):
                ran[key] = ran.get(key, True) and result == "passed"
    tried: dict[str, list[bool]] = {area: [] for area in AREAS}
    for case, tests in cases().items():
        outcomes = [ran[test] for test in tests if test in ran]
        if outcomes:
            tried[case[:2]].append(all(outcomes))
    if not any(tried.values()):
        return
    terminalreporter.section("attacks: held / tried here")
    for area, held in tried.items():
        if held:
            terminalreporter.line(f"{area}  {AREAS[area]:<22} {sum(held):>3} / {len(held)}")
