# SPDX-License-Identifier: Apache-2.0
"""Programs for Node."""

from __future__ import annotations

import asyncio
import time

import pytest

import hutch

WORK = "/work"  # the directory of a cell


def test_a_program_for_node_has_input_arguments_files_and_an_exit_code() -> None:
    source = (
        "const fs = require('fs'), path = require('path');\n"
        "const read = (file) => fs.readFileSync(file, 'utf8').trim();\n"
        "const given = [path.basename(__filename), ...process.argv.slice(2), read(0), read('f')];\n"
        "console.log(given.join('|'));\n"
        "const {execFileSync} = require('child_process');\n"
        "console.error(String(execFileSync(process.execPath, ['-p', '6 * 7'])));\n"
        "process.exit(3)"
    )
    outcome = hutch.run(
        source, language="javascript", stdin="in\n", args=["a b"], files={"f": "content"}
    )
    assert outcome.stdout == "program.js|a b|in|content\n"
    assert (outcome.status, outcome.stderr.strip(), outcome.exit_code) == ("died", "42", 3)
    fine = hutch.run("console.log('fine')", language="javascript")
    assert (fine.status, fine.exit_code, fine.stdout, fine.stderr) == ("returned", 0, "fine\n", "")
    thrown = hutch.run("\nnull.x", language="javascript")
    assert thrown.exit_code == 1 and "program.js:2" in thrown.stderr
    assert hutch.run("process.kill(process.pid, 9)", language="javascript").exit_code == 137
    late = hutch.run("console.log('begins'); while (1);", language="javascript", timeout_sec=2)
    assert late.limit == "time" and late.stdout == "begins\n"


def test_a_program_for_node_may_be_a_module() -> None:
    source = "import {sep} from 'node:path'; console.log(await Promise.resolve(sep))"
    for keywords in ({}, {"filename": "main.mjs"}, {"isolation": "container"}):
        outcome = hutch.run(source, language="javascript", **keywords)  # type: ignore[arg-type]
        assert (outcome.stdout, outcome.stderr) == ("/\n", "")


def test_a_program_for_node_is_run_many_times() -> None:
    source = "process.stdin.on('data', (data) => console.log(String(data).toUpperCase()))"
    program = hutch.Program(source, language="javascript")
    found = [outcome.stdout for outcome in program.options(timeout_sec=20).map(["a", "b"])]
    assert found == ["A\n", "B\n"]
    assert program.submit(stdin="c").result().stdout == "C\n"
    assert asyncio.run(program.run_aio(stdin="d")).stdout == "D\n"


def test_programs_for_which_node_has_started_ahead_are_as_the_first() -> None:
    source = (
        "const read = (file) => require('fs').readFileSync(file, 'utf8');\n"
        "const found = [read(0), ...process.argv.slice(2), require('fs').existsSync('f')];\n"
        "console.log(found.join('|')); console.error(process.cwd()); process.exit(found.length)"
    )
    program = hutch.Program(source, language="javascript")
    for i in range(4):
        time.sleep(0.2)  # so that one is ready
        given = program.run(stdin=f"in {i}", args=[f"é{i}"], files={"f": "x"} if i % 2 else None)
        assert given.stdout == f"in {i}|é{i}|{'true' if i % 2 else 'false'}\n"
        assert (given.stderr, given.exit_code) == (f"{WORK}\n", 3)
        bare = program.run()
        assert (bare.stdout, bare.exit_code) == ("|false\n", 2)
        other = hutch.run(f"console.log({i}, __filename)", language="javascript")
        assert other.stdout == f"{i} {WORK}/program.js\n"


def test_limits_hold_for_a_node_that_has_started_ahead() -> None:
    loop = hutch.Program("while (true);", language="javascript", cpu_sec=1, timeout_sec=20)
    fill = hutch.Program(
        "const all = []; while (true) all.push(Buffer.alloc(1 << 20, 1))",
        language="javascript",
        memory_mb=256,
    )
    for _ in range(2):
        time.sleep(0.2)
        assert loop.run().limit == "cpu_time"
        assert fill.run().limit == "memory"


def test_node_starts_before_the_call_and_knows_nothing_of_it() -> None:
    source = "console.log(Date.now() / 1000 - process.uptime(), fs.readdirSync('.').join())"
    program = hutch.Program(
        "const fs = require('fs');" + source, language="javascript", filename="a/only.js"
    )
    for _ in range(50):
        begun = time.time()
        started, seen = program.run().stdout.split()
        assert seen == "a"
        assert hutch.run("console.log(1)", language="javascript", filename="b.js").stdout == "1\n"
        if float(started) < begun:
            return
        time.sleep(0.1)
    pytest.fail("Node always started with the call")


def test_a_shared_cell_runs_one_program_after_another() -> None:
    program = hutch.Program(
        "console.log(require('fs').readFileSync(0) + '')",
        language="javascript",
        isolation="shared",
    )
    assert [program.run(stdin=x).stdout for x in "abc"] == ["a\n", "b\n", "c\n"]


def test_a_program_runs_where_the_compiler_does_not_fit() -> None:
    small = hutch.Program("console.log(1)", language="javascript", memory_mb=64, pids=12)
    assert [small.run().stdout for _ in range(3)] == ["1\n"] * 3
