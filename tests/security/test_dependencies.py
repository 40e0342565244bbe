# SPDX-License-Identifier: Apache-2.0
"""Dependencies: what is no requirement is refused before any process starts."""

from __future__ import annotations

import base64
import hashlib
import importlib.util
import io
import marshal
import os
import re
import tarfile
import time
import zipfile
from pathlib import Path

import pytest

import hutch
from hutch import cli, sandbox

NOT_REQUIREMENTS = [
    "--index-url=http://evil.example",
    "-r /etc/passwd",
    "-e .",
    "-c constraints.txt",
    "--config-settings=x",
    "pip --index-url=http://evil.example",
    "./x.whl",
    "/tmp/x.whl",
    "../package",
    "file:///tmp/x.whl",
    "git+ssh://host/repo",
    "hg+http://host/repo@--config=hooks.pre-x=true",
    "http://host/x.whl",
    "pkg @ file:///tmp/x.whl",
    "pkg @ git+https://host/repo",
    "pkg @ http://host/x.whl",
    "numpy\n--index-url=http://evil.example",
    "numpy\x00evil",
    "num\u2010py",
    "\u0440andas",
    "n" * 10_240,
    "",
    "numpy; __import__('os').system('true')",
    "$(true)",
    "`true`",
]


def nothing() -> None:
    pass


@pytest.mark.parametrize("text", NOT_REQUIREMENTS, ids=lambda text: repr(text)[:40])
def test_what_is_no_requirement_is_refused_at_once(text: str) -> None:
    begin = time.monotonic()
    with pytest.raises((ValueError, hutch.SandboxError)):
        sandbox(dependencies=[text])(nothing)()
    assert time.monotonic() - begin < 10


def test_spellings_of_one_requirement_are_one_environment() -> None:
    @sandbox(dependencies=["Six >= 1.0", "iniconfig"])
    def one() -> str:
        import six

        return str(six.__version__)

    @sandbox(dependencies=["iniconfig", "six>=1.0"])
    def two() -> str:
        import six

        return str(six.__version__)

    assert one() == two()
    assert len({one.run().worker_id, two.run().worker_id}) <= 2


@pytest.mark.parametrize("name", ["-rm", "a/b", "..", "x\x00y", "x\ny", "y" * 10_240])
def test_odd_names_are_refused_or_harmless(name: str) -> None:
    with pytest.raises((ValueError, TypeError, hutch.SandboxError)):
        hutch.run("print(1)", files={name + "/../../../etc/passwd": "x"}).unwrap()


@pytest.mark.parametrize(
    "setting",
    [
        {"memory_mb": -1},
        {"memory_mb": 2**63},
        {"memory_mb": "much"},
        {"pids": 0},
        {"disk_mb": -5},
        {"result_mb": -1},
        {"output_mb": -1},
        {"cpus": -1},
        {"cpus": float("nan")},
        {"cpu_sec": -1},
        {"queue_sec": float("nan")},
        {"pids": 2**40},
        {"unknown_keyword": 1},
        {"isolation": "none"},
        {"env": {"A=B": "x"}},
        {"env": {"A": "x\x00y"}},
    ],
    ids=str,
)
def test_limits_that_are_none_are_refused_before_a_call(setting: dict[str, object]) -> None:
    with pytest.raises((ValueError, TypeError, OverflowError)):
        sandbox(**setting)(nothing)()  # type: ignore[call-overload]


SCRIPT = "# /// script\n# dependencies = ['six']\n# ///\nimport six\nprint(six.__name__)\n"
PRIVATE = "https://packages.example/simple"


@pytest.fixture
def no_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No setting of this machine's decides where packages come from."""
    for name in list(os.environ):
        if re.match(r"(PIP|UV)_.*(INDEX|CONFIG)", name):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


@pytest.mark.usefixtures("no_index")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("UV_DEFAULT_INDEX", PRIVATE),
        ("UV_INDEX_URL", PRIVATE),
        ("PIP_INDEX_URL", PRIVATE),
        ("PIP_EXTRA_INDEX_URL", PRIVATE),
        ("UV_INDEX", "company=" + PRIVATE),
        ("UV_EXTRA_INDEX_URL", "https://pypi.org/simple " + PRIVATE),
        ("PIP_INDEX_URL", "https://user:word@pypi.org/simple"),
        ("PIP_INDEX_URL", "https://pypi.org.packages.example/simple"),
        ("uv.toml", f"[[index]]\nurl = '{PRIVATE}'\n"),
        ("pip.conf", f"[global]\nindex-url = {PRIVATE}\n"),
        ("netrc", "machine pypi.org login x password y\n"),
    ],
)
def test_a_program_names_no_packages_of_a_private_index(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str
) -> None:
    if name == "netrc":
        (tmp_path / "netrc").write_text(value)
        monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.org/simple/")
    elif name == "uv.toml":
        pytest.importorskip("tomllib")
        (tmp_path / "uv").mkdir()
        (tmp_path / "uv" / name).write_text(value)
    elif name == "pip.conf":
        (tmp_path / name).write_text(value)
        monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / name))
    else:
        monkeypatch.setenv(name, value)
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    with pytest.raises(hutch.RequirementError, match="private") as refused:
        hutch.run(SCRIPT, dependencies="inline")
    assert "word" not in str(refused.value) and "allow_private_index" in refused.value.hint
    with pytest.raises(hutch.RequirementError, match="private"):
        hutch.function(SCRIPT, "f", dependencies="inline")
    assert cli.main(["run", str(script)]) == cli.BROKEN
    # It may, if that is what its caller wants; and what the caller lists comes from there anyway.
    hutch.Program(SCRIPT, dependencies="inline", allow_private_index=True)
    hutch.Program(SCRIPT, dependencies=["six"])
    hutch.Program("# /// script\n# dependencies = []\n# ///\n", dependencies="inline")


@pytest.mark.usefixtures("no_index")
def test_a_program_names_its_own_packages_of_the_public_index(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert hutch.run(SCRIPT, dependencies="inline").stdout == "six\n"
    monkeypatch.setenv("PIP_INDEX_URL", "https://pypi.org/simple/")
    hutch.Program(SCRIPT, dependencies="inline")


@pytest.mark.parametrize("text", [x for x in NOT_REQUIREMENTS if x.isprintable() and "'" not in x])
def test_a_program_names_no_addresses_paths_or_options(text: str) -> None:
    metadata = f"# /// script\n# dependencies = ['{text}']\n# ///\n"
    with pytest.raises((ValueError, hutch.SandboxError)):
        hutch.Program(metadata, dependencies="inline", allow_private_index=True)


def test_a_programs_settings_of_the_installer_are_not_followed() -> None:
    settings = f"[tool.uv]\nindex-url = '{PRIVATE}'\nfind-links = ['/etc']\n[[tool.uv.index]]\n"
    settings += f"url = '{PRIVATE}'\ndefault = true\n[tool.uv.sources]\nsix = {{path = '/etc'}}\n"
    lines = ["/// script", "dependencies = ['six']", *settings.splitlines(), "///"]
    source = "".join(f"# {line}\n" for line in lines)
    told = hutch.Program(source, dependencies="inline")._resolved()._spec()
    assert told["requirements"] == ["six"]
    assert "packages.example" not in repr(told) and not told.get("links")


ROOT = Path(__file__).parent.parent.parent


def test_workers_are_pinned_by_the_images_id() -> None:
    """A worker is made of what its tag meant when it was looked up, and never of what is pulled for
    it: only a base that the caller names is, before it is looked at.
    """
    worker = (ROOT / "pool" / "worker_container.cc").read_text()
    assert re.search(r"launch\.image = \*image;\s+podman\.Start\(podman\.Create\(", worker)
    pulling = [
        path.name
        for folder in ("podman", "environments", "pool", "launcher", "agent", "client", "bindings")
        for path in (ROOT / folder).rglob("*.cc")
        if re.search(r"\bPullImage\(|images/pull", path.read_text())
    ]
    assert sorted(pulling) == ["base_image.cc", "base_image_test.cc", "podman.cc"]


def test_a_package_runs_nothing_of_its_own_accord() -> None:
    """No site, so no .pth, sitecustomize or usercustomize; the library before the packages."""

    @sandbox(dependencies=["six"])
    def look() -> list[object]:
        import sys

        names = [path for path in sys.path if path.startswith("/opt/")]
        library = [at for at, path in enumerate(names) if path.startswith("/opt/python/")]
        packages = [at for at, path in enumerate(names) if path == "/opt/env"]
        import json

        import six

        return [
            sys.flags.isolated,
            sys.flags.no_site,
            "sitecustomize" in sys.modules,
            max(library) < min(packages),
            json.__file__.startswith("/opt/python/"),
            six.__file__.startswith("/opt/env/"),
        ]

    assert look() == [1, 1, False, True, True, True]


def wheel(directory: Path, name: str, files: dict[str, str | bytes]) -> None:
    """As an honest tool makes it but for what `files` are, with every hash right."""
    info = f"{name}-1.0.dist-info"
    content = {
        path: text.encode() if isinstance(text, str) else text for path, text in files.items()
    }
    content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    lines = [f"{info}/RECORD,,"]
    for path, data in content.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(data)}")
    content[f"{info}/RECORD"] = "\n".join(lines).encode() + b"\n"
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)


def bytecode(source: str, flags: int) -> bytes:
    code = compile("x = 'hostile'", "/opt/env/bpkg/m.py", "exec")
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little")
    return head + importlib.util.source_hash(source.encode()) + marshal.dumps(code)


def values_of_bpkg() -> dict[str, str]:
    import importlib

    found = {}
    for name in "mnop":
        try:
            found[name] = importlib.import_module("hutch_test_b." + name).x
        except (SyntaxError, ImportError) as error:
            found[name] = type(error).__name__
    return found


def test_a_wheel_leaves_no_bytecode_in_another_wheel(tmp_path: Path) -> None:
    """`m` does not compile, so nothing that was compiled takes the place of what was brought."""
    sources = {"m": "x = (\n", "n": "x = 'own'\n", "o": "x = 'own'  # more\n"}
    wheel(
        tmp_path,
        "hutch_test_b",
        {"hutch_test_b/__init__.py": "from . import n\n"}
        | {f"hutch_test_b/{name}.py": text for name, text in sources.items()},
    )
    evil: dict[str, str | bytes] = {
        # What names them has them compiled: each of the forms that bytecode has.
        "hutch_test_a.py": "import hutch_test_b.m, hutch_test_b.n, hutch_test_b.o\n",
        "hutch_test_b/p.pyc": bytecode("", 1),
    }
    for name, flags in (("m", 3), ("n", 1), ("o", 3)):
        place = importlib.util.cache_from_source(f"hutch_test_b/{name}.py", optimization="")
        evil[place] = bytecode(sources[name], flags)
        evil[f"hutch_test_b/{name}.pyc"] = bytecode(sources[name], flags)
    wheel(tmp_path, "hutch_test_a", evil)
    both = hutch.Environment(["hutch_test_a", "hutch_test_b"], find_links=tmp_path)
    alone = hutch.Environment(["hutch_test_b"], find_links=tmp_path)
    own = {"m": "SyntaxError", "n": "own", "o": "own"}
    # With both, the hostile one has a module of its own there, as it could have a native one.
    assert sandbox(values_of_bpkg, environment=both)() == own | {"p": "hostile"}
    assert sandbox(values_of_bpkg, environment=alone)() == own | {"p": "ModuleNotFoundError"}


def test_nothing_of_a_wheel_runs_before_it_is_imported(tmp_path: Path) -> None:
    mark = (
        "import builtins; builtins.hutch_test_marks = [*getattr(builtins, 'hutch_test_marks', [])"
    )
    early = {
        f"{place}{name}": f"{mark}, {name!r}]\n"
        for place in ("", "hutch_test_c-1.0.data/data/", "hutch_test_c-1.0.data/purelib/x-")
        for name in ("evil.pth", "sitecustomize.py", "usercustomize.py")
    }
    wheel(
        tmp_path,
        "hutch_test_c",
        {
            **early,
            "hutch_test_c.py": "import builtins\n"
            "MARKS = getattr(builtins, 'hutch_test_marks', [])\n",
            "json.py": f"{mark}, 'json']\n",
            "hutch_test_c-1.0.data/scripts/env": "#!python\nraise SystemExit(3)\n",
            "hutch_test_c-1.0.dist-info/entry_points.txt": "[console_scripts]\nsh = json:main\n",
        },
    )

    @sandbox(environment=hutch.Environment(["hutch_test_c"], find_links=tmp_path))
    def marks() -> list[str]:
        import hutch_test_c  # type: ignore[import-not-found,unused-ignore]

        return list(hutch_test_c.MARKS)

    assert marks() == []


# Leaves a process behind that does something to what the agent is going to look at.
BACKEND = """
import os, time, zipfile

def build_wheel(directory, *_):
    info = "hutch_test_d-1.0.dist-info"
    files = {
        "hutch_test_d.py": "X = 1\\n",
        f"{info}/METADATA": "Metadata-Version: 2.1\\nName: hutch-test-d\\nVersion: 1.0\\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\\n" for name in [*files, f"{info}/RECORD"])
    name = "hutch_test_d-1.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(directory, name), "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    os.makedirs("/store/tree/data")  # takes its time to look at
    for number in range(5_000):
        os.mkdir(f"/store/tree/data/{number}")
    if os.fork() == 0:
        os.setsid()
        for fd in (0, 1, 2):
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        while not os.path.exists("/store/tree/hutch_test_d.py"):
            pass
        HARM
        os._exit(0)
    return name
"""
HARMS = {
    "lock_grows": ('os.truncate("/store/lock.txt", 1 << 40)', "lock.txt"),
    "lock_is_a_link": (
        'os.unlink("/store/lock.txt"); os.symlink("/proc/self/environ", "/store/lock.txt")',
        "lock.txt",
    ),
    "lock_is_a_pipe": ('os.unlink("/store/lock.txt"); os.mkfifo("/store/lock.txt")', "lock.txt"),
    "lock_is_no_text": ('open("/store/lock.txt", "a").write(chr(27) + "[2J")', "lock.txt"),
    "report_has_no_end": ('os.truncate("/store/report.jsonl", 1 << 40)', "report|lock.txt"),
    "tree_has_a_pipe": ('os.mkfifo("/store/tree/pipe")', "special file"),
    "tree_is_deep": (
        'os.chdir("/store/tree"); [(os.mkdir("d"), os.chdir("d")) for _ in range(200)]',
        "deep",
    ),
    "nothing": ("pass", ""),
}


@pytest.mark.parametrize("harm", HARMS)
def test_what_a_build_script_leaves_is_looked_at_with_care(harm: str, tmp_path: Path) -> None:
    """Each is an error that says what, in little memory; "nothing" is the harmless counterpart."""
    what, named = HARMS[harm]
    if named == "lock.txt":
        what += "\n        time.sleep(20)"
    files = {
        "PKG-INFO": "Metadata-Version: 2.1\nName: hutch-test-d\nVersion: 1.0\n",
        "pyproject.toml": "[build-system]\nrequires = []\nbuild-backend = 'own'\n"
        "backend-path = ['.']\n[project]\nname = 'hutch-test-d'\nversion = '1.0'\n",
        "own.py": BACKEND.replace("HARM", what),
    }
    with tarfile.open(tmp_path / "hutch_test_d-1.0.tar.gz", "w:gz") as archive:
        for name, text in files.items():
            member = tarfile.TarInfo(f"hutch_test_d-1.0/{name}")
            member.size = len(text.encode())
            archive.addfile(member, io.BytesIO(text.encode()))
    environment = hutch.Environment(["hutch-test-d"], find_links=tmp_path, allow_sdists=True)

    @sandbox(environment=environment)
    def value() -> int:
        import hutch_test_d  # type: ignore[import-not-found,unused-ignore]

        return int(hutch_test_d.X)

    if not named:
        assert value() == 1
        return
    for _ in range(15):  # it runs against the installer's end, and may come too late
        try:
            value.options(disable_cache=True)()
        except hutch.SandboxError as error:
            assert re.search(named, str(error)), error
            return
    pytest.fail("it came too late each time")
