// SPDX-License-Identifier: Apache-2.0

// What became of a call, and what Hutch failed at, as Python sees them. Thread contract: everything
// here needs the GIL.
#pragma once

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>

#include "bindings/python.h"
#include "client/client.h"
#include "wire/error.h"

namespace hutch {

// hutch._core.Error.
py::object& CoreError();
[[noreturn]] void Raise(const Error& error);

inline double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

struct PyPayload {
  std::unique_ptr<Payload> payload;
};

// Fields that the caller must not see are left empty.
struct CallResult {
  CallRecord record;
  const char* status = "";
  const char* limit = "";
  py::object exit_code = py::none(), signal = py::none(), payload = py::none();
  // Known to the caller only: seconds until the pool was there, and of waits before this one.
  double environment_sec = 0, worker_sec = 0, queued_sec = 0;

  const CallOutcome& outcome() const { return record.outcome; }
  std::string CallId() const {
    char id[17];
    std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(outcome().call_id));
    return id;
  }
};

py::dict UsageOf(const CallResult& result);
py::list NetworkOf(const CallResult& result);

// What was seen from outside, as hutch.Outcome has it: everything but the value and the error.
// Python code that sets twenty fields costs as much as the rest of a warm call. `network` is left
// empty.
py::object OutcomeOf(const CallResult& result, const py::object& outcome_type,
                     const py::object& usage_type, const py::object& enforcement);

// Raises where the worker was lost.
CallResult MakeResult(CallRecord record);

}  // namespace hutch
