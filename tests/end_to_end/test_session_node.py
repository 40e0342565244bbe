# SPDX-License-Identifier: Apache-2.0
"""JavaScript of a session: what it gives, keeps and costs."""

from __future__ import annotations

import asyncio
import datetime
import math
from typing import Any

import pytest

import hutch
from hutch import AsyncSession, Session

WORK = "/work"  # the directory of a cell

# ---- values


@pytest.mark.parametrize(
    ("source", "value"),
    [
        ("1 + 1", 2),
        ("0.5", 0.5),
        ("-0", -0.0),
        ("1e21", 1e21),
        ("2n ** 70n", 2**70),
        ("-255n", -255),
        ("Infinity", math.inf),
        ("'\\u00e4' + 'b'", "äb"),
        ("[1, [true, null], undefined]", [1, [True, None], None]),
        ("({a: 1, 'b c': {d: []}})", {"a": 1, "b c": {"d": []}}),
        ("Object.create(null)", {}),
        ("new Map([[1, 'x'], ['k', 2n]])", {1: "x", "k": 2}),
        ("new Map([[[1], 'x']])", [([1], "x")]),
        ("new Set(['a'])", {"a"}),
        ("new Set([[1]])", [[1]]),
        ("Buffer.from('hi')", b"hi"),
        ("new Uint8Array([1, 2]).buffer", b"\x01\x02"),
        ("new Float64Array([1, 2.5])", [1, 2.5]),
        ("new Date(86400000)", datetime.datetime(1970, 1, 2, tzinfo=datetime.timezone.utc)),
        (
            "new Date(253402300799000)",
            datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.timezone.utc),
        ),
        ("undefined", None),
        ("let declared = 1", None),
        ("if (true) 'of a branch'", "of a branch"),
        ("", None),
        ("Promise.resolve([1])", [1]),
        ("await Promise.resolve(2)", 2),
        ("for (const x of [1, 2]) x * 2", 4),
        ("['list', [1]]", ["list", [1]]),
        ("({kind: ['int', '1']})", {"kind": ["int", "1"]}),
    ],
)
def test_the_completion_value_is_data(s: Session, source: str, value: Any) -> None:
    outcome = s.node(source)
    assert outcome.unwrap() == value and type(outcome.value) is type(value)
    assert outcome.display == [] and outcome.stdout == ""


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("new (class Point { x = 1 })", "Point { x: 1 }"),
        ("(function named() {})", "[Function: named]"),
        ("Symbol('s')", "Symbol(s)"),
        ("const circle = {}; circle.self = circle; circle", "[Circular"),
        ("[() => 1]", "[Function"),
        ("new Error('a value')", "Error: a value"),
        ("new Proxy({}, {})", "{}"),
        ("new Date(8.64e15)", "+275760-09-13"),
    ],
)
def test_what_is_no_data_is_shown(s: Session, source: str, shown: str) -> None:
    outcome = s.node(source)
    assert outcome.ok and outcome.value is None
    text = outcome.display[0]["text/plain"]
    assert shown in text and "[eval]" not in text


def test_an_int_of_more_digits_than_python_reads_is_itself(s: Session) -> None:
    assert s.node("10n ** 5000n").value == 10**5000


def test_nan_is_itself(s: Session) -> None:
    assert math.isnan(s.node("NaN").unwrap())


def test_what_is_printed_comes_apart_and_in_order(s: Session) -> None:
    outcome = s.node("console.log('a', {b: 1}); console.error('c'); process.stdout.write('d')")
    assert (outcome.stdout, outcome.stderr) == ("a { b: 1 }\nd", "c\n")
    large = s.node("for (let i = 0; i < 20000; i++) console.log('x'.repeat(99))", output_mb=3)
    assert large.stdout_size == 2_000_000 and not large.stdout_truncated
    assert s.node("require('child_process').execSync('echo of a child', {stdio: 'inherit'}); 1")
    nested = "require('child_process').execFileSync(process.execPath, ['-p', '6 * 7']).toString()"
    assert s.node(nested).value == "42\n"
    assert s.exec("print('x' * 1000000)", output_mb=3).stdout_size == 1_000_001


# ---- what lasts


def test_names_last_and_may_be_declared_anew(s: Session) -> None:
    s.node("const n = 1; class A {}; function f() { return n }; var v = 2").unwrap()
    assert s.node("[n, f(), v, typeof A]").value == [1, 1, 2, "function"]
    assert s.node("const n = 5; class A { static x = 3 }\nn + A.x").value == 8
    assert s.node("const later = await new Promise((go) => setTimeout(go, 1, 7)); later").value == 7
    assert s.node("later").value == 7
    assert s.node("unknown = 3; globalThis.unknown").value == 3


def test_modules_come_by_require_and_import(s: Session) -> None:
    s.files.write("lib/common.js", "exports.kind = 'common'; exports.here = __dirname")
    s.files.write(
        "lib/module.mjs", "export default 'default'; export const named = import.meta.url"
    )
    s.files.write("lib/data.json", '{"a": 1}')
    s.files.write("lib/node_modules/pack/package.json", '{"main": "index.js"}')
    s.files.write("lib/node_modules/pack/index.js", "module.exports = 'packed'")
    assert s.node("require('./lib/common').kind + require('node:path').sep").value == "common/"
    source = (
        "import whole,\n  {named as url} from './lib/module.mjs'\n"
        "import * as os from 'os'\nimport data from './lib/data.json' with {type: 'json'}\n"
        "[whole, url, typeof os.cpus, data.a]"
    )
    assert s.node(source).value == ["default", f"file://{WORK}/lib/module.mjs", "function", 1]
    assert s.node("(await import('./lib/module.mjs')).default").value == "default"
    assert s.node("process.chdir('lib'); require('pack')").value == "packed"
    assert s.node("const load = () => import('./module.mjs'); (await load()).default").value
    assert s.node("'no import(x) here'; // import(y)\n1").value == 1
    wrong = s.node("import('./nosuch.mjs')")
    assert wrong.error is not None and "Cannot find module" in wrong.error.message
    missing = s.node("\nrequire('lodash')")
    assert missing.error is not None and missing.error.line == 2
    assert "s.files.upload" in missing.error.hint


def test_directory_and_variables_are_those_of_bash_and_python(s: Session) -> None:
    s.bash("mkdir -p place && cd place && export OF_BASH=1").unwrap()
    assert s.node("[process.cwd(), process.env.OF_BASH]").value == [f"{WORK}/place", "1"]
    s.exec("import os; os.environ['OF_PYTHON'] = 'ä'; del os.environ['OF_BASH']").unwrap()
    assert s.node("[process.env.OF_PYTHON, process.env.OF_BASH]").value == ["ä", None]
    s.node("process.chdir('..')").unwrap()
    assert s.bash("pwd").stdout == f"{WORK}\n" and s.exec("os.getcwd()").value == WORK


def test_timers_run_on_between_the_calls(s: Session) -> None:
    s.node("let ticks = 0; const timer = setInterval(() => ticks++, 1)").unwrap()
    s.exec("import time; time.sleep(0.2)").unwrap()
    assert s.node("clearInterval(timer); ticks").unwrap() > 1


# ---- errors


@pytest.mark.parametrize(
    ("source", "error", "line"),
    [
        ("null.x", ("TypeError", "Cannot read properties of null (reading 'x')"), 1),
        ("1\n\nnope", ("ReferenceError", "nope is not defined"), 3),
        ("function f() {\n  throw new RangeError('far')\n}\nf()", ("RangeError", "far"), 2),
        ("\na b", ("SyntaxError", "Unexpected identifier 'b'"), 2),
        ("await 1\nawait Promise.reject(new Error('late'))", ("Error", "late"), 2),
        ("Promise.reject(new TypeError('no'))", ("TypeError", "no"), 1),
        ("throw {code: 3}", ("Error", "{ code: 3 }"), None),
        ("class Own extends Error { name = 'Own' }\nthrow new Own('mine')", ("Own", "mine"), 2),
        ("return 5", ("SyntaxError", "Illegal return statement"), 1),
    ],
)
def test_what_is_thrown_has_its_name_message_and_line(
    s: Session, source: str, error: tuple[str, str], line: int | None
) -> None:
    outcome = s.node(source)
    assert outcome.status == "raised" and not outcome.restarted and outcome.error is not None
    assert (outcome.error.type, outcome.error.message, outcome.error.line) == (*error, line)
    assert "[eval]" not in outcome.error.traceback
    with pytest.raises(hutch.SandboxExecutionError, match=error[0]):
        outcome.unwrap()


def test_what_fails_outside_a_call_is_reported_and_ends_nothing(s: Session) -> None:
    source = "let kept = 1; Promise.reject(new Error('nobody waits')); "
    outcome = s.node(source + "setTimeout(() => { throw new Error('late') }, 1); 2")
    later = s.node("await new Promise((go) => setTimeout(go, 50)); kept")
    assert (outcome.value, later.value, later.restarted) == (2, 1, False)
    said = outcome.stderr + later.stderr
    assert "Error: nobody waits" in said and "Error: late" in said


# ---- its end


def test_an_exit_is_reported_and_the_next_call_begins_anew(s: Session) -> None:
    s.exec("mine = 1")
    s.node("const theirs = 1")
    outcome = s.node("console.log('last'); process.exit(3)")
    assert (outcome.status, outcome.exit_code, outcome.restarted) == ("died", 3, True)
    assert outcome.stdout == "last\n"
    with pytest.raises(hutch.SandboxDied, match="Node ended with exit code 3"):
        outcome.unwrap()
    after = s.node("typeof theirs")
    assert (after.value, after.restarted) == ("undefined", False)
    assert s["mine"] == 1


def test_an_end_between_two_calls_is_reported_by_the_next(s: Session) -> None:
    s.node("setTimeout(() => process.kill(process.pid, 'SIGKILL'), 10); 1").unwrap()
    s.exec("import time; time.sleep(0.3)")
    outcome = s.node("1")
    assert (outcome.status, outcome.exit_code, outcome.restarted) == ("died", 137, True)
    assert s.node("1").value == 1


def test_a_time_limit_ends_it_with_all_that_it_has_started(s: Session) -> None:
    s.exec("mine = 1")
    source = "require('child_process').spawn('sleep', ['1000'], {detached: true}); "
    late = s.node(source + "console.log('begins'); while (true) {}", timeout_sec=1)
    assert (late.limit, late.stdout, late.restarted) == ("time", "begins\n", False)
    assert s.bash("pgrep -c 'sleep|node'").stdout == "0\n"
    again = s.node("typeof late")
    assert (again.value, again.restarted, s["mine"]) == ("undefined", True, 1)
    never = s.node("await new Promise(() => {})", timeout_sec=1)
    assert never.limit == "time" and s.node("1").restarted


def test_an_interrupt_ends_it(s: Session, once_printed: Any) -> None:
    s.node("1")
    loop = "console.log('begins'); while (true) {}"
    outcome = s.node(loop, on_stdout=once_printed(s.interrupt))
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
    assert s.node("1").restarted


def test_a_full_heap_costs_node_alone() -> None:
    with Session(memory_mb=512) as s:
        s.exec("mine = 1")
        outcome = s.node("const all = []; while (true) all.push(new Array(1000).fill(all.length))")
        assert outcome.status in ("died", "limit") and outcome.restarted
        assert s.node("1 + 1").value == 2
    with Session(memory_mb=128) as small:
        assert small.node("1 + 1").value == 2


@pytest.mark.parametrize(("memory_mb", "compiles"), [(64, False), (96, True)])
def test_where_the_compiler_does_not_fit_it_interprets(memory_mb: int, compiles: bool) -> None:
    with Session(memory_mb=memory_mb, pids=12) as s:
        limit = s.exec("import resource; resource.getrlimit(resource.RLIMIT_DATA)").value
        assert s.node("[1 + 1, typeof WebAssembly]").value == [
            2,
            "object" if compiles else "undefined",
        ]
        assert s.exec("resource.getrlimit(resource.RLIMIT_DATA)").value == limit


def test_an_interpreter_that_ends_takes_node_with_it() -> None:
    with Session() as s:
        s.node("const n = 1")
        assert s.exec("import os; os._exit(1)").restarted
        assert s.node("typeof n").value == "undefined"
        s.reset()
        assert s.node("typeof n").value == "undefined"
        assert [entry.kind for entry in s.history()] == ["node", "exec", "node", "node"]


@pytest.mark.parametrize(
    "source",
    [
        "require('fs').writeSync(3, '\\x05\\0\\0\\0hello')",
        "require('fs').writeSync(3, '\\x02\\0\\0\\0[]')",
        "require('fs').closeSync(3); await new Promise(() => {})",
        "globalThis.Object = globalThis.JSON = null; 1",
        "JSON.stringify = JSON.parse = Object.entries = () => { throw 2 }; 1",
    ],
)
def test_code_that_answers_for_node_spoils_nothing(s: Session, source: str) -> None:
    s.node(source, timeout_sec=2)
    for _ in range(3):
        if s.node("1 + 1", timeout_sec=2).value == 2:
            return
    pytest.fail("there is no Node any more")


def test_a_reply_that_is_none_is_an_error() -> None:
    with Session() as s:
        for reply in ("1", "('value', 1)", "('error', ['a'], False)", "('died', 'x', True)"):
            s.exec(
                "import sys\njavascript = sys.modules['_hutch_javascript']\n"
                f"javascript.answer = lambda *_: {reply}"
            ).unwrap()
            assert s.node("1").error.type == "SerializationError"  # type: ignore[union-attr]


# ---- its walls


def test_node_has_the_walls_of_the_session(s: Session) -> None:
    read = "require('fs').readFileSync('/etc/shadow')"
    assert s.node(read).error is not None
    connect = (
        "await new Promise((go) => require('net').connect(53, '1.1.1.1')"
        ".on('error', (e) => go(e.code)).on('connect', () => go('connected')))"
    )
    assert str(s.node(connect).unwrap()).startswith("E")  # the name of an error
    status = s.node("require('fs').readFileSync('/proc/self/status', 'utf8')").value
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    own = s.exec("open('/proc/self/status').read()").value
    ours = dict(line.split(":\t", 1) for line in own.splitlines() if ":\t" in line)
    for name in ("CapEff", "CapBnd", "NoNewPrivs", "Seccomp", "Uid"):
        assert fields.get(name) == ours.get(name)


@pytest.fixture
def older_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which were started before the machine had Node."""
    monkeypatch.setattr("hutch._session_node.NodeCalls._note", lambda *_: None)


def test_what_is_lent_to_be_executed_can_be_neither_opened_nor_changed(older_workers: None) -> None:
    source = """
import mmap, os
fd, done = int(path.rpartition("/")[2]), []
for attempt in (
    lambda: os.open(path, os.O_RDONLY),
    lambda: os.open(path, os.O_RDWR),
    lambda: os.pwrite(fd, b"x", 0),
    lambda: os.ftruncate(fd, 0),
    lambda: os.fchmod(fd, 0o777),
    lambda: os.utime(fd),
    lambda: mmap.mmap(fd, 4096, mmap.MAP_SHARED, mmap.PROT_WRITE),
):
    try:
        attempt()
        done.append(attempt)
    except OSError:
        pass
len(done)
"""
    with Session() as s:
        s["path"] = path = s.node("process.execPath").unwrap()
        assert path.startswith("/proc/")
        assert s.exec(source).value == 0
        assert s.command([path, "-p", "6 * 7"]).stdout == "42\n"


def test_files_are_watched_by_looking_at_them(s: Session) -> None:
    """There is no inotify."""
    watch = "try { require('fs').watch('.'); 'watched' } catch (error) { error.code }"
    assert s.node(watch).value == "ENOSYS"
    look = (
        "const fs = require('fs'); fs.writeFileSync('seen', ''); "
        "const writes = setInterval(() => fs.appendFileSync('seen', 'more'), 50); "
        "await new Promise((go) => { fs.watchFile('seen', {interval: 20}, () => "
        "{ fs.unwatchFile('seen'); clearInterval(writes); go('changed') }) })"
    )
    assert s.node(look).value == "changed"


def test_it_can_be_awaited_and_cancelled() -> None:
    async def main() -> None:
        async with AsyncSession() as s:
            await s.node("const n = 1")
            assert (await s.node("n + 1")).value == 2
            task = asyncio.create_task(s.node("while (true) {}"))
            await asyncio.sleep(0.3)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await s.node("typeof n")).value == "undefined"

    asyncio.run(main())


def test_a_tool_may_run_javascript_within_a_call() -> None:
    def double(n: int) -> int:
        value: int = s.node(f"{n} * 2").unwrap()
        return value

    with Session(tools=[double]) as s:
        s.node("1")
        assert s.exec("double(21)").value == 42


def test_node_is_lent_anew_after_each_of_many_restarts(older_workers: None) -> None:
    with Session(memory_mb=128) as other, Session(memory_mb=128) as s:
        other.node("1")  # which has the same memory all the time
        for i in range(8):
            assert s.node("1 + 1").value == 2, i
            s.reset()


def test_its_own_limit_holds_whatever_code_has_made_of_the_interpreter() -> None:
    """Also before the source is sent, when the session is asked for its Node."""
    with Session(timeout_sec=None) as s:
        s.exec("import os, time\nos.access = lambda *_: time.sleep(10_000)").unwrap()
        outcome = s.node("1 + 1", timeout_sec=0.5)
        assert outcome.limit == "time" or outcome.value == 2, outcome
    with Session() as other:
        other.exec("import os\ndef no(*_): raise TypeError('mine')\nos.access = no").unwrap()
        assert other.node("1 + 1").value == 2
