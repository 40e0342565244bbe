// SPDX-License-Identifier: Apache-2.0

#include "images/worker/program.h"

#include <unistd.h>

#include "images/worker/frames.h"
#include "images/worker/serving_objects.h"

namespace hutch {
namespace {

// Whether a module's list or dict of that name has more items; where there is none it has not.
bool HasMore(PyObject* module, PyObject* name, Py_ssize_t few) {
  PyObject* const found = PyObject_GetAttr(module, name);
  const Py_ssize_t size = found == nullptr ? 0 : PyObject_Size(found);
  PyErr_Clear();
  Py_XDECREF(found);
  return size > few;
}

constexpr Py_ssize_t kNamesOfMain = 8;  // before a program adds some

// As end_interpreter() of ending.py does it.
PyObject* FinishProgram(PyObject* space) {
  PyObject* const threading = PyDict_GetItemWithError(own.modules, own.threading);
  if ((threading != nullptr &&
       (HasMore(threading, own.active_threads, 1) || HasMore(threading, own.thread_exits, 0))) ||
      PyList_Size(own.log_handlers) > 1 || PyDict_Size(space) > kNamesOfMain) {
    return PyObject_CallMethodObjArgs(own.worker, own.finish_program, nullptr);
  }
  return PyObject_CallNoArgs(own.run_exit_functions);
}

bool PrepareMain(PyObject* space, PyObject* main, PyObject* filename) {
  PyObject* const annotations = PyDict_New();
  PyObject* const arguments = PyList_New(0);
  char directory[4096];
  PyObject* const here = getcwd(directory, sizeof directory) == nullptr
                             ? nullptr
                             : PyUnicode_DecodeFSDefault(directory);
  PyObject* const path = PySys_GetObject("path");
  const bool done = annotations != nullptr && arguments != nullptr && here != nullptr &&
                    path != nullptr && PyList_Append(arguments, filename) == 0 &&
                    PySys_SetObject("argv", arguments) == 0 && PyList_Insert(path, 0, here) == 0 &&
                    PyDict_SetItem(space, own.file_name, filename) == 0 &&
                    PyDict_SetItem(space, own.builtins_name, own.builtins_module) == 0 &&
                    PyDict_SetItem(space, own.annotations, annotations) == 0 &&
                    PyDict_SetItem(own.modules, own.main, main) == 0;
  Py_XDECREF(annotations);
  Py_XDECREF(arguments);
  Py_XDECREF(here);
  return done;
}

}  // namespace

PyObject* RunProgram(int fd, uint64_t id, PyObject* text) {
  PyObject* const code = PyObject_GetAttr(text, own.compiled);
  PyObject* const filename = PyObject_GetAttr(text, own.filename);
  PyObject* const main = PyModule_NewObject(own.main);
  PyObject* const space = main == nullptr ? nullptr : PyModule_GetDict(main);
  PyObject* result = nullptr;
  if (code != nullptr && filename != nullptr && space != nullptr &&
      PrepareMain(space, main, filename)) {
    TellSlowLoad(fd, id);
    result = PyEval_EvalCode(code, space, space);
    if (result != nullptr) {
      Py_DECREF(result);
      result = FinishProgram(space);
    } else if (PyErr_ExceptionMatches(PyExc_SystemExit)) {
      PyObject* const error = TakeError();
      result = PyObject_CallMethodObjArgs(own.worker, own.exit_program, error, nullptr);
      Py_XDECREF(error);
    } else {
      PyObject* const error = TakeError();
      Py_XDECREF(PyObject_CallMethodObjArgs(own.worker, own.fail_program, error, nullptr));
      PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
      Py_DECREF(error);
    }
  }
  Py_XDECREF(code);
  Py_XDECREF(filename);
  Py_XDECREF(main);
  return result;
}

}  // namespace hutch
