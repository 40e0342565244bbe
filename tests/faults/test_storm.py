# SPDX-License-Identifier: Apache-2.0
"""A storm: what is Hutch's own is killed, ended and stopped at random under six callers.

No call is lost, run twice or answered wrongly, and each says honestly whether it may have run. Each
run is witnessed by the kernel: whoever opens the witness waits until the listener here has seen its
process's name, which is the call's. `pytest -m storm` is the long one: `HUTCH_STORM_SEC` (600) and
`HUTCH_STORM_SEED`; what was done and seen is printed, with `-s` at once.
"""

from __future__ import annotations

import collections
import ctypes
import json
import os
import random
import secrets
import select
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import until

import hutch
from hutch import _core

pytestmark = pytest.mark.alone  # what is killed and frozen has deadlines of seconds

CALLER = Path(__file__).with_name("storm_caller.py")
# For a call that waits for a new agent, a new service of Podman's and a new worker, in turn, each
# frozen before it was killed; beyond queue_sec of the callers.
LONGEST = 150.0
KINDS = {"agent": 1, "egress": 1, "service": 1, "conmon": 2, "warden": 4, "zygote": 3, "slot": 4}
WAYS = {"kill": 4, "term": 2, "pause": 2, "freeze": 2}


class Witness:
    """Who opened a file in a sandbox, by the names of their processes. As root."""

    _OPEN_PERM, _ALLOW = 0x10000, 1
    _EVENT = struct.Struct("=IBBHQii")

    def __init__(self, path: Path) -> None:
        path.write_text(secrets.token_hex())
        path.chmod(0o644)
        assert hutch.run("open('/witness').close()", mounts={"/witness": path}).ok
        # What root's calls see is a copy.
        copies = Path(str(_core.paths()["state_dir"])).glob("copies/*/content")
        shown = [copy for copy in copies if copy.read_bytes() == path.read_bytes()]
        path = shown[0] if shown else path
        self.runs: collections.Counter[str] = collections.Counter()
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.fanotify_init(0x4 | 0x1, os.O_RDONLY | os.O_CLOEXEC)
        mask = ctypes.c_uint64(self._OPEN_PERM)
        if self._fd < 0 or libc.fanotify_mark(self._fd, 1, mask, -100, bytes(path)) != 0:
            pytest.skip(f"this kernel lets nobody watch a file: {os.strerror(ctypes.get_errno())}")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stop.is_set():
            if not select.select([self._fd], [], [], 0.2)[0]:
                continue
            events = os.read(self._fd, 65536)
            for at in range(0, len(events), self._EVENT.size):
                *_, opened, pid = self._EVENT.unpack_from(events, at)
                try:
                    name = Path(f"/proc/{pid}/comm").read_text().strip()
                except OSError:
                    name = "?"  # it was killed as it waited
                if name.startswith("w-"):
                    self.runs[name] += 1
                os.write(self._fd, struct.pack("=iI", opened, self._ALLOW))
                os.close(opened)

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        os.close(self._fd)  # who still waits is let through


def processes() -> dict[int, tuple[int, str, list[str], int]]:
    """pid: parent, state, command line, when it began in ticks."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text().rpartition(")")[2].split()
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            found[int(entry.name)] = (int(stat[1]), stat[0], words, int(stat[19]))
    return found


def text(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def victims() -> dict[str, list[int]]:
    """What runs for this instance, by kind. Asks nobody but /proc: Podman may be frozen."""
    paths = _core.paths()
    agent, run_dir = str(paths["agent_container"]), str(paths["run_dir"])
    egress = f"hutch-egress-{paths['instance'] or 'default'}-"
    try:
        workers = set(os.listdir(f"{run_dir}/workers"))
    except OSError:
        workers = set()
    all_of = processes()
    children = collections.defaultdict(list)
    for pid, (parent, *_) in all_of.items():
        children[parent].append(pid)
    found: dict[str, list[int]] = collections.defaultdict(list)
    for pid, (_, state, words, _) in all_of.items():
        if state == "Z":
            continue
        line = " ".join(words)
        if "system service" in line and f"unix://{run_dir}/podman/" in line:
            found["service"].append(pid)
        if "hutch-warden" in words[0] and f"/{Path(run_dir).name}/workers/" in text(
            pid, "mountinfo"
        ):
            found["warden"].append(pid)
            kin = [k for k in children[pid] if "zygote.py" in " ".join(all_of[k][2])]
            kin.sort(key=lambda k: all_of[k][3])  # numbers are given anew: the zygote began first
            found["zygote"] += kin[:1]
            found["slot"] += kin[1:]
        elif "hutch-agent" in words[0] and "--serve" in words:
            if str(paths["agent_socket"]) in text(pid, "environ"):
                found["agent"].append(pid)
        elif words[0].endswith("conmon") and "-n" in words:
            name = words[words.index("-n") + 1]
            if name in workers or name == agent or name.startswith(egress):
                found["conmon"].append(pid)
            if name.startswith(egress):
                found["egress"] += children[pid]
    return found


class Storm:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.done: collections.Counter[str] = collections.Counter()
        self.paused: list[tuple[float, int]] = []  # until when
        self.frozen: dict[int, str] = {}  # for good

    def strike(self) -> None:
        way = self.random.choices([*WAYS], [*WAYS.values()])[0]
        found = {kind: pids for kind, pids in sorted(victims().items()) if pids}
        if not found:
            return
        kind = self.random.choices([*found], [KINDS[kind] for kind in found])[0]
        pid = self.random.choice(found[kind])
        number = {"kill": signal.SIGKILL, "term": signal.SIGTERM}.get(way, signal.SIGSTOP)
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return
        self.done[f"{kind} {way}"] += 1
        if way == "pause":
            self.paused.append((time.monotonic() + self.random.uniform(0.2, 8), pid))
        elif way == "freeze":
            self.frozen[pid] = kind

    def go_on(self, all_of_them: bool = False) -> None:
        now = time.monotonic()
        for end, pid in [*self.paused]:
            if all_of_them or now >= end:
                self.paused.remove((end, pid))
                thaw(pid)

    def blow(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.strike()
            wait = min(end, time.monotonic() + self.random.uniform(0.1, 2))
            while time.monotonic() < wait:
                time.sleep(0.1)
                self.go_on()
        self.go_on(all_of_them=True)


def thaw(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        pass


@contextmanager
def callers(seed: int, seconds: float, witness: Path) -> Iterator[list[subprocess.Popen[str]]]:
    with ExitStack() as stack:
        begun = []
        for name in ("a", "b"):
            words = [sys.executable, str(CALLER), name, str(seed), str(seconds), str(witness)]
            told = stack.enter_context(witness.with_name(f"told-{name}").open("w"))
            begun.append(subprocess.Popen(words, stdout=told, text=True))
        try:
            yield begun
        finally:
            for process in begun:
                process.kill()
                process.wait()


def storm(seconds: float, place: Path) -> None:
    seed = int(os.environ.get("HUTCH_STORM_SEED", "0")) or random.SystemRandom().randrange(1 << 31)
    print(f"storm: HUTCH_STORM_SEED={seed}, {seconds:g} s", flush=True)
    assert hutch.run("print(1)").stdout == "1\n"
    descriptors = len(os.listdir("/proc/self/fd"))
    file = place / "witness"
    witness = Witness(file)
    weather = Storm(seed)
    try:
        with callers(seed, seconds, file) as processes_of_callers:
            weather.blow(seconds)
            for process in processes_of_callers:
                process.wait(LONGEST)
    finally:
        weather.go_on(all_of_them=True)
        witness.close()
        for pid, kind in weather.frozen.items():
            if (
                kind == "conmon"
            ):  # nobody's but Podman's: what it watched over is removed without it
                thaw(pid)
    told = [
        json.loads(line)
        for name in ("a", "b")
        for line in place.joinpath(f"told-{name}").read_text().splitlines()
    ]
    report = judge(told, witness.runs)
    print(f"storm: {sum(weather.done.values())} strikes {dict(sorted(weather.done.items()))}")
    print(f"storm: {report}", flush=True)
    serves_again(weather, descriptors)


def judge(told: list[dict[str, Any]], runs: collections.Counter[str]) -> str:
    """Of all that the callers said and the witness saw."""
    assert not [t for t in told if "broke" in t], "something else than a SandboxError came out"
    begun = {t["begun"] for t in told if "begun" in t}
    ends = {t["ended"]: t for t in told if "ended" in t}
    assert begun and not begun ^ ends.keys(), ("calls without an end", begun ^ ends.keys())
    twice = {name: count for name, count in runs.items() if count > 1}
    assert not twice, ("run twice", twice)
    for name, end in ends.items():
        seen = runs[name]
        if end["status"] == "returned":
            assert end["right"] and seen == 1, ("a wrong answer", seen, end)
            continue
        # No limit was hit, and no function raised or died: all that went wrong was ours.
        assert end["status"] == "fault", ("a fault that looks like an answer", seen, end)
        assert end["safe"] != end["ran"]
        assert not (end["safe"] and seen), ("said that it did not run, and did", end)
        assert end["sec"] < LONGEST, ("it took too long", end)
    statuses = collections.Counter(
        end["status"] + (", safe to retry" if end["status"] == "fault" and end["safe"] else "")
        for end in ends.values()
    )
    reasons = collections.Counter(e["why"][:60] for e in ends.values() if e["status"] == "fault")
    slowest = max(end["sec"] for end in ends.values())
    assert statuses["returned"] > 0
    return (
        f"{len(ends)} calls {dict(statuses)}, slowest {slowest} s, "
        f"{sum(runs.values())} runs seen; faults: {dict(reasons)}"
    )


def serves_again(weather: Storm, descriptors: int) -> None:
    begun = time.monotonic()
    while True:
        try:
            assert hutch.run("print(2)", queue_sec=60).stdout == "2\n"
            break
        except hutch.SandboxStartupError as error:
            assert error.safe_to_retry and time.monotonic() - begun < 60, error
    print(f"storm: serves again after {time.monotonic() - begun:.1f} s", flush=True)
    # Workers that nobody has yet need Podman's service: whether it is frozen nobody else notices.
    for number in range(3):
        assert hutch.run("print(3)", labels={"storm": str(number)}, queue_sec=60).ok
    # What an agent that is dead has left goes with the next one's sweep, a minute later at most.
    until(lambda: not leftovers(weather, descriptors), "something is left", 150)
    print(f"storm: all is gone after {time.monotonic() - begun:.1f} s", flush=True)


def leftovers(weather: Storm, descriptors: int) -> dict[str, Any]:
    """What there is that should not be; empty when there is nothing."""
    left: dict[str, Any] = {}
    found = victims()
    status = hutch.status()
    known = {name for pool in status.get("pools", []) for name in pool["workers"]}
    if len(found["agent"]) != 1:
        left["agents"] = found["agent"]
    if len(found["warden"]) > len(known) + 2:  # the spare, and the one after it
        left["workers"] = (len(found["warden"]), sorted(known))
    states = {pid: state for pid, (_, state, *_) in processes().items()}
    stopped = {
        pid: kind
        for pid, kind in weather.frozen.items()
        if kind != "conmon" and states.get(pid) in ("T", "t")
    }
    if stopped:
        left["stopped"] = stopped
    more = len(os.listdir("/proc/self/fd")) - descriptors
    if (
        more > 48
    ):  # of cells leased ahead, three each: eight of the pool that was called, and others'
        left["descriptors"] = more
    return left


@pytest.fixture
def place(host: Any) -> Iterator[Path]:
    """Where Podman's user may look, unlike in a tmp_path."""
    made = Path(tempfile.mkdtemp(prefix="hutch-storm-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.mark.storm
def test_a_short_storm_costs_no_call_its_honest_end(place: Path) -> None:
    storm(20, place)


@pytest.mark.storm
def test_a_long_storm_costs_no_call_its_honest_end(place: Path) -> None:
    storm(float(os.environ.get("HUTCH_STORM_SEC", "600")), place)
