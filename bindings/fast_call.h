// SPDX-License-Identifier: Apache-2.0

// A whole warm call behind one entry from Python. The package would run some forty functions for
// it, which is most of a warm call's time where other code has filled the caches since.
//
// It takes a call only if nothing changed since the last one: connection, pool, and everything that
// travels with the function. All other calls, and every end but a plain return, are left to the
// package. Thread contract: everything here needs the GIL.
#pragma once

#include <optional>
#include <string>
#include <utility>

#include "bindings/client.h"
#include "bindings/python.h"

namespace hutch {

// What a FastCall needs of the package: functions that outlive it.
struct FastHooks {
  py::dict home;         // the module that has the process's connection as `_current`
  py::object streams;    // (target) -> what shows a call's output: .feed(stream, bytes), .finish()
  py::object check;      // (value, target) -> None, or raises SerializationError
  py::object conclude;   // (target, CallResult, pool, args, kwargs) -> what is wanted, or raises
  py::object failed;     // (target, Error, begun, args, kwargs) -> what is wanted, or raises
  py::type not_as_said;  // SerializationError
};

// Where an Outcome is wanted, not its value: the classes, and what stands in it.
struct AsOutcome {
  py::object outcome_type, usage_type;
  py::object enforcement;
  bool program = false;
};

// Where the pool of a call must still be found: `connection` in FastHooks::home, and `pool` in
// `pools` by its name.
struct KnownPool {
  py::object connection;
  py::dict pools;
  py::object name, pool;
};

class FastCall {
 public:
  // `shows`: whether FastHooks::streams is asked for.
  FastCall(FastHooks hooks, KnownPool pool, py::object client, std::string key, py::bytes meta,
           py::object function, const CallTerms& terms, uint64_t result_bytes, bool shows,
           std::optional<AsOutcome> as_outcome);

  // NotImplemented: something is not as it was; nothing was done. `state`: a FastState of
  // hutch/_calls/target.py, which the target holds itself, for the garbage collector.
  py::object Call(const py::object& target, const py::tuple& state, const py::tuple& args,
                  const py::dict& kwargs) const;

 private:
  bool IsCurrent(const py::tuple& state) const;
  // What the caller wants of a call that returned `value`: it, or an Outcome that has it.
  py::object Wanted(const CallResult& result, py::object value) const;
  py::object Concluded(const py::object& target, CallResult result, const py::tuple& args,
                       const py::dict& kwargs) const;

  FastHooks hooks_;
  KnownPool pool_;
  py::object client_;
  std::string key_;
  py::bytes meta_;
  py::object function_;
  CallTerms terms_;
  uint64_t result_bytes_;
  bool shows_;
  std::optional<AsOutcome> as_outcome_;
};

void BindFastCall(py::module_& m);

}  // namespace hutch
