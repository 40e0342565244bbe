// SPDX-License-Identifier: Apache-2.0

// The Python objects that serving a call needs, and what is done with any of them. All are made in
// the zygote, so that no cell makes or looks up one.
//
// Thread contract: the GIL is held.
#pragma once

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <string_view>

namespace hutch {

struct ServingObjects {
  // What serve_with() got. `loaded`: the worker's, by identity (meta, function, code, plain).
  PyObject *worker, *loaded;
  PyObject *modules, *run_exit_functions, *log_handlers;
  PyObject *unpickle, *unmarshal, *function_type, *builtins_module, *builtins;
  PyObject *finish_program, *exit_program, *fail_program, *resume_chunk, *compiled, *filename,
      *main, *file_name, *annotations;
  PyObject *threading, *active_threads, *thread_exits;
  PyObject *load, *handle, *buffers, *finish, *fail, *leave_fork, *function_of, *warm_up, *keep,
      *flush, *builtins_name;
  int cpus;  // that a call stays on
};
extern ServingObjects own;

// Makes the names among them; once. False: an exception is set.
bool MakeNames();

PyObject *BytesOf(std::string_view section);  // a new reference, or nullptr with an exception

// The exception that is set, as an object with its traceback.
PyObject *TakeError();

}  // namespace hutch
