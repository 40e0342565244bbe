// SPDX-License-Identifier: Apache-2.0

// The whole of a warm call behind one entry from Python: what it would take the package some forty
// functions to do is most of a warm call's time where the caches have been used by others since.
//
// It takes a call only if all is as it was at the last one: connection, pool, and everything that
// travels with the function. Otherwise, and for all but a plain return, the package has its say.
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

class FastCall {
 public:
  // `what`: (connection, pools, name, pool), of which each must be where it was: the connection in
  // `home`, the pool in `pools` by its name. `shows`: whether `streams` is asked for.
  FastCall(FastHooks hooks, py::tuple what, py::object client, std::string key, py::bytes meta,
           py::object function, const CallTerms& terms, uint64_t result_bytes, bool shows,
           std::optional<AsOutcome> as_outcome);

  // NotImplemented: something is not as it was; nothing was done. `state`: (this, watched,
  // attributes, cells, missing, types, annotation), of which the garbage collector has to know and
  // which the target therefore holds itself: see Survey, and Target.named_types and .annotation.
  py::object Call(const py::object& target, const py::tuple& state, const py::tuple& args,
                  const py::dict& kwargs) const;

 private:
  bool IsCurrent(const py::tuple& state) const;
  // Of a call that returned it.
  py::object Wanted(const CallResult& result, py::object value) const;
  py::object Concluded(const py::object& target, CallResult result, const py::tuple& args,
                       const py::dict& kwargs) const;

  FastHooks hooks_;
  py::tuple what_;
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
