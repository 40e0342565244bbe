# SPDX-License-Identifier: Apache-2.0
"""Hutch runs Python that you do not trust, on your own machine, in warm rootless containers.

    from hutch import sandbox

    @sandbox(dependencies=["pandas"])
    def summarise(rows: list[dict]) -> dict: ...

This module only re-exports, each name when it is first asked for: importing it costs little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hutch import agent as agent, sessions as sessions
    from hutch._async_session import AsyncSession as AsyncSession
    from hutch._calls.dialogue import StopExec as StopExec
    from hutch._calls.future import SandboxFuture as SandboxFuture
    from hutch._calls.history import HistoryEntry as HistoryEntry
    from hutch._calls.stream import (
        AsyncSandboxedGenerator as AsyncSandboxedGenerator,
        SandboxedGenerator as SandboxedGenerator,
    )
    from hutch._cancelled import SandboxCancelled as SandboxCancelled
    from hutch._carry.functions import Carried as Carried
    from hutch._errors import (
        AgentUnavailable as AgentUnavailable,
        AnnotationWarning as AnnotationWarning,
        CommandError as CommandError,
        DependencyInstallError as DependencyInstallError,
        KeyValueLimit as KeyValueLimit,
        LimitExceeded as LimitExceeded,
        NetworkDenied as NetworkDenied,
        PlatformNotSupportedError as PlatformNotSupportedError,
        PodmanNotInstalledError as PodmanNotInstalledError,
        RemoteTraceback as RemoteTraceback,
        RequirementError as RequirementError,
        SandboxBusy as SandboxBusy,
        SandboxDied as SandboxDied,
        SandboxExecutionError as SandboxExecutionError,
        SandboxMemoryError as SandboxMemoryError,
        SandboxStartupError as SandboxStartupError,
        SandboxTimeoutError as SandboxTimeoutError,
        SerializationError as SerializationError,
        SessionBusy as SessionBusy,
        SessionNotFound as SessionNotFound,
        SnapshotError as SnapshotError,
        StorageError as StorageError,
    )
    from hutch._executor import Executor as Executor
    from hutch._explain import explain as explain
    from hutch._key_values import AsyncKeyValues as AsyncKeyValues, KeyValues as KeyValues
    from hutch._options.environment import Environment as Environment
    from hutch._options.mounts import Mount as Mount
    from hutch._options.network import Secret as Secret
    from hutch._options.options import Pool as Pool
    from hutch._options.policy import Policy as Policy
    from hutch._outcome import (
        ErrorInfo as ErrorInfo,
        NetworkRecord as NetworkRecord,
        Outcome as Outcome,
        SandboxError as SandboxError,
        Usage as Usage,
    )
    from hutch._program import (
        Program as Program,
        function as function,
        run as run,
        run_aio as run_aio,
    )
    from hutch._remote.client import Client as Client
    from hutch._restored import Restored as Restored, RestoredPart as RestoredPart
    from hutch._results.empty import empty as empty
    from hutch._sandbox import (
        AsyncSandboxedFunction as AsyncSandboxedFunction,
        SandboxedFunction as SandboxedFunction,
        sandbox as sandbox,
        sandbox_async as sandbox_async,
    )
    from hutch._session import Session as Session
    from hutch._session_files import FileEntry as FileEntry
    from hutch._session_look import (
        Completion as Completion,
        Inspection as Inspection,
        Variable as Variable,
    )
    from hutch._status import (
        PoolStatus as PoolStatus,
        Status as Status,
        close as close,
        close_aio as close_aio,
        doctor as doctor,
        doctor_aio as doctor_aio,
        metrics as metrics,
        metrics_aio as metrics_aio,
        status as status,
        status_aio as status_aio,
    )
    from hutch._storage import Storage as Storage
    from hutch._storage_directory import DirectoryStorage as DirectoryStorage
    from hutch._storage_fsspec import FsspecStorage as FsspecStorage
    from hutch._storage_of import storage_of as storage_of
    from hutch._storage_sqlite import SqliteStorage as SqliteStorage
    from hutch._tools import Tool as Tool

__version__: str  # CMakeLists.txt has it

_PLACES = {
    "_async_session": "AsyncSession",
    "_cancelled": "SandboxCancelled",
    "_errors": "AgentUnavailable AnnotationWarning CommandError DependencyInstallError "
    "KeyValueLimit LimitExceeded NetworkDenied PlatformNotSupportedError "
    "PodmanNotInstalledError RemoteTraceback RequirementError SandboxBusy SandboxDied "
    "SandboxExecutionError SandboxMemoryError SandboxStartupError SandboxTimeoutError "
    "SerializationError SessionBusy SessionNotFound SnapshotError StorageError",
    "_remote.client": "Client",
    "_results.empty": "empty",
    "_options.environment": "Environment",
    "_explain": "explain",
    "_carry.functions": "Carried",
    "_calls.dialogue": "StopExec",
    "_executor": "Executor",
    "_key_values": "AsyncKeyValues KeyValues",
    "_calls.future": "SandboxFuture",
    "_calls.history": "HistoryEntry",
    "_calls.stream": "AsyncSandboxedGenerator SandboxedGenerator",
    "_options.mounts": "Mount",
    "_options.network": "Secret",
    "_outcome": "ErrorInfo NetworkRecord Outcome SandboxError Usage",
    "_options.policy": "Policy",
    "_options.options": "Pool",
    "_program": "Program function run run_aio",
    "_sandbox": "AsyncSandboxedFunction SandboxedFunction sandbox sandbox_async",
    "_session": "Session",
    "_restored": "Restored RestoredPart",
    "_session_files": "FileEntry",
    "_session_look": "Completion Inspection Variable",
    "_storage": "Storage",
    "_storage_directory": "DirectoryStorage",
    "_storage_fsspec": "FsspecStorage",
    "_storage_of": "storage_of",
    "_storage_sqlite": "SqliteStorage",
    "_tools": "Tool",
    "_status": "PoolStatus Status close close_aio doctor doctor_aio metrics metrics_aio status "
    "status_aio",
}
_MODULE_OF = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = [
    "AgentUnavailable",
    "AnnotationWarning",
    "AsyncKeyValues",
    "AsyncSandboxedFunction",
    "AsyncSandboxedGenerator",
    "AsyncSession",
    "Carried",
    "Client",
    "CommandError",
    "Completion",
    "DependencyInstallError",
    "DirectoryStorage",
    "Environment",
    "ErrorInfo",
    "Executor",
    "FileEntry",
    "FsspecStorage",
    "HistoryEntry",
    "Inspection",
    "KeyValueLimit",
    "KeyValues",
    "LimitExceeded",
    "Mount",
    "NetworkDenied",
    "NetworkRecord",
    "Outcome",
    "PlatformNotSupportedError",
    "PodmanNotInstalledError",
    "Policy",
    "Pool",
    "PoolStatus",
    "Program",
    "RemoteTraceback",
    "RequirementError",
    "Restored",
    "RestoredPart",
    "SandboxBusy",
    "SandboxCancelled",
    "SandboxDied",
    "SandboxError",
    "SandboxExecutionError",
    "SandboxFuture",
    "SandboxMemoryError",
    "SandboxStartupError",
    "SandboxTimeoutError",
    "SandboxedFunction",
    "SandboxedGenerator",
    "Secret",
    "SerializationError",
    "Session",
    "SessionBusy",
    "SessionNotFound",
    "SnapshotError",
    "SqliteStorage",
    "Status",
    "StopExec",
    "Storage",
    "StorageError",
    "Tool",
    "Usage",
    "Variable",
    "agent",
    "close",
    "close_aio",
    "doctor",
    "doctor_aio",
    "empty",
    "explain",
    "function",
    "metrics",
    "metrics_aio",
    "run",
    "run_aio",
    "sandbox",
    "sandbox_async",
    "sessions",
    "status",
    "status_aio",
    "storage_of",
]


def __getattr__(name: str) -> Any:
    import importlib

    if name in ("agent", "sessions"):
        return importlib.import_module(f"hutch.{name}")
    if name == "__version__":
        return importlib.import_module("hutch._core").VERSION
    module = _MODULE_OF.get(name)
    if module is None:
        from hutch._not_yet import OF_HUTCH

        if name in OF_HUTCH:
            raise AttributeError(f"hutch.{name} is not implemented yet: {OF_HUTCH[name]}")
        raise AttributeError(f"module 'hutch' has no attribute {name!r}")
    found = getattr(importlib.import_module(f"hutch.{module}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
