# SPDX-License-Identifier: Apache-2.0
"""A backend of joblib: what `joblib.Parallel` runs, and with it scikit-learn's `n_jobs=`, runs in
cells. Importing this module registers it.

    import hutch.joblib
    import joblib

    with joblib.parallel_config("hutch", dependencies=["numpy"], n_jobs=4):
        joblib.Parallel()(joblib.delayed(work)(item) for item in items)

Keywords are those of `@sandbox`. What the functions return comes back as data: a fitted estimator
or another object of a class does not.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import joblib
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

from hutch._errors import SerializationError
from hutch._program import function

# As text, since this module is not inside.
_RUN = """
def run(items):
    return [function(*args, **kwargs) for function, args, kwargs in items]
"""


class HutchBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """See the module. Short calls are put together, so that many share one cell."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(self, nesting_level: int | None = None, **keywords: Any) -> None:
        super().__init__(nesting_level=nesting_level)
        self._run = function(_RUN, "run", **keywords)
        self._env = dict(keywords.get("env") or {})
        self._lock = threading.Lock()
        self._futures: set[Future[Any]] = set()
        self._counts = weakref.WeakKeyDictionary[Future[Any], int]()  # of what each was given

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        if n_jobs == 0:
            raise ValueError("n_jobs == 0 in Parallel has no meaning")
        if n_jobs is None:
            return 1
        return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)

    def configure(self, n_jobs: int = 1, parallel: Any = None, **settings: Any) -> int:
        self.parallel = parallel
        if self.inner_max_num_threads is not None:
            threads = dict.fromkeys(self.MAX_NUM_THREADS_VARS, str(self.inner_max_num_threads))
            self._run = self._run.options(env=threads | self._env)
        return self.effective_n_jobs(n_jobs)

    def submit(self, func: Any, callback: Callable[[Any], None] | None = None) -> Future[Any]:
        items = list(func.items)
        future: Future[Any] = self._run.submit(items)
        with self._lock:
            self._futures.add(future)
            self._counts[future] = len(items)
        future.add_done_callback(self._forget)
        if callback is not None:
            future.add_done_callback(callback)
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> list[Any]:
        """Raises SerializationError where a function has changed how many results there are: they
        would be those of other calls.
        """
        results: Any = out.result()
        with self._lock:
            count = self._counts[out]
        if type(results) is not list or len(results) != count:
            found = len(results) if type(results) is list else "no list"
            raise SerializationError(
                f"calls of joblib that ran in one cell: {count}; results that it gave: {found}",
                hint="one of the functions has changed what runs it: run that one by itself",
                path="result",
            )
        return results

    def abort_everything(self, ensure_ready: bool = True) -> None:
        with self._lock:
            futures = list(self._futures)
        for future in futures:
            future.cancel()

    def terminate(self) -> None:
        self.reset_batch_stats()

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._futures.discard(future)


joblib.register_parallel_backend("hutch", HutchBackend)
