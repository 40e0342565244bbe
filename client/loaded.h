// SPDX-License-Identifier: Apache-2.0

// What a cell has loaded before a call comes (IdentityOf() of each). A value: one thread at a time.
#pragma once

#include <optional>
#include <set>

#include "wire/sha256.h"

namespace hutch {

class Loaded {
 public:
  // It was sent the LoadFrame of that identity: it serves calls of this identity only.
  void SetOnly(const Sha256Digest& identity) { only_ = identity; }
  bool has_only() const { return only_.has_value(); }
  bool IsOnly(const Sha256Digest& identity) const { return only_ == identity; }
  bool Serves(const Sha256Digest& identity) const { return !only_ || *only_ == identity; }

  // A shared cell has served a call of it, and need not be sent what is loaded again.
  void Add(const Sha256Digest& identity) { known_.insert(identity); }
  bool Has(const Sha256Digest& identity) const { return known_.contains(identity); }

 private:
  std::optional<Sha256Digest> only_;
  std::set<Sha256Digest> known_;
};

}  // namespace hutch
