# SPDX-License-Identifier: Apache-2.0
"""What a model does in a session without being asked to, and what it is told then, on each rung
whose interpreter is replaced.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from support import until

from hutch import AsyncSession, Session, StopExec

KEYWORDS: dict[str, Any] = {"memory_mb": 256, "timeout_sec": 20}
SWALLOWS = """
print('runs', flush=True)
while True:
    try:
        while True: pass
    except KeyboardInterrupt: pass
"""
# Where it is interrupted before sum() runs, which looks for no signal, it keeps its names.
STUBBORN = "print('runs', flush=True)\nsum(range(10**12))"
ISOLATION = pytest.mark.parametrize("isolation", ["cell", "container"])


def finish(answer: str) -> None:
    """Ends the work."""
    raise StopExec


@pytest.fixture(scope="module", params=["cell", "container"])
def s(request: pytest.FixtureRequest) -> Iterator[Session]:
    with Session(isolation=request.param, tools=[finish], **KEYWORDS) as session:
        session.exec("kept = 'there'\ndef f(n): return n").unwrap()
        yield session


@pytest.fixture(autouse=True)
def _no_name_is_lost(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "s" in request.fixturenames:
        assert request.getfixturevalue("s")["kept"] == "there"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ("```python\nx = 1\n```", "leave out the fences"),
        ("Let me look:\n\n```python\nx = 1\n```", "the text around them"),
        (">>> x = 1\n>>> x", "leave out the prompts"),
        ("$ ls -la", "a line that begins with !"),
        ("%pip install six", "Session.install"),
        ("print(“done”)", "straight quotes"),
        ("x = {'ok': true}", "Python has True for it"),
        ("import asyncio\nc = asyncio.sleep(0)\ntry: asyncio.create_task(c)\nfinally: c.close()",
         "`await` outside functions"),
        ("import sklearn", 's.install("scikit-learn")'),
        ("open('/home/me/data.csv')", "s.files.upload()"),
    ],
)  # fmt: skip
def test_what_is_no_code_for_a_session_has_a_hint(s: Session, source: str, hint: str) -> None:
    outcome = s.exec(source)
    assert outcome.status == "raised" and not outcome.restarted
    assert f"\nhint: {outcome.error.hint}" in outcome.text  # type: ignore[union-attr]
    assert hint in outcome.text.splitlines()[-1]


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("    x = 2\n    f(x)", 2),
        ("return f(3)", 3),
        ("import asyncio\nawait asyncio.sleep(0, f(4))", 4),
        ("f(5)\nexit()", None),
        ("import sys; sys.exit(0)", None),
        ("from IPython import get_ipython\nget_ipython()", None),
        ("found = !echo 6\nf(list(found))", ["6"]),
    ],
)
def test_what_only_notebooks_take_runs(s: Session, source: str, value: object) -> None:
    assert s.exec(source).unwrap() == value


def test_an_agent_that_has_finished_has_not_failed(s: Session) -> None:
    outcome = s.exec("print('so far')\nfinish('42')\nprint('not reached')")
    assert (outcome.status, outcome.ok, outcome.error) == ("returned", True, None)
    assert outcome.text == "so far" and "StopExec" not in str(outcome) + repr(outcome)


def test_a_picture_reaches_json_and_a_notebook(s: Session) -> None:
    outcome = s.exec(
        "class Figure:\n"
        "    def _repr_mimebundle_(self, include=None, exclude=None):\n"
        "        return {'image/png': b'\\x89PNG', 'text/html': '<b>1</b>'}\n"
        "    def show(self):\n"
        "        from IPython.display import display\n"
        "        display(self._repr_mimebundle_(), raw=True)\n"
        "Figure().show()\nFigure()"
    )
    shown = json.loads(json.dumps(outcome.to_dict()))["display"]
    picture = base64.b64encode(b"\x89PNG").decode()
    assert [one["image/png"] for one in shown] == [picture, picture]
    assert outcome._repr_html_().count(f"base64,{picture}") == 2
    assert "PNG" not in outcome.text and "Figure object" in outcome.text


def test_what_is_no_data_is_named(s: Session) -> None:
    for name, kind in (("f", "a function"), ("Session", "a type"), ("json", "a module")):
        s.exec("import json\nclass Session: pass").unwrap()
        with pytest.raises(Exception, match=f"^{name} is {kind}, which cannot be returned"):
            s[name]


def test_progress_comes_as_it_is_printed_and_too_much_is_cut(s: Session) -> None:
    heard: list[str] = []
    source = (
        "import sys, time\n"
        "for n in range(3):\n"
        "    print(f'\\r{n}/3', end='', file=sys.stderr, flush=True)\n"
        "    while not kv.get(str(n)): time.sleep(0.01)\n"
    )

    def hear(text: str) -> None:  # the code goes on once what it printed has come
        heard.append(text)
        for n in range(3):
            if f"{n}/3" in text:
                s.kv.set(str(n), "seen")

    s.exec("from hutch_tools import kv\n" + source, on_stderr=hear).unwrap()
    assert "".join(heard) == "\r0/3\r1/3\r2/3"
    large = s.exec("print('x' * 5_000_000)")
    assert large.ok and large.stdout_truncated and large.stdout_size == 5_000_001
    assert "of 5,000,001 bytes of stdout" in large.text and len(large.text) < 20_100


@ISOLATION
def test_what_a_restart_costs_is_in_every_text_that_tells_of_it(isolation: Any) -> None:
    with Session(isolation=isolation, **KEYWORDS) as s:
        s.exec("rows = [1, 2]; open('notes', 'w').write('kept')").unwrap()
        big = s.exec("more = [bytearray(1 << 20) for _ in range(4000)]")
        assert big.limit == "memory" and big.restarted and "rows" in s.lost
        assert "Session(memory_mb=512)" in big.text
        assert "its names are lost, files stay" in big.text
        missing = s.exec("sum(rows)")
        assert "rows was lost when the interpreter was restarted" in missing.text
        assert not missing.restarted and "files stay" not in missing.text
        assert s.files.read("notes") == "kept" and s.exec("rows = [3]\nsum(rows)").value == 3


def test_code_that_swallows_an_interrupt_is_ended_and_keeps_its_names(s: Session) -> None:
    def stop(_: str) -> None:
        raise ValueError

    with pytest.raises(ValueError):
        s.exec(SWALLOWS, on_stdout=stop)
    assert not s.exec("1").restarted and not s.lost


@ISOLATION
def test_the_call_after_one_that_was_cancelled_tells_of_its_restart(isolation: Any) -> None:
    async def restarts(s: AsyncSession) -> bool:
        runs = asyncio.Event()
        await s.exec("rows = [1, 2]")
        code = s.exec(STUBBORN, on_stdout=lambda _: runs.set())
        task = asyncio.create_task(code)
        await runs.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        later = await s.exec("'rows' in globals()")
        assert later.restarted is (later.value is False), later
        assert later.restarted is ("files stay" in later.text)
        return later.restarted

    async def main() -> None:
        async with AsyncSession(isolation=isolation, **KEYWORDS) as s:
            while not await restarts(s):
                pass
            assert "rows was lost" in (await s.exec("rows")).text

    asyncio.run(asyncio.wait_for(main(), 60))


@ISOLATION
@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_the_call_after_one_that_raised_tells_of_its_restart(isolation: Any, error: Any) -> None:
    def stop(_: str) -> None:
        raise error

    def restarts(s: Session) -> bool:
        s.exec("rows = [1, 2]").unwrap()
        with pytest.raises(error):
            s.exec(STUBBORN, on_stdout=stop)
        later = s.exec("'rows' in globals()")
        assert later.restarted is (later.value is False), later
        return later.restarted

    with Session(isolation=isolation, **KEYWORDS) as s:
        until(lambda: restarts(s))
        assert s.lost == ["rows"] and not s.exec("1").restarted
