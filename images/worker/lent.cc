// SPDX-License-Identifier: Apache-2.0

#include "images/worker/lent.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

#include "images/worker/frames.h"
#include "wire/cell_frame.h"

namespace hutch {
namespace {

struct Place {
  uint64_t which, at, size;
};

PyObject* Misplaced() {
  PyErr_SetString(PyExc_ValueError, "an argument is not where it is said to be");
  return nullptr;
}

// What is mapped, each with a reference of ours, by which it lives until it is unmapped here.
struct Mapped {
  Mapped* next;
  PyObject* object;
  void* room;  // nullptr: the object unmaps itself
  size_t room_size;
  uint64_t size;
};
Mapped* mapped;

// Lent memory is mapped beside what the call may reserve, not out of it. False, with a MemoryError:
// it is more than a call may be lent.
bool MakeRoom(uint64_t size) {
  rlimit limit;
  if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return true;
  if (size > limit.rlim_max - std::min(limit.rlim_cur, limit.rlim_max)) {
    PyErr_NoMemory();
    return false;
  }
  limit.rlim_cur += size;
  setrlimit(RLIMIT_DATA, &limit);
  return true;
}

void TakeRoom(uint64_t size) {
  rlimit limit;
  if (getrlimit(RLIMIT_DATA, &limit) != 0 || limit.rlim_max == RLIM_INFINITY) return;
  limit.rlim_cur -= std::min<uint64_t>(size, limit.rlim_cur);
  setrlimit(RLIMIT_DATA, &limit);
}

void Unmap(const Mapped& one) {
  if (one.room == nullptr) {
    Py_DECREF(one.object);
  } else {
    munmap(one.room, one.room_size);  // with the object, which the interpreter did not allocate
  }
  TakeRoom(one.size);
}

// Takes the reference. nullptr, with a MemoryError: it is unmapped.
PyObject* Keep(PyObject* object, void* room, size_t room_size, uint64_t size) {
  auto* const one = static_cast<Mapped*>(malloc(sizeof(Mapped)));
  if (one == nullptr) {
    Unmap({nullptr, object, room, room_size, size});
    return PyErr_NoMemory();
  }
  *one = {mapped, object, room, room_size, size};
  mapped = one;
  return Py_NewRef(object);
}

// A bytes whose content is that place of a memfd, mapped: copied, a large one would cost a page
// fault and a copy for each of its pages. Its header lies in the page before them, and the zero
// that ends it in the page after them where the file has none.
PyObject* MapBytes(int fd, uint64_t whole, const Place& place) {
  if (place.size > whole || place.at > whole - place.size) return Misplaced();
  if (!MakeRoom(place.size)) return nullptr;
  PyObject* like = PyBytes_FromStringAndSize("like", 4);
  if (like == nullptr) return nullptr;
  const auto header = static_cast<size_t>(PyBytes_AsString(like) - reinterpret_cast<char*>(like));
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  const size_t skipped = place.at % page;
  const size_t length = (skipped + place.size + page - 1) / page * page;
  const size_t room_size = length + 2 * page;
  void* const room =
      mmap(nullptr, room_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  char* const content = static_cast<char*>(room) + page;
  if (room == MAP_FAILED ||
      (length > 0 && mmap(content, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED, fd,
                          static_cast<off_t>(place.at - skipped)) == MAP_FAILED)) {
    Py_DECREF(like);
    TakeRoom(place.size);
    return RaiseErrno();
  }
  char* const data = content + skipped;
  if (data[place.size] != 0) data[place.size] = 0;
  auto* const made = reinterpret_cast<PyVarObject*>(data - header);
  memcpy(made, like, header);
  made->ob_size = static_cast<Py_ssize_t>(place.size);
  Py_DECREF(like);
  return Keep(reinterpret_cast<PyObject*>(made), room, room_size, place.size);
}

// All of a memfd.
PyObject* MapWhole(int fd, uint64_t whole) {
  if (!MakeRoom(whole)) return nullptr;
  PyObject* const module = PyImport_ImportModule("mmap");
  PyObject* made = module == nullptr
                       ? nullptr
                       : PyObject_CallMethod(module, "mmap", "iKi", fd,
                                             static_cast<unsigned long long>(whole), MAP_PRIVATE);
  if (made == nullptr) {
    TakeRoom(whole);
  } else {
    made = Keep(made, nullptr, 0, whole);
  }
  PyObject* const view = made == nullptr ? nullptr : PyMemoryView_FromObject(made);
  Py_XDECREF(module);
  Py_XDECREF(made);
  return view;
}

PyObject* PartOf(PyObject* view, uint64_t whole, const Place& place) {
  if (place.size > whole || place.at > whole - place.size) return Misplaced();
  return PySequence_GetSlice(view, static_cast<Py_ssize_t>(place.at),
                             static_cast<Py_ssize_t>(place.at + place.size));
}

PyObject* OneOf(const Place& place, std::span<const int> descriptors, PyObject** views) {
  const uint64_t index = place.which & ~kFlagBytes;
  if (index >= descriptors.size()) return Misplaced();
  const int fd = descriptors[index];
  struct stat info;
  if (fstat(fd, &info) != 0) return RaiseErrno();
  const auto whole = static_cast<uint64_t>(info.st_size);
  if ((place.which & kFlagBytes) != 0) return MapBytes(fd, whole, place);
  if (views[index] == nullptr) views[index] = MapWhole(fd, whole);
  return views[index] == nullptr ? nullptr : PartOf(views[index], whole, place);
}

PyObject* BuffersOfTuple(PyObject*, PyObject* args) {
  const char* table;
  Py_ssize_t size;
  PyObject* numbers;
  if (!PyArg_ParseTuple(args, "y#O!", &table, &size, &PyTuple_Type, &numbers)) return nullptr;
  int descriptors[kMaxDescriptors];
  const Py_ssize_t count = std::min<Py_ssize_t>(PyTuple_Size(numbers), kMaxDescriptors);
  for (Py_ssize_t i = 0; i < count; ++i)
    descriptors[i] = static_cast<int>(PyLong_AsLong(PyTuple_GetItem(numbers, i)));
  if (PyErr_Occurred() != nullptr) return nullptr;
  return BuffersOf({table, static_cast<size_t>(size)}, {descriptors, static_cast<size_t>(count)});
}

}  // namespace

void UnmapLent() {
  for (Mapped** at = &mapped; *at != nullptr;) {
    Mapped* const one = *at;
    if (Py_REFCNT(one->object) > 1) {
      at = &one->next;
      continue;
    }
    *at = one->next;
    Unmap(*one);
    free(one);
  }
}

PyObject* BuffersOf(std::string_view table, std::span<const int> descriptors) {
  UnmapLent();
  PyObject* views[kMaxDescriptors] = {};
  PyObject* buffers = table.size() % sizeof(Place) == 0 ? PyList_New(0) : Misplaced();
  while (buffers != nullptr && !table.empty()) {
    Place place;
    memcpy(&place, table.data(), sizeof place);
    table.remove_prefix(sizeof place);
    PyObject* const buffer = OneOf(place, descriptors, views);
    if (buffer == nullptr || PyList_Append(buffers, buffer) != 0) Py_CLEAR(buffers);
    Py_XDECREF(buffer);
  }
  for (PyObject* const view : views) Py_XDECREF(view);
  for (const int fd : descriptors) close(fd);
  return buffers;
}

PyMethodDef lent_methods[] = {
    {"buffers_of", BuffersOfTuple, METH_VARARGS,
     "buffers_of(table, descriptors) -> what was lent, mapped: a bytes as such, else views"},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace hutch
