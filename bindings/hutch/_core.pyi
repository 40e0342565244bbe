# SPDX-License-Identifier: Apache-2.0
"""What the C++ side offers to the package. Thin on purpose: a connection to the agent, calls, and
the result decoder.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from hutch._options.keyword_types import SentKeywords

VERSION: str
FRAME_VERSION: int
MAX_PAYLOAD: int  # bytes of one frame
INLINE_BYTES: int  # of a result that comes with its reply
NODE_PACKAGE: str
NODE_SHOWN: str

class Error(Exception):
    """What Hutch failed at; made of these, in this order. `code` is one of wire/error.h's names;
    `figures` are {} where they are not given.
    """

    code: str
    message: str
    hint: str
    may_have_run: bool
    figures: dict[str, float]

class DecodeError(ValueError):
    """Bytes from a cell that are not the data they claim to be: `args == (message, path)`."""

class Terms:
    """What holds for every call of a function; 0 means none. `calls_of_cell`: with more than 0,
    calls share cells, each of which serves so many, for `age_of_cell_sec` at the most. `policy`:
    names all that a call may use and reach, for the audit log. `network`: what it was used
    for is waited for with each call.
    """

    timeout_ms: int
    cpu_ms: int
    output_bytes: int
    result_bytes: int
    calls_of_cell: int
    policy: int

    def __init__(
        self,
        *,
        timeout_ms: int,
        cpu_ms: int,
        output_bytes: int,
        result_bytes: int,
        queue_ms: int,
        calls_of_cell: int = 0,
        age_of_cell_sec: float = 0.0,
        policy: int = 0,
        network: bool = False,
        memory_bytes: int = 0,
    ) -> None: ...

class MountSpec(TypedDict):
    """A file or directory of the caller's that is shown inside; `copy`: the name of a copy that is
    shown instead, or "". `device` and `inode` are of what is shown."""

    source: str
    destination: str
    writable: bool
    as_caller: bool
    copy: str
    device: int
    inode: int

class PackageSpec(TypedDict):
    """What is installed. Requirements are normalized and sorted by the caller."""

    requirements: Sequence[str]
    # index_url, extra_index_urls, http_proxy, https_proxy, no_proxy, ca_bundle (PEM text),
    # find_links, netrc (text); npm_sources, npm_credentials (lines of an .npmrc), npm_ca_bundle
    index: Mapping[str, str]
    allow_sdists: bool
    allow_urls: bool
    constraints: Sequence[str]
    lock: str  # the text of one, "": resolved afresh
    base: str  # an OCI image's reference, "": the base image of base_id
    node_requirements: Sequence[str]  # of npm, as "lodash@4"

class LimitSpec(SentKeywords):
    """The options that the agent is sent as they are."""

    hard_limits: bool  # a host that cannot enforce each limit hard is refused

class PoolSpec(PackageSpec, LimitSpec):
    """Everything that decides which worker may serve a call."""

    python_version: str  # "3.11.7"; with `base` what its own has to be, as "3.11"
    platform: str  # "linux_x86_64"
    base_id: str
    runtime_id: str
    links: Sequence[MountSpec]
    venv: Sequence[MountSpec]
    mounts: Sequence[MountSpec]
    preload_given: bool  # False: the direct requirements
    preload: Sequence[str]
    nonce: str  # disable_cache: a fresh value builds afresh
    setup: bytes  # cloudpickle of the setup function, b"": none
    modules: Mapping[str, bytes]  # the caller's `modules=`: relative path to content
    env: Mapping[str, str]
    labels: Mapping[str, str]
    max_calls: int
    warm: int  # cells kept ready; -1: auto
    max_cells: int  # 0: auto
    idle_sec: float
    isolation: str  # "cell"; "container" or "gvisor": a worker for each call
    # Not used by the worker, but allowed and logged by the agent: see Terms.
    timeout_ms: int
    cpu_ms: int
    output_bytes: int
    result_bytes: int
    policy: int
    shared: bool  # one cell for many calls of one client
    allow_network: Sequence[str]  # as egress_rule gives them, sorted
    secrets: Sequence[Mapping[str, Any]]  # host header value paths methods

class Cancel:
    """Cancels a call from any thread: `cancel()` once; the call then ends as "cancelled" (or had
    ended before).
    """

    def __init__(self) -> None: ...
    def cancel(self) -> None: ...
    @property
    def cancelled(self) -> bool: ...

class Payload:
    """A result's bytes: a private, writable, copy-on-write buffer (with the buffer protocol)."""

    @property
    def body_size(self) -> int: ...
    def __len__(self) -> int: ...

class SharedMemory:
    """Zeros that a cell can be lent, and only read, or execute (with the buffer protocol; writable
    here). Raises Error."""

    def __init__(self, size: int, executable: bool = False) -> None: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

class CallResult:
    """What became of one call, before decoding. What is not asked for is not made."""

    status: str  # "returned" "raised" "unencodable" "limit" "died" "cancelled"
    limit: str  # "" or "time" "cpu_time" "memory" "pids" "disk" "result"
    detail: str  # of "died": how the cell broke the protocol, "" otherwise
    # for returned (the value), raised (the error map), unencodable (path, type, hint,
    # message)
    payload: Payload | None
    result_size: int
    # wall_sec cpu_sec peak_memory_bytes waited_sec source ("cell" or "warden")
    # memory_limit_bytes
    usage: dict[str, Any]
    # host port allowed reason suggestion bytes_sent bytes_received count
    network: list[tuple[str, int, bool, str, str, int, int, int, bool]]
    environment_sec: float  # these three are the caller's to say, as parts of the timings
    worker_sec: float
    queued_sec: float
    ended: float  # by time.monotonic: when the reply was here, or the call was over without one

    def as_outcome(self, outcome: type[Any], usage: type[Any], enforcement: str) -> Any:
        """What was seen from outside; `network` is left empty, and timings["receive"] is 0.0."""

Dialogue = Callable[[bool, bytes, int, Callable[[bool], float]], "bytes | None"]

class Turns:
    """A call in turns, for an event loop. One thread at a time."""

    def begin(
        self,
        meta: bytes,
        function: Function,
        arguments: bytes,
        buffers: Sequence[Any],
        terms: Terms,
        output: Callable[[int, bytes], None] | None,
        begun: float,
        dialogue: Dialogue | None,
        cancel: Cancel | None = None,
    ) -> None:
        """Sends it; waits only where there is no cell yet, and no longer than `cancel` lets it.
        `dialogue`: as of Session.call(); gets what is said, and not what is asked.
        """
    def turn(self) -> float | tuple[bytes, int, int] | None:
        """Takes what came since, and never waits. Seconds: until the next turn though `turn_fd` is
        not readable. (data, body_size, number): what is asked, to be answered at some time. None:
        the call is over, and its `end` is to be called.
        """
    turn_fd: int

    def answer(self, number: int, answer: bytes | None) -> bool:
        """The question of that number. None ends the call. True: it is over."""

    def stop_clock(self, stop: bool) -> None:
        """Its time limit stands still until the next answer, or goes on."""

    def cancel(self) -> bool:
        """Ends it. In a session it raises KeyboardInterrupt, as at its time limit, and is killed
        after a grace. True: it is over.
        """
    waits_at_end: bool  # `end` waits for the agent

    def end(self) -> CallResult: ...

class Call(Turns):
    """One call of a pool. One that nothing refers to is killed."""

    def close(self) -> None:
        """Kills it, if it is under way."""

class Session(Turns):
    """A cell that is kept for one call after another. One thread at a time."""

    started: bool
    over: bool  # its cell is gone
    restarts: int  # interpreters that have ended
    restartable: bool  # an interpreter that ends is replaced; else its end is the session's
    worker: str

    def call(
        self,
        meta: bytes,
        function: Function,
        arguments: bytes,
        buffers: Sequence[Any],
        terms: Terms,
        cancel: Cancel | None = None,
        output: Callable[[int, bytes], None] | None = None,
        begun: float = 0.0,
        dialogue: Dialogue | None = None,
    ) -> CallResult:
        """`dialogue(asks, data, body_size, stop_clock)` is called with what the cell says while it
        runs; what it returns, a pickle, answers what the cell asks. None ends the call, as what it
        raises does. Between `stop_clock(True)` and its return, or `stop_clock(False)`, the time
        limit stands still.
        """
    def exchange(self, answer: bytes) -> tuple[bytes, int] | None:
        """Within `dialogue`, while what the cell asks is open: sends this answer, and waits for
        what is asked next, which is open from then on. None: the call is over.
        """
    # While a call runs, on its thread.
    time_left: float  # seconds; inf: it has no limit, or its clock stands
    has_ended: bool  # the interpreter that runs it, as far as that is known yet
    unsettled: bool  # `settle` has something to do, and waits for it
    calling: bool  # a call was sent, and has not ended

    def settle(self) -> None:
        """Between two calls: takes note of an interpreter that has ended meanwhile."""

    def interrupt(self) -> None:
        """Has the call that runs raise KeyboardInterrupt, or else the next one. On any thread."""

    def take_back_interrupt(self) -> None:
        """The next call is not interrupted, though that was asked for. On any thread."""

    def restart(self) -> bool:
        """Ends the interpreter. False: the session is over."""
    # Of its commands, on any thread.
    def send_command(self, descriptors: Sequence[int]) -> bool:
        """`descriptors`: its channel, stdout, stderr and its order (wire/cell_frame.h). False:
        there is no interpreter that takes it.
        """
    def look_for_commands(self) -> None:
        """An interpreter that runs a call looks for commands."""
    def count_use(self) -> None:
        """The agent hears that the session is in use."""
    def tell_command(
        self, id: int, ending: str, limit: str, run_sec: float, cpu_sec: float, policy: int
    ) -> None:
        """The agent hears that a command is over. What it says that it took is not counted as of
        the background.
        """

    def last_end(self, since: int) -> tuple[CallResult, bool] | None:
        """How the last interpreter that has ended did, if `since` had ended before it, or more, and
        whether that was during a call. None: none has, or nobody knows.
        """

    def close(self) -> None: ...
    def abandon(self) -> None:
        """In a forked child, where it is the parent's."""

class FastHooks:
    def __init__(
        self,
        *,
        home: dict[str, Any],
        streams: Callable[[Any], Any],
        check: Callable[[Any, Any], None],
        conclude: Callable[..., Any],
        failed: Callable[..., Any],
        not_as_said: type[Exception],
    ) -> None: ...

class AsOutcome:
    """Has a FastCall give an Outcome, not its value."""

    def __init__(
        self, outcome: type[Any], usage: type[Any], enforcement: str, program: bool
    ) -> None: ...

class KnownPool:
    """Where a FastCall's pool must still be found: `connection` is the process's, and has `pool`
    under `name` in `pools`.
    """

    def __init__(
        self, connection: object, pools: dict[str, Any], name: str, pool: object
    ) -> None: ...

class FastCall:
    """A warm call of one function, whole; bindings/fast_call.h says more."""

    def __init__(
        self,
        *,
        hooks: FastHooks,
        pool: KnownPool,
        client: Client,
        key: str,
        meta: bytes,
        function: Function,
        terms: Terms,
        result_bytes: int,
        shows: bool,
        as_outcome: AsOutcome | None,
    ) -> None: ...
    def __call__(
        self, target: Any, state: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any: ...

class OpenCall:
    """A call that is over, except for the warden's report."""

class Client:
    """One process's connection to one agent. Thread-safe; calls of different threads run side by
    side.

    Not usable in a forked child: a child makes its own (`pid`: of the process that made it).
    """

    pid: int
    pressure: float  # of the host, from 0 to 1, as reported with the latest cell

    def __init__(self, socket: str, connect_uid: int = -1) -> None:
        """Connects and shakes hands. `connect_uid`: the effective uid to connect with (root and its
        service user).
        """

    def prepare(
        self,
        spec: PoolSpec,
        timeout_ms: int,
        progress: Callable[[str, str, float, float], None] | None = None,
        no_pool: bool = False,
    ) -> dict[str, Any]:
        """Builds or finds the environment, and a pool on it unless `no_pool`, which has the key "";
        returns {"key", "digest", "lock", "notes", "built", "build_sec", "enforcement"}.

        `progress(stage, text, done, total)` is called on this thread. Raises Error (install_failed,
        missing_base,
        missing_runtime, timeout, ...).
        """

    def warm(self, key: str, cells: int, timeout_ms: int) -> int:
        """Waits until at least `cells` cells (-1: the pool's own number) are ready; returns how
        many are.
        """

    def call(
        self,
        key: str,
        meta: bytes,
        function: Function,
        arguments: bytes,
        buffers: Sequence[Any],
        terms: Terms,
        cancel: Cancel | None = None,
        output: Callable[[int, bytes], None] | None = None,
        begun: float = 0.0,
        dialogue: Dialogue | None = None,
        streams: bool = False,
    ) -> CallResult:
        """Runs one call in a fresh cell. Blocks without the GIL; Ctrl-C kills the cell, then
        raises. `begun`: by time.monotonic, since when its "send" counts; 0: since now. `dialogue`:
        as of Session.call(). `streams`: the size of all that the cell says has no limit.

        `buffers` are contiguous buffer objects, sent out of band. Raises Error: busy (queue_ms ran
        out), worker_failed,
        unavailable (may_have_run tells), unknown_pool.
        """

    def call_in_turns(self, key: str) -> Call:
        """One call of a prepared pool, to be begun."""

    def session(self, key: str, idle_ms: int, id: str) -> Session:
        """In a prepared pool; its cell is leased by its first call. `idle_ms`: the agent ends it
        when it was not used for so long; 0: never. `id`: its name in lists and logs.
        """

    def start(
        self,
        key: str,
        meta: bytes,
        function: Function,
        arguments: bytes,
        buffers: Sequence[Any],
        terms: Terms,
        output: bool,
        begun: float,
    ) -> int:
        """Starts the same call without waiting for it, and gives its number. Never blocks. `next`
        reports how it ended and, with `output`, what it prints.
        """

    def cancel(self, call: int) -> None: ...
    def next(self, patience_sec: float) -> list[tuple[int, Literal[0, 1, 2, 3, 4], Any]]:
        """What happened to the calls that were started: (number, 0 or 1, what it printed as
        bytes), or, once for each, (number, 2, its CallResult), (number, 3, an OpenCall: `conclude`
        gives its CallResult), (number, 4, an Error). Waits without the GIL; [] when `patience_sec`
        passed, or at `close`. One thread at a time.
        """

    def conclude(self, open: OpenCall) -> CallResult: ...
    def end_background_calls(self) -> None:
        """To be called when no call that was started is in flight any more."""

    def status(self) -> str:
        """The agent's state as JSON text."""

    def sessions(self) -> str:
        """The open sessions of all clients, as JSON text."""

    def metrics(self, as_json: bool = False) -> str:
        """The agent's metrics, in Prometheus' text format 0.0.4 or as JSON text."""

    def reload(self) -> None: ...
    def environments(self) -> str:
        """What is in the store, as JSON text."""

    def remove_environment(self, digest: str) -> bool: ...
    def stop_agent(self, drain_ms: int) -> None:
        """Has the agent finish what runs (at most `drain_ms`), remove its workers and exit: returns
        then.
        """

    def abandon(self) -> None:
        """In a forked child: gives up the child's share of the connection. Nothing may be done with
        this object afterwards.
        """

    def close(self) -> None: ...

class StopNotice:
    """That the agent begins to stop. Raises Error as Client() does."""

    def __init__(self, socket: str, connect_uid: int = -1) -> None: ...
    def fileno(self) -> int:
        """Readable: there is something to read."""

    def read(self) -> int | None:
        """For how many milliseconds the agent waits for what runs, once, when it begins to stop;
        None: it has said nothing new. Never waits. Raises Error ("unavailable") when it is gone.
        """

    def close(self) -> None:
        """Also in a forked child, which has a share of the connection. Nothing may be done with
        this object afterwards.
        """

class Function:
    """Bytes of a function or program, placed once (in a sealed memfd when large) and sent with each
    of its calls.
    """

    def __init__(self, data: bytes) -> None: ...
    @property
    def data(self) -> bytes: ...
    @property
    def sha256(self) -> str: ...

def decode(
    owner: Payload | bytes, body_size: int, types: Mapping[str, type], result_bytes: int = 0
) -> Any:
    """A result's bytes as Python objects of the closed set; raises DecodeError. `types`: names that
    may be built. `result_bytes`: the result's limit, the values may take twice that here.
    """

def distinct(items: list[Any]) -> bool:
    """Whether no two are equal; raises ValueError where finding out would take too long."""

def egress_rule(text: str) -> str:
    """The normal form of an entry of `allow_network`; raises Error ("invalid_argument")."""

def normal_host(name: str) -> str:
    """The normal form of a hostname; "" for an invalid one."""

def paths() -> dict[str, Any]:
    """Where things are: service_user uid gid home run_dir state_dir instance agent_socket
    agent_container.
    """

def open_beneath(directory: int, path: bytes, flags: int, mode: int = 0) -> int:
    """A descriptor of a path below an open directory, by openat2(): no symbolic link is followed,
    and nothing leads out of the directory. Close-on-exec. Raises OSError.
    """

def command_frame(data: bytes) -> tuple[str, int, int, int, int, bytes] | None:
    """What came on the channel of a command: "begun", "ended", "raised" or "done", the fields a and
    b of its header, CPU time in us, peak in KiB, and its payload. None: it is no such frame.
    """

def printed_text(data: bytes) -> str:
    """UTF-8; a byte that is none of it is \\xff, as by "backslashreplace", but quickly."""

def printed_prefix(data: bytes) -> int:
    """How many bytes of it are not the beginning of a character whose end is still to come."""

class Output:
    """What is kept of two streams: `limit` bytes of both, the beginning and the end."""

    def __init__(self, limit: int) -> None: ...
    def add(self, stream: int, data: bytes) -> None: ...
    def size(self, stream: int) -> int: ...
    def truncated(self, stream: int) -> bool: ...
    def text(self, stream: int) -> str: ...
