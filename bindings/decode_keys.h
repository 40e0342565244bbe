// SPDX-License-Identifier: Apache-2.0

// What the keys of a result's dicts and sets may cost CPython to put in their places: a cell may
// choose keys whose hashes collide, or that are slow to compare.
//
// Belongs to a thread that holds the GIL.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "bindings/decode.h"

namespace hutch::decoding {

class KeyCheck {
 public:
  // Which of these the result has yet.
  bool has_decimals = false;
  bool has_long_ints = false;

  // Refuses keys that would make a dict or set slow: every `stride`-th of `items`, in their order.
  void Check(std::span<PyObject* const> items, size_t stride, bool of_set);

 private:
  bool ComparesDearly(PyObject* key) const;
  static void AddWeight(PyObject* key, uint64_t& weight, size_t depth);
  static uint64_t Weight(PyObject* key) {
    uint64_t weight = 0;
    AddWeight(key, weight, 0);
    return weight;
  }

  uint64_t spare_probes_ = kSpareProbes;
  uint64_t spare_comparisons_ = kSpareComparisons;
};

}  // namespace hutch::decoding
