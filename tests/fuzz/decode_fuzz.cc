// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the decoder of results, in an interpreter of its own: whatever the payload is, it
// becomes a value or a DecodeError, without a leak, and without an allocation that its size does
// not explain (the runner sets libFuzzer's limits).
//
// An input is a FuzzedPayload. Inputs that are refused are run, and not kept: so every mutant is a
// few steps away from a valid result, and reaches what lies behind the parser.
#include <pybind11/embed.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "bindings/decode.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/payload_mutator.h"
#include "tests/fuzz/tally.h"

namespace py = pybind11;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr uint64_t kLeakCheckEvery = 1 << 14;
constexpr Py_ssize_t kSpareObjects = 20'000;  // what libraries make on first use

// Lives until the process ends: an interpreter that is ended twice as often crashes as not.
struct Interpreter {
  Interpreter() {
    PyConfig config;
    PyConfig_InitPythonConfig(&config);
    config.install_signal_handlers = 0;
    PyConfig_SetBytesString(&config, &config.executable, HUTCH_FUZZ_PYTHON);
    py::initialize_interpreter(&config);
    const py::object path = py::module_::import("sys").attr("path");
    for (const char* place : {HUTCH_SOURCE "/bindings", HUTCH_SOURCE "/tests/fuzz"})
      path.attr("insert")(0, place);
    auto core = py::module_::create_extension_module("hutch._core", nullptr, new PyModuleDef());
    hutch::BindDecode(core);
    error = core.attr("DecodeError");
    py::module_::import("sys").attr("modules")["hutch._core"] = core;
    types = py::module_::import("named").attr("TYPES");
    // What is imported later would count as leaked.
    for (const char* library : {"numpy", "pandas", "pyarrow", "polars", "PIL.Image"}) {
      try {
        py::module_::import(library);
      } catch (const py::error_already_set&) {
        continue;
      }
    }
    collect = py::module_::import("gc").attr("collect");
    tracked = py::module_::import("gc").attr("get_objects");
  }
  py::object error, types, collect, tracked;
};

Interpreter& Python() {
  static auto* interpreter = new Interpreter;
  return *interpreter;
}

void RequireNoLeak() {
  static Py_ssize_t at_first = 0;
  Python().collect();
  const Py_ssize_t now = py::len(Python().tracked());
  if (at_first == 0) at_first = now;
  if (now > at_first + kSpareObjects) {
    std::fprintf(stderr, "leak: %zd containers, at first %zd\n", now, at_first);
    std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  Python();
  return 0;
}

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  hutch::FuzzedPayload payload = hutch::FuzzedPayload::From(data, size);
  hutch::Mutate(payload, seed, [](std::string& body) {
    const size_t room = body.size() + 64;
    const size_t had = body.size();
    body.resize(room);
    body.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(body.data()), had, room));
  });
  const std::string text = payload.Text();
  if (text.size() > max_size) return size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::FuzzedPayload input = hutch::FuzzedPayload::From(data, size);
  const std::string whole = input.body + input.buffers;
  bool accepted = false;
  {
    const hutch::RunBudget budget(whole.size());
    // As the client does: arrays refer to a payload of its own that can be written to.
    py::object owner = py::reinterpret_steal<py::object>(
        PyByteArray_FromStringAndSize(whole.data(), static_cast<Py_ssize_t>(whole.size())));
    try {
      const py::object value =
          hutch::Decode(owner, PyByteArray_AS_STRING(owner.ptr()), whole.size(), input.body.size(),
                        py::dict(Python().types));
      accepted = true;
    } catch (const py::error_already_set& error) {
      if (!error.matches(Python().error)) {
        std::fprintf(stderr, "not a DecodeError: %s\n", error.what());
        std::abort();
      }
    }
  }
  tally.Count(accepted);
  if (hutch::Tally::inputs() % kLeakCheckEvery == 0) RequireNoLeak();
  return accepted ? 0 : -1;
}
