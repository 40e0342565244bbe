# SPDX-License-Identifier: Apache-2.0
"""A stock Debian with an ordinary user, systemd and delegated cgroups, in qemu on this machine.

What is to be tested comes on a second disk, made anew for each boot in seconds: Hutch as it is
installed here, and tests/host/guest with what it runs. In the machine each check is a pytest test;
its plugin writes one line a test to a serial port, which becomes that test's result here. The
machine's own disk is thrown away after each boot (-snapshot); nothing on this host is changed.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# What the machine's interpreter is given: Hutch, what it needs, and pytest. All but hutch fits any
# interpreter; hutch is the one that is installed here where the system's interpreter is of the
# version of the one here, and built for that system otherwise; Ubuntu's is that of the wheels.
DISTRIBUTIONS = (
    *("cloudpickle", "packaging", "rich", "markdown-it-py", "mdurl", "pygments", "shtab", "uv"),
    *("pytest", "pluggy", "iniconfig"),
)
PYTHONS = {"bookworm": (3, 11), "trixie": (3, 13), "noble": (3, 12)}
OF_WHEELS = ("noble",)
MEMORY_MB = 3072
NICE = os.environ.get("HUTCH_HOST_NICE", "5")
# Without cmpxchg16b, which qemu 7.2 emulates so that Linux 6.12 panics in its allocator. What Linux
# does against leaks by timing costs the emulation half of its speed, and stops nothing in it.
CPU = "Nehalem,-cx16"
KERNEL = (
    "root=/dev/vda rw console=ttyS0 quiet panic=-1 net.ifnames=0 no_timer_check mitigations=off "
    "systemd.default_timeout_start_sec=600 systemd.default_device_timeout_sec=600"
)


class CannotBoot(Exception):
    """Why there is no machine here: the reason of a skip."""


@dataclass
class Result:
    outcome: str  # "passed", "failed" or "skipped"
    seconds: float
    text: str


@dataclass
class Boot:
    """What a machine said before it was switched off."""

    results: dict[str, Result] = field(default_factory=dict)
    up_sec: float = 0.0  # from its kernel's start until its services were up
    seconds: float = 0.0
    told: dict[str, str] = field(default_factory=dict)
    console: str = ""
    timed_out: bool = False

    def check(self, name: str) -> Result:
        """Of one test; where it has parameters, of all cases that are tried here."""
        found = [
            (("failed", "passed", "skipped").index(result.outcome), key, result)
            for key, result in self.results.items()
            if key.partition("[")[0].endswith(name)
        ]
        if not found:
            raise AssertionError(f"the machine said nothing of {name}; {self.state()}")
        return min(found, key=lambda entry: entry[:2])[2]

    def left(self) -> str:
        """What was left of Hutch, and of the user's Podman, after `hutch uninstall`."""
        code, _, said = self.told.get("uninstalled", "none: it was not run").partition(" ")
        assert code == "0", f"exit code {code}: {said}\n{self.tail()}"
        return self.told["left"].strip()

    def state(self) -> str:
        """How far it came."""
        up = f"up after {self.up_sec:.0f} s" if self.up_sec else "never up"
        doing = self.told.get("at", "nothing of ours")
        end = "was stopped then" if self.timed_out else "switched itself off"
        return f"it {end}, after {self.seconds:.0f} s ({up}; last at: {doing}):\n{self.tail()}"

    def tail(self) -> str:
        return self.console[-3000:]


def boot_once(
    suite: str, place: Path, checks: Iterable[str], timeout_sec: float, disk_sec: float = 1800
) -> Boot:
    """Runs `checks` on a system. Raises CannotBoot where this host has not what that takes, which
    may be the time: a machine without KVM on a busy host. What fails in the machine is no reason.
    """
    image = seeded(disk(suite, disk_sec), suite, place, timeout_sec)
    checks = list(checks)
    booted = boot(image, suite, place, checks, timeout_sec)
    if "up" not in booted.told and not booted.timed_out:  # qemu's own: a kernel patches its code
        booted = boot(image, suite, place, checks, timeout_sec)
    if "end" in booted.told or any(r.outcome == "failed" for r in booted.results.values()):
        return booted
    if booted.timed_out:
        raise CannotBoot(f"{timeout_sec:.0f} s were too little for the machine: {booted.state()}")
    raise AssertionError(f"the machine did not do everything: {booted.state()}")


def disk(suite: str, timeout_sec: float) -> Path:
    """The directory of a system's disk; made where it is missing, which takes minutes."""
    for program in ("qemu-system-x86_64", "mkfs.ext4", "debootstrap"):
        if _which(program) is None:
            raise CannotBoot(f"{program} is not installed here (scripts/prepare test-host)")
    if os.geteuid() != 0 and shutil.which("sudo") is None:
        raise CannotBoot("a disk is made by root, and there is no sudo")
    try:
        made = subprocess.run(
            [str(ROOT / "scripts" / "host_disk"), suite],
            capture_output=True,
            text=True,
            timeout=timeout_sec,
        )
    except subprocess.TimeoutExpired:
        raise CannotBoot(f"making the disk of {suite} took over {timeout_sec:.0f} s") from None
    if made.returncode != 0:
        raise CannotBoot(f"no disk of {suite} could be made: {made.stderr.strip()[-1000:]}")
    return Path(made.stdout.strip().splitlines()[-1])


def seeded(made: Path, suite: str, place: Path, timeout_sec: float) -> Path:
    """That disk after a first call, which makes the base image: long on an emulated processor."""
    recipe = (ROOT / "images" / "base" / "derive.py").read_bytes()
    seed = made / f"seed-{hashlib.sha256(recipe).hexdigest()[:12]}.img"
    if not seed.exists():
        part = place / "seed.img"
        subprocess.run(["cp", "--sparse=always", made / "disk.img", part], check=True)
        first = ["guest/test_user.py::test_a_program_runs"]
        booted = boot(part, suite, place, first, timeout_sec, keep=True)
        if "stopped" not in booted.told or booted.check(first[0]).outcome != "passed":
            why = "\n".join(result.text for result in booted.results.values())
            why = f"no first call came to an end: {booted.state()}\n{why}"
            raise CannotBoot(why) if booted.timed_out else AssertionError(why)
        for old in made.glob("seed-*.img"):
            old.unlink()
        shutil.move(part, seed)
    return seed


def cache() -> Path:
    given = os.environ.get("HUTCH_HOST_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hutch-test-host"


def boot(
    image: Path,
    suite: str,
    place: Path,
    checks: Iterable[str],
    timeout_sec: float,
    keep: bool = False,
) -> Boot:
    """Boots it, runs `checks` (arguments of pytest) in it as its user, has Hutch remove all that it
    has made, and waits for its end.

    `keep`: what it writes stays on `image`, and Hutch removes nothing.
    """
    second = payload(suite, place, checks, uninstall=not keep)
    kernel = next(path for path in (image.parent, *cache().glob(f"{suite}-*")) if _boots(path))
    results, console = place / "results", place / "console"
    for file in (results, console):
        file.write_text("")
    # A /dev/kvm that is there need not work (in a virtual machine often not): only when asked for.
    accelerator = os.environ.get("HUTCH_HOST_ACCEL", "tcg,thread=multi")
    command = [
        *("setpriv", "--pdeathsig", "KILL", "nice", "-n", NICE, str(_which("qemu-system-x86_64"))),
        *(
            "-accel",
            accelerator,
            "-cpu",
            os.environ.get("HUTCH_HOST_CPU", CPU),
            "-smp",
            "2",
            "-m",
            str(MEMORY_MB),
            "-no-reboot",
        ),
        *("-display", "none", "-monitor", "none", "-nodefaults", *(() if keep else ("-snapshot",))),
        *("-kernel", str(kernel / "vmlinuz"), "-initrd", str(kernel / "initrd.img")),
        *("-append", KERNEL),
        *("-drive", f"file={image},format=raw,if=virtio,cache=unsafe"),
        *("-drive", f"file={second},format=raw,if=virtio,cache=unsafe"),
        *("-serial", f"file:{console}", "-serial", f"file:{results}"),
        *("-device", "virtio-rng-pci"),
        *("-netdev", "user,id=net,net=198.51.100.0/24,restrict=on"),
        *("-device", "virtio-net-pci,netdev=net,romfile="),
    ]
    begun, timed_out = time.monotonic(), False
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, env={**os.environ, "TMPDIR": str(place)}
    )
    try:
        process.wait(timeout_sec)
    except subprocess.TimeoutExpired:
        timed_out = True
    finally:
        process.kill()
        process.wait()
    booted = read(results.read_text(errors="replace"), console, time.monotonic() - begun)
    booted.timed_out = timed_out
    return booted


def _boots(place: Path) -> bool:
    return (place / "vmlinuz").exists()


def read(lines: str, console: Path, seconds: float) -> Boot:
    told = Boot(seconds=seconds, console=console.read_text(errors="replace"))
    for line in lines.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "@test":
            result = json.loads(rest)
            told.results[result["name"]] = Result(
                result["outcome"], result["seconds"], result["text"]
            )
        elif kind.startswith("@"):
            told.told[kind[1:]] = rest
    told.up_sec = float(told.told.get("up", "0") or 0)
    return told


def payload(suite: str, place: Path, checks: Iterable[str], uninstall: bool) -> Path:
    """The second disk: a virtual environment with Hutch, and what it is asked to run."""
    tree = place / "payload"
    shutil.rmtree(tree, ignore_errors=True)
    major, minor = PYTHONS[suite]
    site = tree / "lib" / f"python{major}.{minor}" / "site-packages"
    site.mkdir(parents=True)
    (tree / "bin").mkdir()
    (tree / "own").mkdir()
    (tree / "bin" / "python3").symlink_to("/usr/bin/python3")
    (tree / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    for name in DISTRIBUTIONS:
        _copy(importlib.metadata.distribution(name), site, tree / "bin")
    libraries: list[Path] = []
    if suite in OF_WHEELS:
        for found in published(suite):
            _unpack(found, site)
    elif PYTHONS[suite] == sys.version_info[:2]:
        _copy(importlib.metadata.distribution("hutch"), site, tree / "bin")
        libraries = _libraries(str(site / "hutch" / "_runtime" / "hutch-agent"))
    else:
        built = wheel(suite)
        _unpack(next(built.glob("hutch-*.whl")), site)
        libraries = list(built.glob("lib*.so.*"))
    for library in libraries:
        if "cpp-httplib" in library.name:  # another system has another version of it
            shutil.copy(library, tree / "own" / library.name)
    (tree / "bin" / "hutch").write_text(
        "#!/opt/hutch/bin/python3\nimport sys\nfrom hutch.cli import main\nsys.exit(main())\n"
    )
    (tree / "bin" / "hutch").chmod(0o755)
    shutil.copytree(ROOT / "tests" / "host" / "guest", tree / "guest")
    for name in ("tests/security", "tests/end_to_end", "examples"):
        shutil.copytree(
            ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"), symlinks=True
        )
    shutil.copy(ROOT / "tests" / "support.py", tree / "tests")
    (tree / "guest" / "checks").write_text("\n".join(checks) + "\n")
    if uninstall:
        (tree / "guest" / "uninstall").touch()
    image = place / "payload.img"
    image.unlink(missing_ok=True)
    subprocess.run(
        [str(_which("mkfs.ext4")), "-q", "-E", "root_owner=0:0", "-d", tree, image, "512M"],
        check=True,
    )
    return image


def published(suite: str) -> list[Path]:
    """The wheels of Hutch for that system's interpreter, of those that `make wheels` has built."""
    major, minor = PYTHONS[suite]
    names = (
        f"hutch-*-cp{major}{minor}-cp{major}{minor}-*_x86_64.whl",
        "hutch_runtime-*_x86_64.whl",
    )
    found = [wheel for name in names for wheel in (ROOT / "dist").glob(name)]
    if len(found) != len(names):
        raise CannotBoot(f"there are no wheels for Python {major}.{minor} in dist/ (make wheels)")
    return found


def _unpack(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for member in archive.infolist():
            archive.extract(member, site)
            (site / member.filename).chmod(member.external_attr >> 16 & 0o777 or 0o644)


def wheel(suite: str, timeout_sec: float = 3600) -> Path:
    """The directory of Hutch built for another Debian; minutes the first time."""
    try:
        made = subprocess.run(
            [str(ROOT / "scripts" / "host_wheel"), suite],
            capture_output=True,
            text=True,
            timeout=timeout_sec,
        )
    except subprocess.TimeoutExpired:
        raise CannotBoot(f"building Hutch for {suite} took over {timeout_sec:.0f} s") from None
    if made.returncode != 0:
        raise AssertionError(f"Hutch cannot be built for {suite}: {made.stderr.strip()[-3000:]}")
    return Path(made.stdout.strip().splitlines()[-1])


def _libraries(program: str) -> list[Path]:
    """What `ldd` says it is linked to."""
    told = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    words = [line.split() for line in told.splitlines()]
    return [Path(line[2]) for line in words if len(line) > 2 and line[1] == "=>"]


def _copy(found: importlib.metadata.Distribution, site: Path, binaries: Path) -> None:
    for file in found.files or ():
        source = Path(str(found.locate_file(file)))
        if source.suffix == ".pyc" or not source.exists():
            continue
        inside = not str(file).startswith("..")
        target = site / str(file) if inside else binaries / source.name
        if not inside and source.name != "uv":
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)


def _which(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
