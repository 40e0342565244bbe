# SPDX-License-Identifier: Apache-2.0
"""Writes docs/api.md from the signatures and docstrings of the installed package.

.venv/bin/python scripts/api_reference.py            writes it
.venv/bin/python scripts/api_reference.py --check    fails if it is older than the docstrings
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, is_typeddict

import hutch
from hutch._async_session import AsyncChild
from hutch._async_session_files import AsyncSessionFiles
from hutch._background import AsyncProcess, Process
from hutch._options.described import HEADING, keywords
from hutch._session import Child
from hutch._session_files import SessionFiles

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
BEGINNING = """# API reference

Made from the docstrings by `scripts/api_reference.py`; `make format` renews it. `help()` and
`inspect.signature()` show the same. Begin with the [README](../README.md),
[an agent](agent-in-five-minutes.md) or [a grader](grader-in-five-minutes.md);
[concepts](concepts.md) explains the words. What code inside a sandbox can import is on other pages:
`sandbox_utils` on [utilities](utils.md), `hutch_tools` on [tools](tools.md) and
[sessions](sessions.md).
"""
GROUPS = {
    "Functions and programs": "sandbox sandbox_async run run_aio function Program "
    "SandboxedFunction AsyncSandboxedFunction SandboxedGenerator AsyncSandboxedGenerator "
    "SandboxFuture Executor empty Carried",
    "What became of a call": "Outcome ErrorInfo Usage NetworkRecord explain",
    "What a call may use": "Policy Environment Mount Secret Pool",
    "Sessions": "Session AsyncSession Completion Inspection Variable FileEntry Restored "
    "RestoredPart Tool StopExec KeyValues AsyncKeyValues HistoryEntry sessions",
    "Storage": "Storage DirectoryStorage SqliteStorage FsspecStorage storage_of",
    "The agent": "status status_aio Status PoolStatus metrics metrics_aio doctor doctor_aio close "
    "close_aio agent",
    "Servers": "Client serve",
    "Evaluations and executors": "evals evals.human_eval evals.code_eval evals.mbpp "
    "evals.evalplus evals.plus evals.expected evals.livecodebench joblib",
    "Errors": "SandboxError SandboxExecutionError CommandError LimitExceeded SandboxTimeoutError "
    "SandboxMemoryError SandboxDied SandboxCancelled SandboxStartupError SandboxBusy SessionBusy "
    "AgentUnavailable PlatformNotSupportedError PodmanNotInstalledError DependencyInstallError "
    "RequirementError NetworkDenied SerializationError SessionNotFound SnapshotError StorageError "
    "KeyValueLimit RemoteTraceback AnnotationWarning",
}
# What methods and attributes of these give.
PARTS: dict[str, tuple[tuple[str, Any], ...]] = {
    "Session": (
        ("Session.files", SessionFiles),
        ("Session.child()", Child),
        ("Session.start()", Process),
    ),
}
# Each has the methods of the first, awaited; what only the first has is not for users.
TWINS: dict[Any, Any] = {
    hutch.Session: hutch.AsyncSession,
    Child: AsyncChild,
    SessionFiles: AsyncSessionFiles,
    Process: AsyncProcess,
    hutch.KeyValues: hutch.AsyncKeyValues,
}
INTERNAL = {
    "Tool.inside",
    "Environment.directories",
    "Environment.names",
    "Secret.to_fields",
    "Outcome.fail",
}
MADE_BY_USERS = (
    "Program Executor Policy Environment Mount Secret Pool Session AsyncSession Tool "
    "DirectoryStorage SqliteStorage FsspecStorage Client"
).split()
WIDTH = 100  # of a line with a signature
MOST_OF_ITS_OWN = 10  # keywords that a function takes without taking them all
OF_MODULES = {
    "sessions": "list show delete prune",
    "agent": "start stop reload",
    "serve": "make_app",
}


class Text:
    """An annotation as it is written."""

    def __init__(self, text: object) -> None:
        self._text = text

    def __repr__(self) -> str:
        return str(self._text)


def signature_of(one: Any, name: str, is_method: bool = False) -> str:
    """With `**keywords` in place of those of @sandbox, which have a section of their own."""
    signature = inspect.signature(one)
    shown = list(signature.parameters.values())[is_method:]
    known = {keyword.name for keyword in keywords()}
    if sum(parameter.name in known for parameter in shown) > MOST_OF_ITS_OWN:
        shown = [parameter for parameter in shown if parameter.name not in known]
        shown.append(inspect.Parameter("keywords", inspect.Parameter.VAR_KEYWORD))
    shown = [parameter.replace(annotation=as_text(parameter.annotation)) for parameter in shown]
    gives = as_text(signature.return_annotation)
    before = "async " if inspect.iscoroutinefunction(one) else ""
    whole = f"{before}{name}{signature.replace(parameters=shown, return_annotation=gives)}"
    if len(whole) <= WIDTH:
        return whole
    lines = [str(parameter) for parameter in shown]
    kinds = [parameter.kind for parameter in shown]
    if inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_POSITIONAL not in kinds:
        lines.insert(kinds.index(inspect.Parameter.KEYWORD_ONLY), "*")
    if inspect.Parameter.POSITIONAL_ONLY in kinds:
        lines.insert(kinds.count(inspect.Parameter.POSITIONAL_ONLY), "/")
    listed = "".join(f"    {line},\n" for line in lines)
    return f"{before}{name}(\n{listed})" + (f" -> {gives!r}" if isinstance(gives, Text) else "")


def as_text(annotation: Any) -> Any:
    return Text(annotation) if isinstance(annotation, str) else annotation


def doc_of(one: Any) -> str:
    text = (inspect.getdoc(one) or "").partition(HEADING)[0].rstrip()
    return text + "\n" if text else ""


def members_of(kind: type) -> Iterator[tuple[str, Any]]:
    """Its public methods and properties, in the order of the source, those of its bases last,
    but for what another entry of the page has.
    """
    public = {getattr(hutch, name) for name in hutch.__all__} - {kind}
    is_storage = kind.__name__.endswith("Storage") and kind is not hutch.Storage
    seen = {*vars(hutch.Storage)} if is_storage else set()
    twin = TWINS.get(kind)
    for base in kind.__mro__:
        if base in public or not base.__module__.startswith("hutch"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen or f"{kind.__name__}.{name}" in INTERNAL:
                continue
            seen.add(name)
            if twin is not None and not hasattr(twin, name):
                continue
            if kind is Child and getattr(hutch.Session, name, None) is member:
                continue
            if isinstance(member, (classmethod, staticmethod)):
                yield name, getattr(kind, name)
            elif inspect.isfunction(member) or isinstance(member, property):
                yield name, member


def class_lines(kind: type, name: str, level: int) -> Iterator[str]:
    if is_typeddict(kind):
        source = inspect.getsource(kind)
        yield from (
            doc_of(kind),
            "```py",
            source[source.rindex('"""') + 3 :].strip("\n"),
            "```",
            "",
        )
        return
    if name in MADE_BY_USERS:
        yield from ("```py", signature_of(kind, name).removesuffix(" -> None"), "```", "")
    yield doc_of(kind)
    members = list(members_of(kind))
    if kind in TWINS.values():
        yield "```py"
        for member, what in members:
            if not isinstance(what, property):
                yield signature_of(what, member, is_method=True)
        yield from ("```", "")
        return
    for member, what in members:
        yield from (f"{'#' * level} {name}.{member}", "")
        if not isinstance(what, property):
            is_method = not inspect.ismethod(what) and not isinstance(
                inspect.getattr_static(kind, member), staticmethod
            )
            yield from ("```py", signature_of(what, "." + member, is_method), "```", "")
        yield doc_of(what)


def entry_lines(name: str, one: Any, level: int = 3) -> Iterator[str]:
    yield from (f"{'#' * level} hutch.{name}", "")
    if inspect.ismodule(one):
        yield doc_of(one)
        short = name.rpartition(".")[2]
        listed = OF_MODULES.get(short, "").split() or [
            member
            for member, what in vars(one).items()
            if inspect.isfunction(what)
            and what.__module__ == one.__name__
            and not member.startswith("_")
        ]
        for member in listed:
            what = getattr(one, member)
            yield from ("```py", signature_of(what, f"{name}.{member}"), "```", "", doc_of(what))
    elif inspect.isclass(one):
        yield from class_lines(one, name.rpartition(".")[2], level + 1)
        for part, kind in PARTS.get(name, ()):
            yield from (f"{'#' * (level + 1)} What `{part}` gives", "")
            yield from class_lines(kind, kind.__name__, level + 2)
    elif one.__name__ != name:
        yield f"Another name of `hutch.{one.__name__}`.\n"
    else:
        yield from ("```py", signature_of(one, name), "```", "", doc_of(one))


def keyword_lines() -> Iterator[str]:
    yield from ("## Keywords", "")
    yield "Of `@sandbox`, `hutch.run`, `Program`, `function`, `Executor`, `.options()`, and of"
    yield "sessions, which take all but `key`. More: [limits](limits.md), [policies](policy.md)."
    yield ""
    for one in keywords():
        yield f"- `{one.name}: {one.type} = {one.default!r}`<br>{one.said}"
    yield ""


def page() -> str:
    names = [name for text in GROUPS.values() for name in text.split()]
    missing = {*hutch.__all__} - {*names}
    assert not missing and len(names) == len({*names}), f"in no group: {missing}"
    lines = [BEGINNING]
    taken: list[str] = []
    for group, text in GROUPS.items():
        links = []
        for name in text.split():
            anchor = f"hutch{name.replace('.', '').lower()}"
            again = (
                f"-{taken.count(anchor)}" if anchor in taken else ""
            )  # as GitHub tells them apart
            links.append(f"[`{name}`](#{anchor}{again})")
            taken.append(anchor)
        lines.append(f"- **{group}**: {', '.join(links)}")
    lines += ["- **[Keywords](#keywords)**", ""]
    for group, text in GROUPS.items():
        lines += [f"## {group}", ""]
        for name in text.split():
            one = getattr(hutch, name, None) or importlib.import_module(f"hutch.{name}")
            lines += entry_lines(name, one)
        if group == "Functions and programs":
            lines += keyword_lines()
    return "\n".join("\n".join(lines).splitlines()).strip() + "\n"


def main() -> int:
    made = page()
    if sys.argv[1:] == ["--check"]:
        if PAGE.exists() and PAGE.read_text() == made:
            return 0
        print("docs/api.md is older than the docstrings: make format", file=sys.stderr)
        return 1
    PAGE.write_text(made)
    return 0


if __name__ == "__main__":
    sys.exit(main())
