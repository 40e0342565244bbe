// SPDX-License-Identifier: Apache-2.0

#include "bindings/fast_call.h"

#include <string_view>
#include <utility>

#include "bindings/decode.h"
#include "bindings/plain_arguments.h"

namespace hutch {
namespace {

// The positions in a FastState of hutch/_calls/target.py.
enum State : Py_ssize_t {
  kWatched = 1,
  kAttributes = 2,
  kCells = 3,
  kMissing = 4,
  kTypes = 5,
  kAnnotation = 6,
};

PyObject* Item(PyObject* tuple, Py_ssize_t i) { return PyTuple_GET_ITEM(tuple, i); }

bool Is(PyObject* found, PyObject* expected) {
  if (found == nullptr) PyErr_Clear();
  return found == expected;
}

// (mapping, key, value) for each.
bool AllWatched(PyObject* watched) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(watched); ++i) {
    PyObject* one = PyList_GET_ITEM(watched, i);
    if (!Is(PyDict_GetItemWithError(Item(one, 0), Item(one, 1)), Item(one, 2))) return false;
  }
  return true;
}

// (owner, name, value) for each.
bool AllAttributes(PyObject* attributes) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(attributes); ++i) {
    PyObject* one = PyList_GET_ITEM(attributes, i);
    const auto found =
        py::reinterpret_steal<py::object>(PyObject_GetAttr(Item(one, 0), Item(one, 1)));
    if (!Is(found.ptr(), Item(one, 2))) return false;
  }
  return true;
}

// (cell, value) for each; `missing` is the value of an empty one.
bool AllCells(PyObject* cells, PyObject* missing) {
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(cells); ++i) {
    PyObject* one = PyList_GET_ITEM(cells, i);
    PyObject* content = PyCell_GET(Item(one, 0));
    if ((content == nullptr ? missing : content) != Item(one, 1)) return false;
  }
  return true;
}

}  // namespace

FastCall::FastCall(FastHooks hooks, KnownPool pool, py::object client, std::string key,
                   py::bytes meta, py::object function, const CallTerms& terms,
                   uint64_t result_bytes, bool shows, std::optional<AsOutcome> as_outcome)
    : hooks_(std::move(hooks)),
      pool_(std::move(pool)),
      client_(std::move(client)),
      key_(std::move(key)),
      meta_(std::move(meta)),
      function_(std::move(function)),
      terms_(terms),
      result_bytes_(result_bytes),
      shows_(shows),
      as_outcome_(std::move(as_outcome)) {}

bool FastCall::IsCurrent(const py::tuple& state) const {
  static PyObject* const kCurrent = PyUnicode_InternFromString("_current");
  PyObject* const seen = state.ptr();
  return Is(PyDict_GetItemWithError(hooks_.home.ptr(), kCurrent), pool_.connection.ptr()) &&
         Is(PyDict_GetItemWithError(pool_.pools.ptr(), pool_.name.ptr()), pool_.pool.ptr()) &&
         AllWatched(Item(seen, kWatched)) && AllAttributes(Item(seen, kAttributes)) &&
         AllCells(Item(seen, kCells), Item(seen, kMissing));
}

py::object FastCall::Call(const py::object& target, const py::tuple& state, const py::tuple& args,
                          const py::dict& kwargs) const {
  const Clock::time_point begun = Clock::now();
  if (!IsCurrent(state)) return py::reinterpret_borrow<py::object>(Py_NotImplemented);
  std::optional<Arguments> plain;
  if (PyDict_GET_SIZE(kwargs.ptr()) == 0) plain = PlainArguments(args);
  const auto [arguments, buffers] =
      plain ? std::move(*plain) : target.attr("pickle")(args, kwargs).cast<Arguments>();
  py::object streams;
  PyOutput output;
  if (shows_) {
    output = [&](int stream, const py::bytes& text) {
      if (!streams) streams = hooks_.streams(target);
      streams.attr("feed")(stream, text);
    };
  }
  CallResult result;
  try {
    const CallBytes bytes(meta_, function_, arguments, buffers, terms_, begun);
    result = MakeResult(client_.cast<PyClient&>().Call(key_, bytes.request, nullptr, output));
  } catch (py::error_already_set& error) {
    if (!error.matches(CoreError())) throw;
    return hooks_.failed(target, error.value(), Seconds(begun.time_since_epoch()), args, kwargs);
  }
  if (streams) streams.attr("finish")();
  if (std::string_view(result.status) != "returned" || result.payload.is_none() ||
      (as_outcome_ && !result.record.network.empty()))
    return Concluded(target, std::move(result), args, kwargs);
  try {
    const PyPayload& held = result.payload.cast<const PyPayload&>();
    py::object value = Decode(
        result.payload, held.payload->data(), held.payload->size(), held.payload->body_size(),
        py::reinterpret_borrow<py::dict>(Item(state.ptr(), kTypes)), result_bytes_);
    PyObject* const annotation = Item(state.ptr(), kAnnotation);
    if (annotation != Py_None && reinterpret_cast<PyObject*>(Py_TYPE(value.ptr())) != annotation)
      hooks_.check(value, target);
    return Wanted(result, std::move(value));
  } catch (py::error_already_set& error) {
    // The package decodes again, with the classes of the arguments, or reports the error.
    if (!error.matches(DecodeErrorType()) && !error.matches(hooks_.not_as_said)) throw;
  }
  return Concluded(target, std::move(result), args, kwargs);
}

py::object FastCall::Wanted(const CallResult& result, py::object value) const {
  if (!as_outcome_) return value;
  const py::object outcome = OutcomeOf(result, as_outcome_->outcome_type, as_outcome_->usage_type,
                                       as_outcome_->enforcement);
  outcome.attr("value") = std::move(value);
  if (as_outcome_->program) outcome.attr("exit_code") = 0;
  outcome.attr("timings")["receive"] = Seconds(Clock::now() - result.outcome().ended);
  return outcome;
}

py::object FastCall::Concluded(const py::object& target, CallResult result, const py::tuple& args,
                               const py::dict& kwargs) const {
  return hooks_.conclude(target, py::cast(std::move(result)), pool_.pool, args, kwargs);
}

void BindFastCall(py::module_& m) {
  py::class_<FastHooks>(m, "FastHooks")
      .def(py::init([](py::dict home, py::object streams, py::object check, py::object conclude,
                       py::object failed, py::type not_as_said) {
             return FastHooks{std::move(home),     std::move(streams), std::move(check),
                              std::move(conclude), std::move(failed),  std::move(not_as_said)};
           }),
           py::kw_only(), py::arg("home"), py::arg("streams"), py::arg("check"),
           py::arg("conclude"), py::arg("failed"), py::arg("not_as_said"));
  py::class_<AsOutcome>(m, "AsOutcome")
      .def(py::init([](py::object outcome, py::object usage, py::object enforcement, bool program) {
             return AsOutcome{std::move(outcome), std::move(usage), std::move(enforcement),
                              program};
           }),
           py::arg("outcome"), py::arg("usage"), py::arg("enforcement"), py::arg("program"));
  py::class_<KnownPool>(m, "KnownPool")
      .def(py::init([](py::object connection, py::dict pools, py::object name, py::object pool) {
             return KnownPool{std::move(connection), std::move(pools), std::move(name),
                              std::move(pool)};
           }),
           py::arg("connection"), py::arg("pools"), py::arg("name"), py::arg("pool"));
  py::class_<FastCall>(m, "FastCall")
      .def(py::init<FastHooks, KnownPool, py::object, std::string, py::bytes, py::object,
                    const CallTerms&, uint64_t, bool, std::optional<AsOutcome>>(),
           py::kw_only(), py::arg("hooks"), py::arg("pool"), py::arg("client"), py::arg("key"),
           py::arg("meta"), py::arg("function"), py::arg("terms"), py::arg("result_bytes"),
           py::arg("shows"), py::arg("as_outcome"))
      .def("__call__", &FastCall::Call, py::arg("target"), py::arg("state"), py::arg("args"),
           py::arg("kwargs"));
}

}  // namespace hutch
