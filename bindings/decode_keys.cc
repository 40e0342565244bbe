// SPDX-License-Identifier: Apache-2.0

#include "bindings/decode_keys.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "bindings/decode_values.h"

namespace hutch::decoding {
namespace {

// A str or bytes hash is salted, so a cell cannot choose colliding keys.
bool HashIsSalted(PyObject* key) { return PyUnicode_CheckExact(key) || PyBytes_CheckExact(key); }

// Whether the sender can make others of the same hash: an int below 2^61 - 1 has one of its own.
bool HashCanBeShared(PyObject* key) {
  if (HashIsSalted(key)) return false;
  if (!PyLong_CheckExact(key)) return true;
  int overflow = 0;
  const long long value = PyLong_AsLongLongAndOverflow(key, &overflow);
  constexpr long long kModulus = (1LL << 61) - 1;
  return overflow != 0 || value >= kModulus || value <= -kModulus;
}

// How many places CPython looks at while keys of these hashes go one by one into a dict or set that
// grows with them; stops counting above `most`. Which place is taken decides where it looks next,
// so a bit for each is enough. Its tables double whenever `kFullest` of them is taken.
uint64_t CountProbes(const std::vector<Py_hash_t>& hashes, bool of_set, uint64_t most) {
  constexpr size_t kSmallest = 8;
  constexpr size_t kRun = 10;  // a set looks at so many places in a row
  uint64_t probes = 0;
  std::vector<bool> taken;
  for (size_t size = kSmallest;; size *= 2) {
    const size_t room = of_set ? size * 3 / 5 + 1 : size * 2 / 3;
    const size_t count = std::min(hashes.size(), room);
    const size_t mask = size - 1;
    taken.assign(size, false);
    for (size_t k = 0; k < count; ++k) {
      auto perturb = static_cast<size_t>(hashes[k]);
      size_t i = perturb & mask;
      for (;;) {
        if (++probes > most) return probes;
        const size_t end = of_set && i + kRun - 1 <= mask ? i + kRun : i + 1;
        size_t free = i;
        while (free < end && taken[free]) ++free;
        if (free < end) {
          taken[free] = true;
          break;
        }
        perturb >>= 5;
        i = (i * 5 + perturb + 1) & mask;
      }
    }
    if (count == hashes.size()) return probes;
  }
}

// `free` of what it costs goes with the keys; the rest is taken from what one result may spend.
void Spend(uint64_t& spare, uint64_t cost, uint64_t free, const char* refusal) {
  if (cost <= free) return;
  if (cost - free > spare) Refuse(refusal);
  spare -= cost - free;
}

}  // namespace

// Whether comparing this key with another of its hash may take more than its size explains: an
// int is written out in decimal to be compared with a Decimal, and each item of a frozenset is
// looked up in the other. Of what it does not know it assumes so.
bool KeyCheck::ComparesDearly(PyObject* key) const {
  if (key == Py_None || PyBool_Check(key) || PyFloat_CheckExact(key) || HashIsSalted(key) ||
      PyComplex_CheckExact(key)) {
    return false;
  }
  if (PyLong_CheckExact(key)) {
    return has_decimals && _PyLong_NumBits(key) > kLongIntBytes * 8;
  }
  if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      if (ComparesDearly(PyTuple_GET_ITEM(key, i))) return true;
    }
    return false;
  }
  if (PyFrozenSet_Check(key)) {
    if (PySet_GET_SIZE(key) > static_cast<Py_ssize_t>(kSmallSet)) return true;
    for (const py::handle item : py::reinterpret_borrow<py::frozenset>(key)) {
      if (ComparesDearly(item.ptr())) return true;
    }
    return false;
  }
  return has_decimals && has_long_ints;
}

// Adds what comparing this key with an equal one takes, in values of the format: one for what is
// small. A record's own code may have made it refer to itself, so both ways there is an end.
void KeyCheck::AddWeight(PyObject* key, uint64_t& weight, size_t depth) {
  constexpr uint64_t kBytesOfOne = 64;
  constexpr uint64_t kMost = kMaxNodes;
  ++weight;
  if (weight > kMost || depth > kMaxFrames) return;
  const py::handle object(key);
  if (key == Py_None || PyBool_Check(key) || PyFloat_CheckExact(key)) return;
  if (PyUnicode_CheckExact(key)) {
    weight += static_cast<uint64_t>(PyUnicode_GET_LENGTH(key)) / kBytesOfOne;
  } else if (PyBytes_CheckExact(key)) {
    weight += static_cast<uint64_t>(PyBytes_GET_SIZE(key)) / kBytesOfOne;
  } else if (PyLong_CheckExact(key)) {
    weight += _PyLong_NumBits(key) / (8 * kBytesOfOne);
  } else if (PyTuple_Check(key)) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(key); ++i) {
      AddWeight(PyTuple_GET_ITEM(key, i), weight, depth + 1);
    }
  } else if (PyFrozenSet_Check(key)) {
    for (const py::handle item : py::reinterpret_borrow<py::frozenset>(key)) {
      AddWeight(item.ptr(), weight, depth + 1);
    }
  } else if (const py::object fields =
                 py::getattr(py::type::of(object), "__dataclass_fields__", py::none());
             py::isinstance<py::dict>(fields)) {
    for (const auto& field : py::reinterpret_borrow<py::dict>(fields)) {
      const py::object value = py::getattr(object, field.first, py::none());
      AddWeight(value.ptr(), weight, depth + 1);
    }
  } else if (const py::object space = py::getattr(object, "__dict__", py::none());
             py::isinstance<py::dict>(space)) {
    for (const auto& field : py::reinterpret_borrow<py::dict>(space)) {
      AddWeight(field.second.ptr(), weight, depth + 1);
    }
  } else {
    const py::object size = py::type::of(object).attr("__sizeof__")(object);
    weight += py::cast<uint64_t>(size) / kBytesOfOne;
  }
}

void KeyCheck::Check(std::span<PyObject* const> items, size_t stride, bool of_set) {
  bool all_salted = true;
  for (size_t i = 0; all_salted && i < items.size(); i += stride) {
    all_salted = HashIsSalted(items[i]);
  }
  if (all_salted) return;
  std::vector<Py_hash_t> hashes;
  std::vector<std::pair<Py_hash_t, PyObject*>> shared;
  hashes.reserve(items.size() / stride);
  for (size_t i = 0; i < items.size(); i += stride) {
    const Py_hash_t hash = PyObject_Hash(items[i]);
    if (hash == -1) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw py::error_already_set();
      PyErr_Clear();
      Refuse("a dict key or set item cannot be hashed");
    }
    hashes.push_back(hash);
    if (HashCanBeShared(items[i])) shared.emplace_back(hash, items[i]);
  }
  std::sort(shared.begin(), shared.end());
  uint64_t comparisons = 0;
  uint64_t free_comparisons = kComparisonsOfKey * hashes.size();
  uint64_t before = 0;  // what the keys of this hash weigh until now
  for (size_t i = 1, same = 0; i < shared.size(); ++i) {
    PyObject* const one = shared[i - 1].second;
    PyObject* const other = shared[i].second;
    if (shared[i].first != shared[i - 1].first) {
      same = before = 0;
      continue;
    }
    if (ComparesDearly(other) || ComparesDearly(one)) Refuse("large keys share one hash");
    if (same++ == 0) before = Weight(one);
    const uint64_t own = Weight(other);
    comparisons += std::min(before, same * own);  // each takes what the smaller of two takes
    before += own;
    free_comparisons += kComparisonsOfKey * (own - 1);
  }
  Spend(spare_comparisons_, comparisons, free_comparisons, "too many keys share one hash");
  const uint64_t free = kProbesOfKey * hashes.size();
  Spend(spare_probes_, CountProbes(hashes, of_set, free + spare_probes_), free,
        "too many keys fall into one place");
}

}  // namespace hutch::decoding
