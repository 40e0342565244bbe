# SPDX-License-Identifier: Apache-2.0
"""SandboxFusion's own client and verl's, against `hutch serve`."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
Ran = Callable[..., str]
pytestmark = pytest.mark.compat


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving() as (url, _):
        yield url


FUSION = """
import asyncio, base64, json, sys
import sandbox_fusion as sf
sf.set_endpoint(sys.argv[1])
summary = sf.SummaryMapping(Success="S", Failed="F", RunTimeout="T")
found = {}
for name, code in {"good": "print(input())", "bad": "1 / 0", "slow": "while True: pass"}.items():
    request = sf.RunCodeRequest(code=code, language="python", stdin="x", run_timeout=2)
    both = {"": sf.run_code(request), " aio": asyncio.run(sf.run_code_async(request))}
    for way, result in both.items():
        found[name + way] = [result.status, sf.summary_run_code_result(result, summary)]
files = {"in": base64.b64encode(b"ab").decode()}
request = sf.RunCodeRequest(
    code="open('out', 'w').write(open('in').read() * 2)", language="python", files=files,
    fetch_files=["out"],
)
found["files"] = base64.b64decode(sf.run_code(request).files["out"]).decode()
result = sf.run_jupyter(sf.RunJupyterRequest(cells=["x = 20", "print(x + 1)", "x * 2"]))
found["jupyter"] = [result.status, result.cells[1].stdout, result.cells[2].display]
many = [sf.RunCodeRequest(code=f"print({n})", language="python") for n in range(32)]
said = sf.run_concurrent(sf.run_code, args=[[one] for one in many], concurrency=16)
found["many"] = [int(one.run_result.stdout) for one in said]
try:
    sf.run_code(sf.RunCodeRequest(code="x", language="cpp"), max_attempts=1)
except Exception as error:
    found["cpp"] = str(error)
print(json.dumps(found))
"""


def test_the_client_of_sandbox_fusion(url: str, installed: Callable[..., Path], ran: Ran) -> None:
    found = json.loads(ran(installed("sandbox-fusion==0.3.7"), FUSION, url))
    for way in ("", " aio"):
        assert found[f"good{way}"] == ["Success", "S"]
        assert found[f"bad{way}"] == ["Failed", "F"]
        assert found[f"slow{way}"] == ["Failed", "T"]
    assert found["files"] == "abab" and found["many"] == list(range(32))
    assert found["jupyter"] == ["Success", "21\n", [{"text/plain": "40"}]]
    assert "language 'cpp' is not supported" in found["cpp"]


# Its package needs torch; what speaks to the server does not. Its tests are not in its wheel.
VERL = """
import json, sys, types
for name in ("verl", "verl.utils", "verl.utils.reward_score"):
    module = types.ModuleType(name)
    module.__path__ = [f"{sys.argv[2]}/{name.replace('.', '/')}"]
    sys.modules[name] = module
from verl.utils.reward_score.sandbox_fusion.utils import check_correctness
cases = {"inputs": ["1\\n2", "3\\n4", "5\\n6"], "outputs": ["3", "7", "0"]}
call = {"fn_name": "add", "inputs": ["1\\n2", "3\\n4"], "outputs": ["3", "7"]}
programs = {
    "stdin": (cases, "print(int(input()) + int(input()))"),
    "raises": (cases, "1 / 0"),
    "slow": (cases, "while True: pass"),
    "function": (call, "def add(a, b):\\n    return a + b"),
    "syntax": (cases, "print("),
}
found = {}
for name, (given, code) in programs.items():
    results, details = check_correctness(sys.argv[1] + "/run_code", given, code, timeout=3)
    found[name] = [results, [one["status"] for one in details]]
print(json.dumps(found))
"""


def test_the_client_of_verl(url: str, installed: Callable[..., Path], ran: Ran) -> None:
    place = installed("--no-deps", "verl==0.9.1")
    also = installed("requests>=2")
    found = json.loads(ran(also, VERL, url, str(place)))
    assert found["stdin"][0] == [True, True, False]
    assert found["raises"][0] == [-2] * 3 and found["slow"][0] == [-3] * 3
    assert found["function"][0] == [True, True]
    assert found["syntax"][0] == [-2] * 3
