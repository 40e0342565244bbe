# SPDX-License-Identifier: Apache-2.0
"""`hutch serve --unit`: the server as a service of an ordinary user, by a systemd unit on the host
or by a Quadlet file, which runs it in a container beside the host's agent. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_SERVICE = """\
[Unit]
Description=Programs over HTTP, in sandboxes (hutch serve)

[Service]
{environment}ExecStart={command}
Restart=on-failure
KillMode=mixed
TimeoutStopSec={stop_sec}
LimitNOFILE=65536

[Install]
WantedBy=default.target
"""
_CONTAINER = """\
[Unit]
Description=Programs over HTTP, in sandboxes (hutch serve)

[Container]
Image={image}
Exec={command}
Network=host
UserNS=keep-id
ReadOnly=true
DropCapability=all
NoNewPrivileges=true
{environment}Environment={home}
Environment={runtime}
Environment={socket}
Volume={run_dir}:{run_dir}
{settings}
[Service]
ExecStartPre={agent}
Restart=on-failure
TimeoutStopSec={stop_sec}

[Install]
WantedBy=default.target
"""


def text(
    paths: Mapping[str, Any],
    home: str,
    python: str,
    options: Sequence[str],
    drain_sec: float,
    image: str,
    chosen_home: str = "",
    has_settings: bool = False,
) -> str:
    """Both files, each under its place. `options`: those of `hutch serve`; `chosen_home`:
    HUTCH_HOME; `has_settings`: there is an agent.toml. Raises ValueError for root.
    """
    if paths["service_user"]:
        raise ValueError(
            "a user service belongs to an ordinary user: print its files as the one who runs it"
        )
    run_dir, state_dir = str(paths["run_dir"]), str(paths["state_dir"])
    runtime = run_dir.rpartition("/")[0]
    environment = ""
    if chosen_home:
        environment = f"Environment={_word(f'HUTCH_HOME={chosen_home}')}\n"
    settings = ""
    if has_settings:
        place = f"{state_dir}/agent.toml"
        settings = f"Volume={_word(place)}:{_word(place)}:ro\n"
    common = {"environment": environment, "stop_sec": int(drain_sec) + 10}
    service = _SERVICE.format(command=_line([python, "-m", "hutch", "serve", *options]), **common)
    container = _CONTAINER.format(
        image=image,
        command=_line(["hutch", "serve", *options]),
        home=_word(f"HOME={home}"),
        runtime=_word(f"XDG_RUNTIME_DIR={runtime}"),
        socket=_word(f"HUTCH_SOCKET={paths['agent_socket']}"),
        run_dir=_word(run_dir),
        settings=settings,
        agent=_line([python, "-m", "hutch", "agent", "start"]),
        **common,
    )
    return (
        f"# ~/.config/systemd/user/hutch-serve.service\n{service}\n"
        f"# ~/.config/containers/systemd/hutch-serve.container\n{container}"
    )


def _line(words: Sequence[str]) -> str:
    return " ".join(_word(one.replace("$", "$$")) for one in words)


def _word(text: str) -> str:
    """As systemd reads it: with the sign of its specifiers doubled, in quotes where need be."""
    if any(ord(letter) < 32 for letter in text):
        raise ValueError(f"{text!r} has a control character, which no unit may hold")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    return f'"{text}"' if not text or set(text) & set(" '\";") else text
