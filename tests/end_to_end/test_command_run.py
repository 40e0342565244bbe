# SPDX-License-Identifier: Apache-2.0
"""`hutch run`, a program among programs, and what `--json` prints."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

WORK = "/work"  # the directory of a cell


def command(
    *arguments: str, stdin: str = "", cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hutch", *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        cwd=cwd,
    )


def test_the_command_runs_a_script(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys\nprint(sys.argv[1:], sys.stdin.read())\nsys.exit(4)\n")
    done = command("run", str(script), "--", "--flag", "x", stdin="in")
    assert (done.stdout, done.returncode) == ("['--flag', 'x'] in\n", 4)


def test_what_stands_after_the_script_is_the_scripts(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, os\nprint(sys.argv, os.environ['A'])\n")
    words = ["-v", "--env", "X", "--memory", "--help", "--", "--json"]
    done = command("run", "--env", "A=b", "--timeout", "9", str(script), *words)
    assert (done.stdout, done.returncode) == (f"{['script.py', *words]} b\n", 0), done.stderr
    assert command("run", "-", "--json", stdin="import sys; print(sys.argv[1:])").stdout == (
        "['--json']\n"
    )


def test_code_runs_as_of_python_c() -> None:
    source = (
        "import os, sys; print(sys.argv, '__file__' in globals(), os.listdir(), input()); 1 / 0"
    )
    done = command("run", "-c", source, "-v", "--env", "X", stdin="in")
    assert done.stdout == "['-c', '-v', '--env', 'X'] False [] in\n"
    assert done.returncode == 1 and 'File "<string>", line 1, in <module>' in done.stderr


def test_a_program_from_standard_input_has_no_file() -> None:
    source = "import sys; print(sys.argv, '__file__' in globals(), __name__)\n1 / 0"
    done = command("run", "-", "a", "-v", stdin=source)
    assert done.stdout == "['-', 'a', '-v'] False __main__\n" and done.returncode == 1
    assert 'File "<stdin>", line 2, in <module>' in done.stderr


def test_a_module_runs_as_of_python_m(tmp_path: Path) -> None:
    module = tmp_path / "mine.py"
    module.write_text("import sys\nprint(__name__, __spec__.name, sys.argv)\n1 / 0\n")
    done = command("run", "--file", str(module), "-m", "mine", "-v")
    assert done.stdout == f"__main__ mine ['{WORK}/mine.py', '-v']\n" and done.returncode == 1
    assert 'mine.py", line 3' in done.stderr and "_run_module_as_main(" not in done.stderr
    assert command("run", "-m", "json.tool", "--compact", stdin="[1, 2]").stdout == "[1,2]\n"
    missing = command("run", "-m", "no_such_module")
    assert missing.returncode == 1 and "No module named no_such_module" in missing.stderr
    assert 'hint: add --with "no_such_module"' in missing.stderr
    below = command("run", "-m", "yaml.no_such_module")
    assert below.returncode == 1 and 'hint: add --with "pyyaml"' in below.stderr


def test_files_that_it_leaves_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("untouched")
    (tmp_path / "link.csv").symlink_to("there")
    source = (
        "import os, sys; os.makedirs('d/e')\n"
        "for name in ('a.csv', 'd/e/b.csv', 'link.csv', 'no.txt'): open(name, 'w').write(name)\n"
        "print('printed'); sys.exit(3)"
    )
    done = command("run", "--fetch", "*.csv", "--fetch", "d/**", "-c", source, cwd=tmp_path)
    assert (done.stdout, done.returncode) == ("printed\n", 3)
    found = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert found == {"a.csv", "d/e/b.csv", "link.csv", "there"}
    assert (tmp_path / "d/e/b.csv").read_text() == "d/e/b.csv"
    assert (tmp_path / "there").read_text() == "untouched"
    assert not (tmp_path / "link.csv").is_symlink()
    refused = command("run", "--fetch", "../x", "-c", "1", cwd=tmp_path)
    assert refused.returncode == 2 and "fetch=" in refused.stderr


def test_files_that_are_fetched_go_through_no_link(tmp_path: Path) -> None:
    """The program chooses their names, and may guess those of links."""
    here, outside = tmp_path / "here", tmp_path / "outside"
    for directory in (here / "real", outside):
        directory.mkdir(parents=True)
    (here / "link").symlink_to(outside)
    source = "import os, sys; os.mkdir(sys.argv[1]); open(sys.argv[1] + '/a', 'w').write('x')"
    for name, code in (("real", 0), ("link", 1)):
        done = command("run", "--fetch", "**", "-c", source, name, cwd=here)
        assert done.returncode == code, done
    assert "link/a" in done.stderr and "link here" in done.stderr
    assert (here / "real/a").read_text() == "x" and not list(outside.iterdir())


def test_a_policy_of_a_file_holds_as_far_as_no_option_says_otherwise(tmp_path: Path) -> None:
    policy = tmp_path / "policy.toml"
    policy.write_text('timeout_sec = 2.5\n[env]\nA = "b"\n')
    script = "import os; print(os.environ['A'], flush=True)\nwhile True: pass"
    done = command("run", "--policy", str(policy), "-c", script)
    assert (done.stdout, done.returncode) == ("b\n", 124)
    script = "import os; print(os.environ['A'])"
    done = command("run", "--policy", str(policy), "--timeout", "9", "--env", "A=c", "-c", script)
    assert (done.stdout, done.returncode) == ("c\n", 0)
    wrong = command("run", "--policy", "strct", "-c", "1")
    assert wrong.returncode == 2 and "did you mean 'strict'" in wrong.stderr


BUFFERED = {name: x for name, x in os.environ.items() if name != "PYTHONUNBUFFERED"}
BYTES = "import sys\nfor f in sys.stdout, sys.stderr: f.buffer.write(bytes(range(256)) + b'\\xe2')"


def test_bytes_pass_unchanged_into_pipes_and_files(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "hutch", "run", "-c", BYTES]
    with open(tmp_path / "out", "w+b") as out:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, env=BUFFERED
        )
        out.seek(0)
        assert done.returncode == 0
        assert out.read() == done.stderr == bytes(range(256)) + b"\xe2"


def test_on_a_terminal_what_is_printed_is_escaped() -> None:
    terminal, end = pty.openpty()
    words = [sys.executable, "-m", "hutch", "run", "-c", r"print('a\x1b]0;b\a\u202e')"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=end, stderr=subprocess.PIPE)
    os.close(end)
    with open(terminal, "rb") as file:
        assert (file.read1(), done.returncode) == (b"a\\x1b]0;b\\x07\\u202e\r\n", 0), done.stderr


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_it_ends_when_nobody_reads(stream: str) -> None:
    script = f"import sys\nwhile True: print(1, file=sys.{stream})"
    words = [sys.executable, "-m", "hutch", "run", "-c", script]
    ends = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, stdin=subprocess.DEVNULL, env=BUFFERED, **ends) as command:
        end = getattr(command, stream)
        assert end.read(4) == b"1\n1\n"
        end.close()
        assert command.wait() == 141  # at its time limit it would be 124
        other = command.stderr if stream == "stdout" else command.stdout
        assert other is not None and other.read() == b""


def test_other_commands_say_nothing_of_a_reader_that_is_gone() -> None:
    reader, end = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "hutch", "ps"]
    done = subprocess.run(words, stdout=end, stderr=subprocess.PIPE, env=BUFFERED)
    os.close(end)
    assert (done.returncode, done.stderr) == (1, b"")


def test_json_that_nobody_reads_is_output_that_nobody_reads() -> None:
    reader, end = os.pipe()
    os.close(reader)
    words = [sys.executable, "-m", "hutch", "run", "--json", "-c", "1"]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=end, stderr=subprocess.PIPE)
    os.close(end)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.parametrize("option", ["--json", "--memory=256"])
@pytest.mark.parametrize("unbuffered", [{}, {"PYTHONUNBUFFERED": "1"}], ids=["buffer", "none"])
def test_output_that_cannot_be_written_is_said(unbuffered: dict[str, str], option: str) -> None:
    words = [sys.executable, "-m", "hutch", "run", option, "-c", "print(1)"]
    env = BUFFERED | unbuffered
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE, env=env
        )
    assert (done.returncode, done.stderr) == (
        1, b"hutch: the output cannot be written: No space left on device\n",
    )  # fmt: skip


def test_the_command_reads_a_script_as_python_does(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_bytes(b"\xef\xbb\xbfprint('marked')\n")
    assert command("run", str(script)).stdout == "marked\n"
    script.write_bytes(b"# -*- coding: latin-1 -*-\nprint('\xe9' == chr(233))\n")
    assert command("run", str(script)).stdout == "True\n"


@pytest.mark.parametrize("encoding", ["zlib", "rot13", "idna", "nonsense"])
def test_an_encoding_that_is_none_of_source_is_one_line(tmp_path: Path, encoding: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"# coding: {encoding}\nprint(1)\n")
    done = command("run", str(script))
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    assert done.stderr.startswith("hutch: the script is not Python source: ")


def test_the_command_explains_an_error_and_a_limit(tmp_path: Path) -> None:
    done = command("run", "-", stdin="1 / 0")
    assert done.returncode == 1 and "ZeroDivisionError" in done.stderr
    late = command("run", "--timeout", "0.5", "-", stdin="while True: pass")
    assert late.returncode == 124 and "--timeout 1\n" in late.stderr
    missing = command("run", str(tmp_path / "none.py"))
    assert missing.returncode == 2 and "none.py" in missing.stderr


def test_json_is_all_there_is_on_stdout() -> None:
    told = json.loads(command("run", "--json", "-", stdin="print(5)").stdout)
    assert told["status"] == "returned" and told["stdout"] == "5\n"
    assert json.loads(command("ps", "--json").stdout)["running"] is True
    assert isinstance(json.loads(command("env", "--json").stdout), list)
    assert json.loads(command("--json", "ps").stdout)["running"] is True
    wrong = command("run", "--json", "--timeout", "-3", "-", stdin="1")
    assert wrong.returncode == 2 and "timeout_sec" in json.loads(wrong.stdout)["message"]
    refused = command("run", "--json", "--with", "-r x", "-", stdin="1")
    assert refused.returncode != 0 and refused.stdout.count("\n") <= 1
