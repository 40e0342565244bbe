// SPDX-License-Identifier: Apache-2.0

// What the sections of a plain call (wire/cell_frame.h) are made into: its function and its
// arguments.
//
// Thread contract: the GIL is held.
#pragma once

#include "images/worker/frames.h"
#include "images/worker/serving_objects.h"

namespace hutch {

inline bool Begins(std::string_view section, char first) {
  return !section.empty() && section[0] == first;
}

inline bool IsMarshalled(std::string_view code) { return Begins(code, kMarshalled); }
inline bool IsKept(std::string_view meta) { return Begins(meta, kPlainKept); }
inline bool IsChunk(std::string_view meta) { return Begins(meta, kPlainChunk); }
inline bool IsPlain(std::string_view meta) {
  return Begins(meta, kPlain) || IsKept(meta) || IsChunk(meta);
}

// As new references, or nullptr with an exception.
PyObject* MakeFunction(std::string_view marshalled);  // one that refers to nothing
PyObject* FunctionOf(std::string_view code);

// (positional, by name or nullptr), as new references; of a chunk a list of positional ones. False:
// an exception is set.
bool LoadArguments(const CallSections& call, const Received& received, bool of_chunk,
                   PyObject** args, PyObject** kwargs);

}  // namespace hutch
