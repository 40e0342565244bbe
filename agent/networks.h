// SPDX-License-Identifier: Apache-2.0

// The cells that have a network: opened and closed at the egress process, which is started with the
// first of them.
//
// Belongs to the loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "agent/egress/egress.h"
#include "loop/loop.h"
#include "podman/podman.h"
#include "wire/fd.h"
#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

class Networks {
 public:
  // `lost`: see Egress::OnLost. Everything given here outlives this.
  Networks(Loop& loop, Podman& podman, const Paths& paths, std::string generation,
           std::function<void(uint64_t cell)> lost);

  void Trust(const std::string& ca_bundle);  // see Egress::Trust
  void Open(uint64_t cell, const PoolSpec& pool, Fd channel);
  // The functions below do nothing for a cell without a network.
  void CallIsOver(uint64_t cell);
  // `closed` is called once, with what was decided for the cell; at once where it has no network.
  void Close(uint64_t cell, Egress::Closed closed);
  // Ends the egress process. What is closed after this has no records.
  void Shutdown();

 private:
  Loop& loop_;
  Podman& podman_;
  const Paths& paths_;
  const std::string generation_;
  const std::function<void(uint64_t)> lost_;
  std::string ca_bundle_;
  std::unique_ptr<Egress> egress_;
  std::set<uint64_t> cells_;
};

}  // namespace hutch
