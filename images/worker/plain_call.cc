// SPDX-License-Identifier: Apache-2.0

#include "images/worker/plain_call.h"

#include "images/worker/lent.h"

namespace hutch {
namespace {

// A new reference, or nullptr with an exception.
PyObject* CallWithBytes(PyObject* function, std::string_view section) {
  PyObject* bytes = BytesOf(section);
  PyObject* result =
      bytes == nullptr ? nullptr : PyObject_CallFunctionObjArgs(function, bytes, nullptr);
  Py_XDECREF(bytes);
  return result;
}

// What they were made of, a new reference.
PyObject* Unpacked(const CallSections& call, const Received& received) {
  const std::string_view section = call.arguments();
  if (call.places().empty())
    return CallWithBytes(Begins(section, kPickled) ? own.unpickle : own.unmarshal, section);
  PyObject* const buffers =
      BuffersOf(call.places(), {received.descriptors, static_cast<size_t>(received.count)});
  PyObject* const given = buffers == nullptr ? nullptr : Py_BuildValue("(N)", BytesOf(section));
  PyObject* const lent = given == nullptr ? nullptr : Py_BuildValue("{OO}", own.buffers, buffers);
  PyObject* const arguments = lent == nullptr ? nullptr : PyObject_Call(own.unpickle, given, lent);
  Py_XDECREF(buffers);
  Py_XDECREF(given);
  Py_XDECREF(lent);
  return arguments;
}

}  // namespace

PyObject* MakeFunction(std::string_view marshalled) {
  // (code, globals, defaults)
  PyObject* const parts = CallWithBytes(own.unmarshal, marshalled);
  if (parts == nullptr) return nullptr;
  PyObject *code, *globals, *defaults, *function = nullptr;
  if (PyArg_ParseTuple(parts, "OO!O", &code, &PyDict_Type, &globals, &defaults) &&
      PyDict_SetItem(globals, own.builtins_name, own.builtins) == 0) {
    function =
        PyObject_CallFunctionObjArgs(own.function_type, code, globals, Py_None, defaults, nullptr);
  }
  Py_DECREF(parts);
  return function;
}

PyObject* FunctionOf(std::string_view code) {
  if (IsMarshalled(code)) return MakeFunction(code.substr(1));
  PyObject* const bytes = BytesOf(code);
  if (bytes == nullptr) return nullptr;
  PyObject* const function =
      PyObject_CallMethodObjArgs(own.worker, own.function_of, bytes, nullptr);
  Py_DECREF(bytes);
  return function;
}

bool LoadArguments(const CallSections& call, const Received& received, bool of_chunk,
                   PyObject** args, PyObject** kwargs) {
  const bool pickled = Begins(call.arguments(), kPickled);
  PyObject* const given = Unpacked(call, received);
  if (given == nullptr) return false;
  if (!pickled) {
    *args = given;
    if (of_chunk ? PyList_Check(given) : PyTuple_Check(given)) return true;
    PyErr_SetString(PyExc_TypeError, "the arguments of a call are a tuple, of a chunk a list");
    return false;
  }
  if (!PyArg_ParseTuple(given, "O!O!", &PyTuple_Type, args, &PyDict_Type, kwargs)) {
    Py_DECREF(given);
    *args = *kwargs = nullptr;
    return false;
  }
  Py_INCREF(*args);
  Py_INCREF(*kwargs);
  Py_DECREF(given);
  return true;
}

}  // namespace hutch
