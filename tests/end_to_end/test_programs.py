# SPDX-License-Identifier: Apache-2.0
"""Programs and functions as text, against the real thing."""

from __future__ import annotations

import asyncio
import gzip
import io
import zipfile
from typing import Any

import pytest

import hutch


def test_a_program_prints_and_returns() -> None:
    outcome = hutch.run("print('hello')")
    assert (outcome.status, outcome.stdout, outcome.exit_code) == ("returned", "hello\n", 0)
    assert outcome.ok and outcome.unwrap() is None


def test_stdin_args_and_files_are_inside() -> None:
    source = "import sys; print(sys.stdin.read(), sys.argv[1:], open('d/a.txt').read())"
    outcome = hutch.run(source, stdin="in", args=["x", "y"], files={"d/a.txt": b"content"})
    assert outcome.stdout == "in ['x', 'y'] content\n"


def test_an_exit_code_is_the_programs_own() -> None:
    outcome = hutch.run("import sys; sys.exit(3)")
    assert outcome.exit_code == 3 and not outcome.ok
    with pytest.raises(hutch.SandboxDied):
        outcome.unwrap()
    assert hutch.run("import sys; sys.exit(0)").ok


def test_exit_and_quit_are_there_as_in_any_program() -> None:
    assert hutch.run("exit(5)").exit_code == 5
    assert hutch.run("print(1); quit()").ok

    @hutch.sandbox
    def leave() -> None:
        exit(3)

    assert leave.run().error.type == "SystemExit"  # type: ignore[union-attr]


def test_an_error_is_data_with_type_line_and_its_own_frames() -> None:
    outcome = hutch.run("def f():\n    return 1 / 0\n\nf()\n")
    error = outcome.error
    assert outcome.status == "raised" and error is not None
    assert (error.type, error.line) == ("ZeroDivisionError", 2)
    assert "return 1 / 0" in error.traceback and "program.py" in error.traceback
    with pytest.raises(ZeroDivisionError):
        outcome.unwrap()


def test_a_syntax_error_is_the_programs_and_never_compiled_here() -> None:
    outcome = hutch.run("x = 1\ndef f(:\n")
    assert outcome.error is not None
    assert (outcome.error.type, outcome.error.line) == ("SyntaxError", 2)


def test_main_is_main_and_has_no_trace_of_hutch() -> None:
    outcome = hutch.run("print(__name__); print(sorted(k for k in globals() if k[0] != '_'))")
    assert outcome.stdout == "__main__\n[]\n"


def test_a_program_is_run_many_times() -> None:
    program = hutch.Program("print(int(input()) * 2)")
    assert program.run(stdin="4").stdout == "8\n"
    assert [o.stdout for o in program.map(["1", "2", "3"])] == ["2\n", "4\n", "6\n"]
    assert program.submit(stdin="5").result(60).stdout == "10\n"
    assert asyncio.run(program.run_aio(stdin="6")).stdout == "12\n"
    assert program.options(timeout_sec=5).run(stdin="7").stdout == "14\n"


def test_a_function_as_text() -> None:
    solve = hutch.function("def solve(a, b=1):\n    return a + b\n", "solve")
    assert solve(1, b=4) == 5
    assert list(solve.map([1, 2, 3], chunksize=2)) == [2, 3, 4]
    with pytest.raises(NameError, match="solve"):
        hutch.function("x = 1", "solve")()
    asynchronous = hutch.function("async def f(x):\n    return x\n", "f")
    assert asynchronous(3) == 3


def test_what_is_wrong_with_the_request_is_said_at_once() -> None:
    with pytest.raises(TypeError, match="str"):
        hutch.run(b"print()")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="language"):
        hutch.run("1", language="cobol")
    for name in ("/etc/passwd", "../x", "a/../../b", "", "a/"):
        with pytest.raises(ValueError, match="files="):
            hutch.run("1", files={name: "x"})
    with pytest.raises(TypeError, match="args"):
        hutch.run("1", args=[3])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="files"):
        hutch.run("1", files=["a"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stdin"):
        hutch.run("1", stdin=3)  # type: ignore[arg-type]


def test_metadata_is_only_a_hint_unless_asked_for() -> None:
    source = "# /// script\n# dependencies = ['no-such-thing']\n# ///\nimport no_such_thing\n"
    outcome = hutch.run(source)
    assert outcome.error is not None and "inline" in outcome.error.hint
    empty = "# /// script\n# dependencies = []\n# ///\nprint(1)\n"
    assert hutch.run(empty, dependencies="inline").stdout == "1\n"


def test_the_doctor_proves_it() -> None:
    report = hutch.doctor()
    names = {check["name"]: check for check in report["checks"]}
    assert report["ok"], [check for check in report["checks"] if not check["ok"]]
    assert "ms" in names["a call"]["detail"] and "MiB" in names["the memory limit"]["detail"]


def test_what_logging_holds_back_is_written_at_the_end() -> None:
    source = """
import atexit, logging, logging.handlers, sys
to_stdout = logging.StreamHandler(sys.stdout)
held = logging.handlers.MemoryHandler(100, target=to_stdout, flushOnClose=True)
logging.getLogger().addHandler(held)
atexit.register(print, "an exit function")
logging.warning("held back")
print("the last line")
"""
    outcome = hutch.run(source)
    assert outcome.stdout.splitlines() == ["the last line", "an exit function", "held back"]


def test_a_program_that_raises_ends_as_the_interpreter_does() -> None:
    source = """
import atexit, sys, threading, time
atexit.register(print, "an exit function")
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread's last line"))).start()
def hook(kind, error, trace):
    print("a hook:", kind.__name__, error, trace.tb_lineno)
sys.excepthook = hook
raise ValueError(7)
"""
    for _ in range(3):  # later ones are compiled ahead, and served otherwise
        outcome = hutch.run(source)
        assert outcome.status == "raised" and outcome.error is not None
        assert (outcome.error.type, outcome.error.line) == ("ValueError", 8)
        lines = ["a hook: ValueError 7 8", "a thread's last line", "an exit function"]
        assert outcome.stdout.splitlines() == lines


def test_a_failing_hook_or_fork_leaves_the_error_of_the_program() -> None:
    source = """
import atexit, os, sys
atexit.register(print, "exit", flush=True)
sys.excepthook = lambda *_: 1 / 0
if pid := os.fork():
    os.waitpid(pid, 0)
raise ValueError(7)
"""
    for _ in range(3):
        outcome = hutch.run(source)
        assert outcome.error is not None and outcome.error.type == "ValueError"
        assert outcome.stdout == "exit\nexit\n" and "ZeroDivisionError" in outcome.stderr


def test_standard_input_is_the_interpreters_own_and_one_file() -> None:
    source = """
import os, sys
assert sys.stdin is sys.__stdin__ and sys.stdin.fileno() == 0
first, rest = input(), sys.stdin.read()
sys.stdin.seek(0)
print([first, rest, sys.stdin.read(), os.pread(0, 100, 0)])
"""
    outcome = hutch.run(source, stdin="é\nb\nc\n")
    assert outcome.stdout == "['é', 'b\\nc\\n', 'é\\nb\\nc\\n', b'\\xc3\\xa9\\nb\\nc\\n']\n"
    assert hutch.run("import sys; print([sys.stdin.read()])").stdout == "['']\n"


@pytest.mark.parametrize("taken", ["io.StringIO()", "sys.__stdin__", "None"])
def test_standard_input_is_there_whatever_setup_made_of_it(taken: str) -> None:
    def take(text: str = taken) -> None:
        import io  # noqa: F401
        import sys

        if text == "sys.__stdin__":
            sys.stdin.close()
        sys.stdin = eval(text)

    assert hutch.run("print(input())", stdin="given", setup=take).stdout == "given\n"


@pytest.mark.parametrize("end", ["", "raise ValueError", "raise SystemExit(3)"])
@pytest.mark.parametrize("stdin", ["", "given"])  # not served by call.py, and so
def test_what_open_files_hold_back_is_written_at_the_end(end: str, stdin: str) -> None:
    text = """
import gzip, io, os, sys, zipfile
class Out(io.RawIOBase):
    def __init__(self, name): self.name = name
    def writable(self): return True
    def write(self, data):
        os.write(1, f"{self.name} {bytes(data).hex()}\\n".encode())
        return len(data)
text = open("/dev/stdout", "w"); text.write("text 61\\n")
raw = io.BufferedWriter(Out("raw")); raw.write(b"b")
packed = gzip.open(Out("packed"), "wt"); packed.write("c")
archive = zipfile.ZipFile(Out("archive"), "w"); archive.writestr("d", "e")
closed = open("file", "w"); closed.close()
class Holder: pass
holder = Holder()
holder.files = [open("/dev/stdout", "w")]; holder.files[0].write("held 66\\n")
out = sys.stdout
"""
    outcome = hutch.run(text + end, stdin=stdin)
    assert outcome.ok is (end == ""), outcome
    written: dict[str, bytes] = {}
    for line in outcome.stdout.splitlines():
        name, _, data = line.partition(" ")
        written[name] = written.get(name, b"") + bytes.fromhex(data)
    assert (written["text"], written["raw"], written["held"]) == (b"a", b"b", b"f")
    assert gzip.decompress(written["packed"]) == b"c"
    assert zipfile.ZipFile(io.BytesIO(written["archive"])).read("d") == b"e"


OBJECTS = """
import atexit, sys
atexit.register(print, "an exit function")
class Held:
    def __init__(self, name): self.name = name
    def __del__(self): print("end of", shown(self.name))
def shown(name): return name.upper()
first, box = Held("first"), [Held("second")]
gone = Held("third"); del gone
class Failing:
    def __del__(self): sys.exit(3)
failing = Failing()
def lines():
    try: yield
    finally: print("end of lines")
suspended = lines(); next(suspended)
"""


@pytest.mark.parametrize("end", ["", "raise ValueError", "raise SystemExit(3)"])
@pytest.mark.parametrize("stdin", ["", "given"])
def test_objects_that_a_program_leaves_are_finalized(end: str, stdin: str) -> None:
    outcome = hutch.run(OBJECTS + end, stdin=stdin)
    lines = ["end of THIRD", "an exit function", "end of FIRST", "end of SECOND"]
    lines.append("end of lines")
    assert outcome.stdout.splitlines() == lines
    assert outcome.ok is (end == "") and "Exception ignored in: <function Failing" in outcome.stderr


def test_a_program_of_a_shared_cell_ends_as_often_as_it_runs() -> None:
    source = """
import threading, time
from concurrent.futures import ThreadPoolExecutor
ThreadPoolExecutor(1).submit(lambda: (time.sleep(0.05), print("a pool's last line")))
threading.Thread(target=lambda: (time.sleep(0.1), print("a thread's last line"))).start()
"""
    program = hutch.Program(source, isolation="shared", labels={"test": "ends"})
    lines = ["a pool's last line", "a thread's last line"]
    assert [sorted(program.run().stdout.splitlines()) for _ in range(4)] == [lines] * 4


# Each of what a program leaves or does at its end, which no plain interpreter fails for.
UNWILLING = {
    "classes without a hash": """
class Meta(type):
    def __eq__(self, other): return self is other
class Kind(metaclass=Meta): pass
""",
    "classes without attributes": """
class Meta(type):
    def __getattribute__(self, name): raise RuntimeError(name)
    @property
    def __module__(self): raise RuntimeError("no module")
class Kind(metaclass=Meta): pass
""",
    "modules that do not compare": """
class Name:
    def __eq__(self, other): raise RuntimeError
class Kind: pass
Kind.__module__ = Name()
""",
    "handlers that fail": """
import logging
class Kind(logging.Handler):
    def flush(self): raise RuntimeError
""",
    "pools that fail": """
import threading
def Kind(): raise RuntimeError
threading._register_atexit(Kind)
""",
    "streams that fail": """
import io, sys
class Kind(io.StringIO):
    def flush(self): sys.exit(3)
""",
}


@pytest.mark.parametrize("stdin", ["", "given"])
@pytest.mark.parametrize("what", UNWILLING)
def test_what_a_program_leaves_does_not_change_what_became_of_it(what: str, stdin: str) -> None:
    made = "held = [Kind]\n" if what.startswith("pools") else "held = [Kind, Kind()]\n"
    source = UNWILLING[what] + made + 'last = open("/dev/stdout", "w"); last.write("written")\n'
    outcome = hutch.run(source, stdin=stdin)
    assert outcome.ok and outcome.stdout == "written", str(outcome)
    outcome = hutch.run(source + "raise KeyError(1)", stdin=stdin)
    assert outcome.error is not None and outcome.error.type == "KeyError"
    assert outcome.stdout == "written"
    assert hutch.run(source + "raise SystemExit(3)", stdin=stdin).exit_code == 3


def test_an_object_is_finalized_once_though_another_lets_go_of_it() -> None:
    source = """
class Inner:
    def __del__(self): print("inner")
class Outer:
    def __init__(self): self.inner = Inner()
    def __del__(self): self.inner = None; print("outer")
outer = Outer()
def fall(depth):
    try:
        fall(depth - 1) if depth else 1 / 0
    except Exception as error:  # what is reported of it has the collector run
        raise ValueError from error
fall(60)
"""
    assert sorted(hutch.run(source).stdout.splitlines()) == ["inner", "outer"]


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [
        ("0.0", 1),
        ("type('Zero', (), {'__eq__': lambda *_: True})()", 1),
        ("type('Wrong', (), {'__str__': lambda _: 1 / 0})()", 1),
        ("1 << 70", 255),
        ("-1", 255),
        ("''", 1),
    ],
)
def test_an_exit_code_fails_as_in_the_interpreter(code: str, exit_code: int) -> None:
    for _ in range(3):
        outcome = hutch.run(f"import sys; sys.exit({code})")
        assert (outcome.status, outcome.exit_code) == ("died", exit_code), str(outcome)
    assert hutch.run("import sys; sys.exit(False)").ok


def test_a_program_of_a_shared_cell_finds_its_own_file() -> None:
    programs = [
        hutch.Program(f"print({name!r}, open(__file__).read()[:10])", isolation="shared")
        for name in ("one", "two")
    ]
    for _ in range(2):
        told = [program.run().stdout for program in programs]
        assert told == ["one print('one\n", "two print('two\n"]
    given = programs[0].run(files={"program.py": "the caller's"}).stdout
    assert given == "one the caller\n"


# ---- bash


def test_a_program_for_bash_has_input_arguments_files_and_an_exit_code() -> None:
    outcome = hutch.run(
        "read l; echo \"$0|$1|$l|$(cat f)\"; yes | head -1\nls; echo inspect argv >&2; exit 3",
        language="bash", stdin="in\n", args=["a b"], files={"f": "content"},
    )  # fmt: skip
    assert outcome.stdout == "program.sh|a b|in|content\ny\nf\n"
    assert (outcome.stderr, outcome.exit_code) == ("inspect argv\n", 3)
    fine = hutch.run("echo fine", language="bash")
    assert (fine.status, fine.exit_code, fine.stdout) == ("returned", 0, "fine\n")
    assert hutch.run("kill -9 $$", language="bash").exit_code == 137
    assert hutch.run("nosuchprogram", language="bash").exit_code == 127
    late = hutch.run("echo begins; sleep 100", language="bash", timeout_sec=1)
    assert late.limit == "time" and late.stdout == "begins\n"


def test_a_program_for_bash_is_run_many_times() -> None:
    program = hutch.Program("tr a-z A-Z", language="bash")
    found = [outcome.stdout for outcome in program.options(timeout_sec=20).map(["a", "b"])]
    assert found == ["A", "B"]


@pytest.mark.parametrize("source", ["a\0b", "x" * 200_000])
def test_text_that_bash_cannot_be_given_is_refused(source: str) -> None:
    with pytest.raises(ValueError, match="the program has"):
        hutch.run(source, language="bash")


INTERRUPTS_ITSELF = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    signal.pause()
except KeyboardInterrupt:
    print("raised")
signal.signal(signal.SIGINT, lambda *_: print("handled"))
signal.raise_signal(signal.SIGINT)
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.raise_signal(signal.SIGINT)
"""


@pytest.mark.parametrize("isolation", ["cell", "shared", "container"])
def test_a_program_that_interrupts_itself_hears_it_as_everywhere(isolation: Any) -> None:
    outcome = hutch.run(INTERRUPTS_ITSELF, isolation=isolation)
    assert outcome.stdout == "raised\nhandled\n"
    assert outcome.error is not None and outcome.error.type == "KeyboardInterrupt"
