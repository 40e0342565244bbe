# SPDX-License-Identifier: Apache-2.0
"""Target: what a call calls, with its options: a function, a function given as text, or a program.

It has the bytes that are sent once, the meta data of each call, the pool that serves it, and what
its result may hold. Targets are safe on any thread.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from hutch import _core
from hutch._carry import arguments
from hutch._carry.functions import (
    FunctionBytes,
    check_installed,
    function_bytes,
    refuse_carried_secrets,
    require_function,
)
from hutch._carry.pickling import NO_TOOLS, Tools
from hutch._carry.survey import Survey, Watch
from hutch._connect.connection import PoolRequest, milliseconds
from hutch._errors import SerializationError
from hutch._options.options import POLICY_FIELDS, SENT, Options
from hutch._results import types
from hutch._results.validating import validation

if TYPE_CHECKING:
    from hutch._calls.printed import Printed
    from hutch._carry.host_files import HostFiles
    from hutch._outcome import Outcome

_MIB = 1 << 20
_PLAIN, _PLAIN_KEPT, _PLAIN_CHUNK, _PLAIN_PROGRAM = b"P", b"K", b"C", b"R"
GENERATOR = 0x20 | 0x200  # of either kind, by flags of its code
CALLS_OF_A_WORKER = 10_000  # where `max_calls` is about shared cells


class FastState(NamedTuple):
    """What the fast path of a target needs: bindings/fast_call.cc reads it by position. The target
    holds it, so that the garbage collector knows of all that it refers to.
    """

    call: _core.FastCall
    watched: list[Any]  # of a Watch, as the next two
    attributes: list[Any]
    cells: list[Any]
    missing: object  # what stands for the content of an empty cell
    types: dict[str, type]  # Target.named_types
    annotation: Any  # the one type that needs no check, None: none does, or `...`: each does


class Target:
    """`nonce`: "" but with `disable_cache`."""

    is_program = False
    is_session = False
    runs_node = False
    printed: Printed | None = None  # gets what the call prints, as bytes, where its caller wants it
    # Makes of what a session replied what its caller gets, where that is another thing.
    conclude: Callable[[Outcome[Any]], None] | None = None
    lost: Sequence[str] = ()  # names that a session lost when its interpreter was last restarted
    annotation: Any = Any

    def hint_of_exit(self, stderr: str) -> str:
        """Of a program that ended itself with an exit code."""
        return ""

    def __init__(self, name: str, options: Options, nonce: str) -> None:
        from hutch._carry import modules

        if options.node_dependencies and not self.runs_node:
            raise ValueError(
                "node_dependencies= are for JavaScript: give them to Session, or to a program with "
                'language="javascript"'
            )
        self.name = name
        self.function: FunctionType | None = None
        self.options = options
        self.sandbox_modules = modules.names_of(options.modules) if options.modules else frozenset()
        self.outside = outside(options)
        self.streams = False  # what it yields is sent as it comes
        self.nonce = nonce
        self.request = self._request(options)
        self.shared = options.isolation == "shared"
        self.terms = _core.Terms(
            timeout_ms=_ms(options.timeout_sec),
            cpu_ms=_ms(options.cpu_sec),
            output_bytes=int(options.output_mb * _MIB),
            result_bytes=max(1, int(options.result_mb * _MIB)),
            queue_ms=_ms(options.queue_sec) or 1,
            calls_of_cell=options.max_calls if self.shared else 0,
            age_of_cell_sec=options.max_age_sec,
            policy=_policy_hash(options),
            network=bool(options.allow_network or options.secrets),
            memory_bytes=options.memory_mb * _MIB,
        )
        self._types: dict[str, type] | None = None
        # The fast paths of calls that give the value, and of those that give an Outcome.
        self.fast_value: FastState | None = None
        self.fast_outcome: FastState | None = None
        # The (code, pool) that each was last made for, whether or not there is one.
        self.fast_value_key: tuple[Any, ...] = ()
        self.fast_outcome_key: tuple[Any, ...] = ()

    def with_keywords(self, keywords: str) -> str:
        """Where its caller would give these, for a hint."""
        return keywords

    @property
    def identity(self) -> str:
        """The same for the same function, even if what it refers to has changed."""
        function = self.function
        assert function is not None
        return f"{function.__module__}.{function.__qualname__}"

    def watch(self, code: _core.Function) -> Watch | None:
        """What must be unchanged for `code` to be sent again. None: changes cannot be detected."""
        return None

    def code(self) -> _core.Function:
        """The bytes to be sent now."""
        raise NotImplementedError

    def meta(self, code: _core.Function, mode: str = "") -> bytes:
        """The pickled meta data of a call; `mode`: another one than the target's own."""
        raise NotImplementedError

    def pickle(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[bytes, list[Any]]:
        return arguments.pickle_arguments(
            self.function, args, kwargs, self.sandbox_modules, self.outside
        )

    @property
    def named_types(self) -> dict[str, type]:
        """The classes that the annotation lets a result hold."""
        if self._types is None:
            self._types = types.named_types(self.annotation)
        return self._types

    def _common_meta(self, code: _core.Function) -> dict[str, Any]:
        common: dict[str, Any] = {
            "cpu_ms": self.terms.cpu_ms,
            "result_bytes": self.terms.result_bytes,
        }
        if self.shared:
            common["keep"] = code.sha256
        if self.options.tools:
            beside = not self.streams  # a generator's calls are waited for on a thread
            common["tools"] = [tool.inside(beside) for tool in self.options.tools]
        if self.streams:
            common["streams"] = True
        return common

    def _request(self, options: Options) -> PoolRequest:
        if not options.mounts and options.environment is None:
            return PoolRequest(self._spec, _title(options), options.build_sec)
        from hutch._carry import host_files

        if not host_files.is_needed(options):
            return PoolRequest(self._spec, _title(options), options.build_sec)
        return host_files.HostFilesRequest(
            self._spec,
            lambda: host_files.inspected(options),
            _title(options),
            options.build_sec,
        )

    def _spec(self, shown: Sequence[HostFiles] = ()) -> _core.PoolSpec:
        from hutch._carry import modules
        from hutch._connect import launcher
        from hutch._options import packages

        options = self.options
        return {
            "python_version": self.python_version(),
            "platform": f"linux_{os.uname().machine}",
            "base_id": launcher.base_id(),
            "runtime_id": launcher.runtime_id(),
            **packages.fields(options),
            "links": [one.spec for one in shown if one.kind == "links"],
            "venv": [one.spec for one in shown if one.kind == "venv"],
            "mounts": [one.spec for one in shown if one.kind == "mounts"],
            "preload_given": options.preload is not None,
            "preload": list(options.preload or ()),
            "nonce": self.nonce + "".join(one.digest[:16] for one in shown if one.kind != "mounts"),
            "setup": self._setup(),
            "modules": modules.files_of(options.modules),
            **cast("_core.LimitSpec", {name: getattr(options, name) for name in SENT}),
            "env": dict(options.env),
            "labels": dict(options.labels),
            "max_calls": CALLS_OF_A_WORKER if self.shared else options.max_calls,
            "warm": -1 if options.pool.warm == "auto" else options.pool.warm,
            "max_cells": options.pool.max_cells or 0,
            "idle_sec": options.pool.idle_sec,
            "isolation": "cell" if self.shared else options.isolation,
            "timeout_ms": self.terms.timeout_ms,
            "cpu_ms": self.terms.cpu_ms,
            "output_bytes": self.terms.output_bytes,
            "result_bytes": self.terms.result_bytes,
            "policy": self.terms.policy,
            "shared": self.shared,
            "allow_network": list(options.allow_network),
            "secrets": self._secrets(),
        }

    def python_version(self) -> str:
        """The version that is wanted inside. Raises ValueError where code that is the caller's
        own bytecode would meet another one.
        """
        environment = self.options.environment
        if environment is None or not environment.base:
            return ".".join(map(str, sys.version_info[:3]))
        own = ".".join(map(str, sys.version_info[:2]))
        wanted: str = environment.python or own
        if wanted.split(".")[:2] != own.split(".") and (
            self.function is not None or self.options.setup is not None
        ):
            what = "setup=" if self.function is None else f"{self.name}()"
            raise ValueError(
                f"Environment(python={wanted!r}) cannot run {what}: functions travel as bytecode "
                f"of this interpreter, Python {own}; give it as text, by hutch.run or "
                f"hutch.function, or call from Python {wanted}"
            )
        return wanted

    def _secrets(self) -> list[dict[str, Any]]:
        if not self.options.secrets:
            return []
        from hutch._options import network

        return network.revealed(self.options.secrets)

    def _setup(self) -> bytes:
        setup = self.options.setup
        if setup is None:
            return b""
        plain = getattr(type(setup), "__hutch_plain__", None)
        function = require_function(plain(setup) if plain is not None else setup)
        if function.__code__.co_flags & GENERATOR:
            raise TypeError(f"setup= cannot be a generator function, as {function.__name__}() is")
        survey = Survey(function, self.sandbox_modules)
        check_installed(survey.by_name, _installed(self.options))
        data = function_bytes(function, survey)
        if self.options.refuse_secrets:
            refuse_carried_secrets("setup=", function, survey, data)
        return data


class FunctionTarget(Target):
    """`local_names`: what the annotation may name that only the defining scope knows."""

    def __init__(
        self,
        function: FunctionType,
        options: Options,
        nonce: str,
        local_names: dict[str, Any],
        data: FunctionBytes | None = None,
    ) -> None:
        super().__init__(function.__name__, options, nonce)
        self.function = function
        self.streams = bool(function.__code__.co_flags & GENERATOR)
        self.data = data or FunctionBytes(
            function,
            _installed(options),
            self.sandbox_modules,
            options.refuse_secrets,
            self.outside,
        )
        self._local_names = local_names
        self._annotation: Any = self  # self: not resolved yet
        self._metas: dict[str, tuple[dict[str, str], _core.Function, bytes]] = {}

    @property
    def annotation(self) -> Any:
        """Resolved at the first call: it may name classes that are defined after the function. A
        generator's is of its items, so its result is not checked by it.
        """
        return Any if self.streams else self._resolved()

    @property
    def named_types(self) -> dict[str, type]:
        if self._types is None:
            self._types = types.named_types(self._resolved())
        return self._types

    def _resolved(self) -> Any:
        if self._annotation is self:
            assert self.function is not None
            self._annotation = types.return_annotation(self.function, self._local_names)
        return self._annotation

    def watch(self, code: _core.Function) -> Watch | None:
        return self.data.watch(code)

    def code(self) -> _core.Function:
        if self._types is None:
            self._refuse_acting_fields()
        return self.data.current()

    def _refuse_acting_fields(self) -> None:
        """Checks the classes that the annotation names before anything is run."""
        for kind in self.named_types.values():
            seen = validation(kind)
            if seen.acting:
                self._types = None
                raise SerializationError(
                    f"{self.name} cannot return what it is annotated with: {seen.refusal}",
                    hint="annotate that field with str, and convert it where it is used",
                    path=seen.acting,
                    type_name=kind.__qualname__,
                )

    def meta(self, code: _core.Function, mode: str = "") -> bytes:
        sources = self.data.sources
        known = self._metas.get(mode)
        if known is not None and known[0] is sources and (known[1] is code or not self.shared):
            return known[2]
        fields = {"mode": mode or "function", "sources": sources, **self._common_meta(code)}
        if self.data.reads_sources:
            fields["reads_sources"] = True
        meta = pickle.dumps(fields, 5)
        if _is_plain(self) and not (mode and self.shared) and not self.data.reads_sources:
            kind = _PLAIN_CHUNK if mode else _PLAIN_KEPT if self.shared else _PLAIN
            meta = kind + meta
        self._metas[mode] = (sources, code, meta)
        return meta


class TextTarget(Target):
    """A function `name` that the text defines. The host never compiles the text."""

    def __init__(
        self, source: str, name: str, options: Options, nonce: str, filename: str = "program.py"
    ) -> None:
        super().__init__(name, options, nonce)
        self.source = source
        self.filename = filename
        self._code: _core.Function | None = None
        self._metas: dict[str, bytes] = {}

    @property
    def identity(self) -> str:
        return f"{self.name} of {self.code().sha256}"

    def watch(self, code: _core.Function) -> Watch | None:
        return [], [], []

    def code(self) -> _core.Function:
        if self._code is None:
            self._code = _core.Function(self.source.encode("utf-8", "surrogatepass"))
        return self._code

    def meta(self, code: _core.Function, mode: str = "") -> bytes:
        known = self._metas.get(mode)
        if known is not None:
            return known
        fields = {
            "mode": "function_source",
            "name": self.name,
            "filename": self.filename,
            "chunk": mode == "chunk",
            **self._common_meta(code),
        }
        self._metas[mode] = pickle.dumps(fields, 5)
        return self._metas[mode]


class ProgramTarget(TextTarget):
    """A whole program: its result is None, and it has an exit code. Its input comes as arguments of
    the call, named `args`, `stdin` and `files`, and never before the call.
    """

    is_program = True
    annotation = None

    def with_source(self, source: str) -> ProgramTarget:
        """The same for another program, whose pool and limits are the same."""
        made = ProgramTarget.__new__(type(self))
        vars(made).update(vars(self))
        made.source = source
        made._code = None
        made._metas = {}
        made.fast_value = made.fast_outcome = None
        made.fast_value_key = made.fast_outcome_key = ()
        return made

    def fields(self) -> dict[str, Any]:
        """What the code of a cell is given of the program, besides its text."""
        return {"filename": self.filename}

    def meta(self, code: _core.Function, mode: str = "") -> bytes:
        if mode not in self._metas:
            fields = {"mode": "program", **self.fields(), **self._common_meta(code)}
            meta = pickle.dumps(fields, 5)
            self._metas[mode] = (
                _PLAIN_PROGRAM + meta if _is_plain(self) and not self.shared else meta
            )
        return self._metas[mode]

    def pickle(self, args: Sequence[Any], kwargs: dict[str, Any]) -> tuple[bytes, list[Any]]:
        given = {name: x for name, x in kwargs.items() if x or x == b""}
        return (pickle.dumps(((), given), 5), []) if given else super().pickle((), {})


def _is_plain(target: Target) -> bool:
    """Whether a cell can serve it by the fast path (wire/cell_frame.h)."""
    terms = target.terms
    if target.options.tools or target.streams:
        return False
    return not terms.cpu_ms and terms.result_bytes >= _core.INLINE_BYTES


def outside(options: Options) -> Tools:
    if not options.tools:
        return NO_TOOLS
    named = [(tool.name, one) for tool in options.tools for one in (tool, tool.fn)]
    return Tools(named)


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else milliseconds(seconds)


def _installed(options: Options) -> tuple[str, ...] | None:
    """Requirements whose modules a function finds inside. None: an image has others."""
    environment = options.environment
    if environment is not None and environment.base:
        return None
    return (options.dependencies or ()) + (environment.names if environment else ())


def _policy_hash(options: Options) -> int:
    """64 bits that identify limits, network, mounts and isolation: equal for equal policies. Values
    that may be secret are left out.
    """
    import hashlib

    text = repr([(name, getattr(options, name)) for name in POLICY_FIELDS if name != "env"])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _title(options: Options) -> str:
    names = [item.split(";")[0].strip() for item in options.dependencies or ()]
    names += options.node_dependencies
    if not names:
        return "an environment with no packages"
    more = f" and {len(names) - 4} more" if len(names) > 4 else ""
    return f"{', '.join(names[:4])}{more}"
