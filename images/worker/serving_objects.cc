// SPDX-License-Identifier: Apache-2.0

#include "images/worker/serving_objects.h"

namespace hutch {

ServingObjects own;

bool MakeNames() {
  const struct {
    PyObject** name;
    const char* text;
  } names[] = {{&own.load, "load"},
               {&own.handle, "handle"},
               {&own.buffers, "buffers"},
               {&own.finish, "finish"},
               {&own.fail, "fail"},
               {&own.leave_fork, "leave_fork"},
               {&own.keep, "keep"},
               {&own.function_of, "function_of"},
               {&own.flush, "flush"},
               {&own.warm_up, "warm_up"},
               {&own.builtins_name, "__builtins__"},
               {&own.finish_program, "finish_program"},
               {&own.exit_program, "exit_program"},
               {&own.fail_program, "fail_program"},
               {&own.resume_chunk, "resume_chunk"},
               {&own.compiled, "compiled"},
               {&own.filename, "filename"},
               {&own.main, "__main__"},
               {&own.file_name, "__file__"},
               {&own.annotations, "__annotations__"},
               {&own.threading, "threading"},
               {&own.active_threads, "_active"},
               {&own.thread_exits, "_threading_atexits"}};
  for (const auto& [name, text] : names) {
    if (*name == nullptr) *name = PyUnicode_InternFromString(text);
    if (*name == nullptr) return false;
  }
  return true;
}

PyObject* BytesOf(std::string_view section) {
  return PyBytes_FromStringAndSize(section.data(), static_cast<Py_ssize_t>(section.size()));
}

PyObject* TakeError() {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback != nullptr && value != nullptr) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

}  // namespace hutch
