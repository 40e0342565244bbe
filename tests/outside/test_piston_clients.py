# SPDX-License-Identifier: Apache-2.0
"""Clients of Piston from the package index. Each runs a program with its input, meets a limit of
time, and asks for what is not there.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
pytestmark = pytest.mark.compat
VERSION = ".".join(map(str, sys.version_info[:3]))


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving() as (url, _):
        yield url


ULTRA_PISTON = """
import asyncio, json, sys
from ultra_piston import File, PistonClient
from ultra_piston.errors import BadRequestError, NotFoundError
client = PistonClient(base_url=f"{sys.argv[1]}/api/v2", rate_limit=0)
[runtime] = client.get_runtimes()
code = "import sys; print(input(), sys.argv[1]); print('e', file=sys.stderr); sys.exit(4)"
program = File(name="x.py", content=code)
call = dict(language="python", version=runtime.version, file=program, stdin="in", args=["a"])
found = {"runtimes": [runtime.language, runtime.version]}
ways = {"": client.post_execute(**call), " aio": asyncio.run(client.post_execute_async(**call))}
for way, ran in ways.items():
    found["run" + way] = [ran.run.stdout, ran.run.stderr, ran.run.code, ran.run.signal]
encoded = File(content="cHJpbnQoNCk=", encoding="base64")
found["base64"] = client.post_execute("py", "3", encoded).run.output
slow = client.post_execute("python", "*", File(content="while True: pass"), run_timeout=300)
found["slow"] = [slow.run.code, slow.run.signal]
try:
    client.post_execute("go", "*", program)
except BadRequestError:
    found["go"] = "refused"
try:
    client.get_packages()
except NotFoundError:
    found["packages"] = "refused"
print(json.dumps(found))
"""


def test_ultra_piston(url: str, installed: Callable[..., Path], ran: Callable[..., str]) -> None:
    found = json.loads(ran(installed("ultra-piston==1.0.1"), ULTRA_PISTON, url))
    assert found["runtimes"] == ["python", VERSION] and found["base64"] == "4\n"
    assert found["run"] == found["run aio"] == ["in a\n", "e\n", 4, None]
    assert found["slow"] == [None, "SIGKILL"]
    assert found["go"] == found["packages"] == "refused"


AIOPYSTON = """
import asyncio, json, os, sys
import pyston

async def main():
    client = pyston.PystonClient(base_url=f"{sys.argv[1]}/api/v2/")
    found = {"languages": sorted(await client.languages())}
    found["versions"] = [one.version for one in await client.get_runtimes("py3")]
    code = "import other, sys; print(input(), sys.argv[1], other.x)"
    files = [pyston.File(code), pyston.File("x = 7", filename="other.py")]
    output = await client.execute("python", files, stdin="in", args=["a"])
    found["run"] = [str(output), output.success, output.run_stage.code]
    slow = await client.execute("python", [pyston.File("while True: pass")], run_timeout=300)
    found["slow"] = slow.run_stage.signal
    try:
        await client.execute("go", files)
    except pyston.exceptions.ExecutionError as error:
        found["go"] = str(error)
    await client.close_session()
    print(json.dumps(found), flush=True)
    os._exit(0)  # its client closes itself once more, when the loop is gone

asyncio.run(main())
"""


def test_aiopyston(url: str, installed: Callable[..., Path], ran: Callable[..., str]) -> None:
    found = json.loads(ran(installed("aiopyston==1.2.1", "aiohttp==3.14.5"), AIOPYSTON, url))
    assert found["languages"] == ["python"] and found["versions"] == [VERSION]
    assert found["run"] == ["in a 7\n", True, 0] and found["slow"] == "SIGKILL"
    assert found["go"] == "go-* runtime is unknown"


PISTON_RSPY = """
import asyncio, json, os, sys
from piston_rspy import Client, Executor, File

async def main():
    client = Client.with_url(f"{sys.argv[1]}/api/v2")
    [runtime] = await client.fetch_runtimes()
    found = {"runtimes": [runtime.language, runtime.version]}
    files = [File(content="import sys; print(input(), sys.argv[1]); sys.exit(3)")]
    given = Executor(language="python", version="*", files=files, stdin="in", args=["a"])
    answer = await client.execute(given)
    found["run"] = [answer.status, answer.run.stdout, answer.run.code, answer.run.signal]
    files = [File(content="while True: pass")]
    answer = await client.execute(Executor(language="python", files=files, run_timeout=300))
    found["slow"] = [answer.status, answer.run.code, answer.run.signal]
    answer = await client.execute(Executor(language="go", files=files))
    found["go"] = [answer.status, answer.is_ok()]
    print(json.dumps(found), flush=True)
    os._exit(0)  # its threads do not survive the interpreter's end

asyncio.run(main())
"""


def test_piston_rspy(url: str, installed: Callable[..., Path], ran: Callable[..., str]) -> None:
    place = installed("--only-binary", ":all:", "piston-rspy==0.4.3")
    found = json.loads(ran(place, PISTON_RSPY, url))
    assert found["runtimes"] == ["python", VERSION]
    assert found["run"] == [200, "in a\n", 3, None] and found["slow"] == [200, None, "SIGKILL"]
    assert found["go"] == [400, False]
