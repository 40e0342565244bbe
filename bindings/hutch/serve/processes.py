# SPDX-License-Identifier: Apache-2.0
"""uvicorn's supervisor of several processes, which hands SIGHUP on: each reads agent.toml again,
where uvicorn would end them and start others.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress

from uvicorn.supervisors.multiprocess import Multiprocess


class Processes(Multiprocess):
    def handle_hup(self) -> None:
        for one in self.processes:
            if one.pid is not None:
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGHUP)
