# SPDX-License-Identifier: Apache-2.0
"""open-r1's clients: those of its routers for E2B and Morph, its providers of rewards on them, and
its client of Piston.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

Serving = Callable[..., AbstractContextManager[tuple[str, "subprocess.Popen[str]"]]]
pytestmark = pytest.mark.compat

OPENR1 = ("huggingface/open-r1", "1416fa0cf21595d2083b399a2a0bbddd7f6e9563")
CLIENTS = {
    "src/open_r1/utils/code_providers.py":
        "9bbdd96d20849d69863b3de7b52cc8daa01894c2126dca9775dc878b6c112e36",
    "src/open_r1/utils/routed_morph.py":
        "53018d495da212c3c1c11ca659050f46274319560b1e424eb24e36d4a8c7e324",
    "src/open_r1/utils/routed_sandbox.py":
        "ed7f6351497b22cc2ba41cbee18b837f4dc12acdd931924d0404f6850fa88a9f",
    "src/open_r1/utils/competitive_programming/piston_client.py":
        "a23007225268674fc7446540fd09d0537ccf399e5bd3ec125acaf742f2884738",
    "tests/slow/test_code_reward.py":
        "c4437b020998730d92f61e312e1b9e02bad356e036db58426d1ce6a8ece4f2ae",
}  # fmt: skip


@pytest.fixture(scope="module")
def url(serving: Serving) -> Iterator[str]:
    with serving() as (url, _):
        yield url


@pytest.fixture(scope="module")
def openr1(fetched: Callable[..., Path]) -> Path:
    return fetched(*OPENR1, CLIENTS)


@pytest.fixture(scope="module")
def packages(installed: Callable[..., Path]) -> Path:
    return installed("e2b-code-interpreter==2.11.5", "requests>=2", "aiohttp==3.14.5")


def test_its_own_tests_of_its_routers(
    url: str, openr1: Path, packages: Path, suite: Callable[..., set[str]]
) -> None:
    places = [openr1 / "src", packages]
    tests = str(openr1 / "tests" / "slow" / "test_code_reward.py")
    assert len(suite("openr1", "-k", "run_code", tests, places=places, OPENR1_URL=url)) == 4


REWARDS = """
import json, sys, openr1_plugin
from open_r1.utils.code_providers import get_provider
scripts = ["print('said'); 0.5", "1 / 0", "while True: pass", "import os; os._exit(1)", "0.25"]
found = {}
for kind in ("e2b", "morph"):
    provider = get_provider(kind, **{f"{kind}_router_url": sys.argv[1].removeprefix("http://")})
    found[kind] = provider.execute_scripts(scripts, ["python"] * len(scripts))
print("\\n" + json.dumps(found))
"""


def test_each_script_of_a_batch_has_a_reward_of_its_own(
    serving: Serving, openr1: Path, packages: Path, ran: Callable[..., str]
) -> None:
    places = (Path(__file__).parent, openr1 / "src", packages)
    with serving("--timeout-sec", "5") as (url, _):
        found = json.loads(ran(places, REWARDS, url).splitlines()[-1])
    assert found["e2b"] == [0.5, None, None, None, 0.25]
    assert found["morph"] == [0.5, 0.0, 0.0, 0.0, 0.25]


PISTON = """
import asyncio, json, sys, openr1_plugin
from open_r1.utils.competitive_programming.piston_client import PistonClient

async def main():
    client = PistonClient(f"{sys.argv[1]}/api/v2", max_requests_per_endpoint=4)
    files = [{"name": "main.py", "content": "print(int(input()) + int(open('input.txt').read()))"},
             {"name": "input.txt", "content": "30"}]
    many = [client.send_execute({"files": files, "stdin": str(n), "run_timeout": 5000},
                                language="python") for n in range(8)]
    found = [answer["run"]["stdout"] for answer in await asyncio.gather(*many)]
    slow = {"files": [{"content": "while True: pass"}], "run_timeout": 300}
    slow = (await client.send_execute(slow, language="python"))["run"]
    runtimes = await client.get_supported_runtimes()
    # Its package for IOI is not here: what it asks for is refused, and asked for in vain.
    refused = await client.send_execute({"files": files}, max_retries=0)
    print(json.dumps([found, slow["signal"], runtimes, refused]))
    await client.session.close()

asyncio.run(main())
"""


def test_its_client_of_piston(
    url: str, openr1: Path, packages: Path, ran: Callable[..., str]
) -> None:
    places = (Path(__file__).parent, openr1 / "src", packages)
    found, signal, [runtimes], refused = json.loads(ran(places, PISTON, url).splitlines()[-1])
    assert found == [f"{30 + n}\n" for n in range(8)]
    assert signal == "SIGKILL" and refused is None
    assert [one["language"] for one in runtimes] == ["python"]
