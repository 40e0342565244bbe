# SPDX-License-Identifier: Apache-2.0
"""Packages that are added to a session: what it then has, and what leaves it as it was."""

from __future__ import annotations

import asyncio
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support import grows_by_less_than

import hutch
from hutch import AsyncSession, DependencyInstallError, Environment, Session, SnapshotError
from hutch._carry.container import Container

STATE = (
    "import os, sys\n[sys.path, os.environ['PATH'], os.environ.get('PYTHONPATH'), "
    "sorted(os.listdir('/tmp')), sorted(os.listdir())]"
)


@pytest.fixture(scope="module")
def s(rung: Any) -> Iterator[Session]:
    """With six, of which tabulate knows nothing, and a package that brings a program."""
    with Session(isolation=rung, timeout_sec=60, dependencies=["six==1.16.0"]) as session:
        assert session.install("tabulate==0.9.0") == ["tabulate==0.9.0"]
        yield session


def test_what_was_added_is_imported_and_lies_outside_the_directory(s: Session) -> None:
    assert s.exec("import tabulate; tabulate.tabulate([[1]], tablefmt='plain')").value == "1"
    place = s.exec("tabulate.__file__").value
    assert not place.startswith("/work") and s.files.list() == []
    assert s.exec("import sys; sys.path[-1]").value in place
    version = "from importlib.metadata import version; version('tabulate')"
    assert s.exec(version).value == "0.9.0"


def test_its_programs_are_those_of_commands(s: Session) -> None:
    shown = s.command(["tabulate", "-f", "plain"], input="a b\n")
    assert (shown.stdout, shown.stderr, shown.exit_code) == ("a  b\n", "", 0)
    assert s.bash("echo 1 2 | tabulate -f plain").stdout == "1  2\n"
    assert s.exec("!echo 3 4 | tabulate -f plain").stdout == "3  4\n"


def test_other_interpreters_find_it_after_all_else(s: Session) -> None:
    source = "import six, sys, tabulate; print(tabulate.__file__.startswith(sys.path[-1]))"
    assert s.command(["python", "-c", source]).stdout == "True\n"
    started = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import tabulate'])"
    assert s.exec(started + ".returncode").value == 0


def test_nothing_that_is_imported_changes(s: Session) -> None:
    before = s.exec("import six; six.__file__").unwrap()
    assert s.install("python-dateutil==2.9.0") == ["python-dateutil==2.9.0"]  # it needs six
    source = "import dateutil.parser, six; [six.__version__, six.__file__]"
    assert s.exec(source).value == ["1.16.0", before]
    assert s.install("six", "tabulate") == []


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ("six>=1.17", r"six>=1\.17.*six==1\.16\.0.*unsatisfiable"),
        ("tabulate<0.9", r"tabulate<0\.9.*tabulate==0\.9\.0"),  # added before
        ("tabulatte-nosuch", "tabulatte-nosuch was not found"),
        ("docopt", "docopt.*no usable wheels"),
        ("numpy", r"of disk_mb=256"),
    ],
)
def test_what_cannot_be_added_leaves_the_session_as_it_was(
    s: Session, wanted: str, said: str
) -> None:
    before = s.exec(STATE).unwrap()
    if wanted == "numpy":
        s.files.write("/tmp/filled", bytes(240 << 20))
        before[3].append("filled")
    with pytest.raises(DependencyInstallError, match=said):
        s.install(wanted)
    after = s.exec(STATE).unwrap()
    assert sorted(after[3]) == sorted(before[3])
    assert [*after[:3], after[4]] == [*before[:3], before[4]]
    assert s.exec("len(os.listdir('/tmp/.packages'))").value == 3
    if wanted == "numpy":
        s.files.delete("/tmp/filled")
    assert s.exec("import tabulate; 1").value == 1


def test_a_conflict_says_what_the_session_has(s: Session) -> None:
    with pytest.raises(DependencyInstallError) as error:
        s.install("six>=1.17")
    assert error.value.hint.startswith("the session has six==1.16.0, and what it has stays")
    with pytest.raises(DependencyInstallError) as error:
        s.install("tabulatte-nosuch")
    assert "the session has" not in error.value.hint


def test_scripts_of_a_package_that_is_too_large_are_not_read(tmp_path: Path) -> None:
    name, about = "scripted", "scripted-1.0.dist-info"
    scripts = [f"bin/t{i}" for i in range(200)]
    wheel = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files = {
        f"{name}.py": b"",
        **dict.fromkeys(scripts, bytes(1 << 20)),
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: scripted\nVersion: 1.0\n",
        f"{about}/WHEEL": wheel,
    }
    record = "".join(f"{one},,\n" for one in [*files, f"{about}/RECORD"])
    file = tmp_path / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as z:
        for one, content in {**files, f"{about}/RECORD": record.encode()}.items():
            z.writestr(one, content)
    tmp_path.chmod(0o755)
    with Session(environment=Environment(find_links=[str(tmp_path)]), disk_mb=64) as s:
        with pytest.raises(DependencyInstallError, match=r"take 200\.\d MiB"):
            s.install(name)
        with grows_by_less_than(100), pytest.raises(DependencyInstallError, match="take 200"):
            s.install(name)


def test_what_lies_in_the_way_is_reported() -> None:
    with Session() as s:
        s.exec("open('/tmp/.packages', 'w').close()").unwrap()
        with pytest.raises(DependencyInstallError, match="cannot be put into the session: Not a d"):
            s.install("tabulate")
        s.reset(files=True)
        assert s.install("tabulate")


def test_what_is_larger_than_the_disk_is_not_sent(s: Session) -> None:
    with Session(disk_mb=16) as small:
        with pytest.raises(DependencyInstallError, match=r"take \d+\.\d MiB .* disk_mb=16") as one:
            small.install("numpy")
        assert "Session(disk_mb=" in one.value.hint
        assert small.files.list("/tmp") == []


@pytest.mark.parametrize(
    ("wanted", "kind"),
    [
        ((), TypeError),
        ((1,), TypeError),
        (("--index-url=x",), hutch.RequirementError),
        (("./here",), hutch.RequirementError),
        (("six @ https://example.org/six.whl",), hutch.RequirementError),
        (("yaml",), hutch.RequirementError),
    ],
)
def test_what_is_no_requirement_is_refused(s: Session, wanted: Any, kind: type[Exception]) -> None:
    with pytest.raises(kind):
        s.install(*wanted)


def test_it_is_there_again_after_a_restart() -> None:
    with Session() as s:
        s.install("tabulate==0.9.0")
        assert s.exec("import os; os._exit(1)").restarted
        assert s.exec("import tabulate; 1").value == 1
        assert s.command(["tabulate", "-f", "plain"], input="a b\n").stdout == "a  b\n"
        assert s.install("tabulate") == []
        s.reset()
        assert s.exec("import tabulate; 1").value == 1
        s.files.write("left.txt", "1")
        s.reset(files=True)
        assert s.exec("import tabulate; 1").value == 1 and s.files.list() == []
        assert s.install("tabulate") == []
    first = s.history()[0]
    assert (first.kind, first.source) == ("install", "tabulate==0.9.0")


def test_a_snapshot_and_a_name_bring_it_back(tmp_path: Any) -> None:
    with Session(id="adds", storage=str(tmp_path / "kept")) as s:
        s.install("tabulate==0.8.10")
        s.install("six==1.16.0")
        s.exec(
            "import tabulate, six\ndef shown(): return tabulate.tabulate([[1]], tablefmt='plain')"
        )
        saved = s.snapshot()
        assert Container(saved).notes.packages == ("tabulate==0.8.10", "six==1.16.0")
    version = "shown(), tabulate.__version__"
    with Session(id="adds", storage=str(tmp_path / "kept")) as s:
        assert s.exec(version).value == ("1", "0.8.10")
        s.reset(files=True)  # what it was saved with is added to a fresh one, too
        assert s.exec("import six, tabulate; tabulate.__version__").value == "0.8.10"
    with Session(id="adds", storage=str(tmp_path / "kept")) as s:
        assert s.exec("import six, tabulate; tabulate.__version__").value == "0.8.10"
    with Session(snapshot=saved) as s:
        assert s.exec(version).value == ("1", "0.8.10")
        assert s.command(["tabulate", "-f", "plain"], input="a b\n").stdout == "a  b\n"
        assert s.install("tabulate", "six") == []
        assert Container(s.snapshot()).notes.packages == ("tabulate==0.8.10", "six==1.16.0")
    with Session(dependencies=["tabulate==0.8.10"]) as s:
        s.restore(saved)
        assert s.exec(version).value == ("1", "0.8.10")
        assert Container(s.snapshot()).notes.packages == ("tabulate==0.8.10", "six==1.16.0")


def test_a_snapshot_whose_packages_cannot_be_added_is_refused() -> None:
    with Session(files={"a.txt": "1"}) as s:
        s.install("tabulate==0.8.10")
        s.exec("import tabulate")
        saved = s.snapshot()
    with Session(dependencies=["tabulate==0.9.0"]) as s:
        s.exec("x = 1")
        with pytest.raises(SnapshotError, match=r"cannot be added again: .*tabulate==0\.8\.10"):
            s.restore(saved)
        assert s.names() == ["x"] and s.files.list() == []
        s.restore(saved, globals=False)
        assert s.files.read("a.txt") == "1" and s["x"] == 1
    with Session(snapshot=saved, dependencies=["tabulate==0.9.0"]) as s:
        for _ in range(2):
            with pytest.raises(SnapshotError, match="cannot be added again"):
                s.exec("1")
    with Session(snapshot=saved, dependencies=["tabulate==0.9.0"], globals=False) as s:
        assert s.files.read("a.txt") == "1" and "tabulate" not in s.names()


def test_it_comes_back_in_an_async_session(tmp_path: Any) -> None:
    async def main() -> None:
        async with AsyncSession(id="adds", storage=str(tmp_path / "kept")) as s:
            await s.install("tabulate==0.9.0")
            await s.exec("import tabulate")
            saved = await s.snapshot()
            await s.reset(files=True)
            assert (await s.exec("import tabulate; 1")).value == 1
        async with AsyncSession(id="adds", storage=str(tmp_path / "kept")) as s:
            assert (await s.exec("tabulate.__version__")).value == "0.9.0"
        async with AsyncSession() as s:
            await s.restore(saved)
            assert (await s.exec("tabulate.__version__")).value == "0.9.0"

    asyncio.run(main())


def test_a_lock_and_sources_of_its_own_hold(tmp_path: Any) -> None:
    environment = Environment(["python-dateutil==2.9.0"], constraints=["six<1.17", "tabulate<0.9"])
    with Session(environment=environment) as s:
        assert s.install("tabulate") == ["tabulate==0.8.10"]


def test_code_inside_cannot_install() -> None:
    with Session() as s:
        for line in ("%pip install tabulate", "!pip install tabulate", "!python -m pip install x"):
            outcome = s.exec(f"before = 1\n{line}")
            assert outcome.error is not None and outcome.error.type == "SyntaxError"
            assert "Session.install(" in outcome.error.hint
        assert s.names() == []


def test_a_tool_of_the_callers_may_install_for_the_code() -> None:
    def add(name: str) -> list[str]:
        if name != "tabulate":
            raise ValueError("only tabulate")
        return s.install(name)

    with Session(tools=[add]) as s:
        outcome = s.exec("add('tabulate')\nimport tabulate\ntabulate.__name__")
        assert outcome.value == "tabulate"
        assert "only tabulate" in s.exec("add('numpy')").error.message  # type: ignore[union-attr]
        kinds = [(entry.kind, entry.within, entry.status) for entry in s.history()]
        assert kinds[:3] == [("exec", None, "returned"), ("tool", 1, "returned"),
                             ("install", 2, "returned")]  # fmt: skip


def test_it_can_be_awaited() -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    await asyncio.sleep(0)
                    ticks += 1

            ticking = asyncio.create_task(tick())
            found = await s.install("tabulate==0.9.0")
            ticking.cancel()
            assert found == ["tabulate==0.9.0"] and ticks > 0
            assert (await s.exec("import tabulate; 1")).value == 1
            with pytest.raises(DependencyInstallError, match=r"tabulate==0\.9\.0"):
                await s.install("tabulate<0.9")
            assert [e.kind for e in await s.history()] == ["install", "exec", "install"]

    asyncio.run(main())


@pytest.mark.parametrize("answer", ["[1]", "None", "[('six', 1)]", "{'six': '1'}"])
def test_a_session_that_answers_anything_spoils_nothing(answer: str) -> None:
    replace = "import sys\nfiles = sys.modules['_hutch_session_files']\n"
    with Session() as s:
        s.exec(replace + f"files.VERBS['distributions'] = lambda _: {answer}").unwrap()
        with pytest.raises(hutch.SandboxError, match="gave an invalid reply"):
            s.install("tabulate")


def test_a_hostile_name_or_version_reaches_no_resolver() -> None:
    pairs = [("x @ https://example.org/", "1"), ("-r", "1"), ("tabulate", "0.8.10"),
             ("y", "1\n--index-url=x"), ("z" * 1000, "1")]  # fmt: skip
    with Session() as s:
        s.exec(f"import sys\nsys.modules['_hutch_session_files'].VERBS['distributions'] = "
               f"lambda _: {pairs!r}").unwrap()  # fmt: skip
        with pytest.raises(DependencyInstallError, match=r"tabulate==0\.8\.10"):
            s.install("tabulate>0.9")
        assert s.install("six==1.16.0") == ["six==1.16.0"]


# ---- lines of code that install

LINES = """%pip install -q tabulate==0.9.0 2>&1 | tail -1
import tabulate
name = 'six'
!pip install {name}
%pip install tabulate
found = tabulate.__version__, _exit_code
"""
PRINTED = (
    "Successfully installed tabulate-0.9.0\nSuccessfully installed six-1.17.0\n"
    "Requirement already satisfied: tabulate\n"
)


def test_code_may_ask_its_caller_for_packages(rung: Any) -> None:
    asked: list[list[str]] = []

    def allow(requirements: list[str]) -> bool:
        asked.append(requirements)
        return True

    with Session(isolation=rung, timeout_sec=60, on_install=allow, dependencies=[]) as s:
        out = s.exec(LINES)
        assert (out.stdout, out.error) == (PRINTED, None)
        assert s["found"] == ("0.9.0", 0)
        assert asked == [["tabulate==0.9.0"], ["six"], ["tabulate"]]
        wrong = s.exec(
            "%pip install no-such-package-of-hutch\n!pip install --index-url x y\n_exit_code"
        )
        assert (wrong.status, wrong.value, wrong.stdout) == ("returned", 1, "")
        assert "no-such-package-of-hutch was not found" in wrong.stderr
        assert "--index-url: packages are added without this option" in wrong.stderr
        assert len(asked) == 4
        kinds = [entry.kind for entry in s.history()]
        assert kinds[:4] == ["exec", "tool", "install", "tool"]
        assert s.names() == ["tabulate", "name", "found"]
        assert s.exec("import hutch_tools; hutch_tools.search(), hutch_tools.__tools__").value == (
            [], {})  # fmt: skip
        call = "import hutch_tools; hutch_tools.call('__pip_install__', {})"
        for wanted in ([], ["-r /etc/passwd"], ["--index-url=x"], ["./here"], ["six @ http://x"]):
            assert s.exec(call.format(wanted)).error is not None
        assert len(asked) == 4


def test_what_its_caller_does_not_allow_is_not_added() -> None:
    for answer in (False, None, 1, "yes"):
        with Session(on_install=lambda _, answer=answer: answer) as s:  # type: ignore[misc]
            out = s.exec("%pip install six\nimport six")
            assert out.stderr.startswith("ERROR: six: the caller does not allow it\n")
            assert out.error is not None and out.error.type == "ModuleNotFoundError"
    with pytest.raises(TypeError, match="on_install= takes a function"):
        Session(on_install=["six"])  # type: ignore[arg-type]
    with Session() as s:
        error = s.exec("%pip install six").error
        assert error is not None and "on_install=" in error.hint


def test_a_caller_whose_answer_fails_ends_nothing() -> None:
    def fails(_: list[str]) -> bool:
        raise RuntimeError("no answer")

    with Session(on_install=fails) as s:
        out = s.exec("%pip install six\n_exit_code")
        assert (out.value, out.stderr) == (1, "ERROR: no answer\n")


def test_an_async_session_installs_for_its_code() -> None:
    async def main() -> None:
        async with AsyncSession(timeout_sec=60, on_install=lambda _: True) as s:
            out = await s.exec("import asyncio\nawait asyncio.sleep(0)\n" + LINES)
            assert (out.stdout, out.error) == (PRINTED, None)
            many = "%pip install iniconfig\nimport iniconfig; 1"
            assert (await s.exec(many)).value == 1

    asyncio.run(main())


def test_a_session_that_nothing_refers_to_ends_though_it_may_install() -> None:
    s = Session(on_install=lambda _: True)
    s.exec("1")
    core = s._engine.cell
    del s
    assert core.closed == "nothing referred to it any more"
