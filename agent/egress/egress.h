// SPDX-License-Identifier: Apache-2.0

// The broker's face to the egress process: gives it the cells that have a network, and gets back
// what it decided for each.
//
// The process (`hutch-agent --egress`) runs in a container of its own that is made when the first
// cell is added: on the host's network, with no capability, another uid, and nothing mounted but
// the worker files and the directory of one socket, at which we listen. It resolves, vets, dials
// and relays; we are in no data path, and a fault in its parsers reaches neither the broker nor
// libpod. It ends when our end of its connection closes. When it dies, every cell it had fails
// closed (its channel closes with it) and says so in a record; the next cell added starts another.
// One that does not answer for some seconds is stopped, hung or starved: it is ended likewise.
//
// Belongs to the loop's thread. Nothing here blocks: libpod is asked on a thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "loop/loop.h"
#include "podman/podman.h"
#include "wire/fd.h"
#include "wire/paths.h"
#include "wire/values.h"

namespace hutch {

struct EgressLaunch {
  std::string base_id;     // its image
  std::string runtime_id;  // its program
  std::string generation;  // of this agent
  std::string ca_bundle;   // PEM file of the host, mounted read-only; "": the image's own
};

class Egress {
 public:
  using Closed = std::function<void(std::vector<NetworkRecord>)>;

  Egress(Loop& loop, Podman& podman, const Paths& paths, EgressLaunch launch);
  ~Egress();
  Egress(const Egress&) = delete;
  Egress& operator=(const Egress&) = delete;

  // `channel` is the proxy's end of the cell's egress channel (SOCK_SEQPACKET); the cell may reach
  // what `pool` allows. Never throws: where the process cannot be had, the channel is closed and
  // the records say why.
  void AddCell(uint64_t cell, const PoolSpec& pool, Fd channel);

  // The cell's call has ended, or is being ended: that its forwarder ends from now on is no fault.
  void CallIsOver(uint64_t cell);

  // Closes all that the cell has open. `closed` is called once, from the loop, with what was
  // decided for it; in this very call when the cell is unknown or its process is gone, and after
  // some seconds at the latest. Where the cell's network was lost before that, a record says so
  // (NetworkRecord::lost).
  void CloseCell(uint64_t cell, Closed closed);

  // Whom its TLS trusts from now on: EgressLaunch::ca_bundle. Where that is another file than
  // before, the process is replaced: what is connected then is cut off, as when it dies.
  void Trust(std::string ca_bundle);

  // How often the process is asked whether it lives; ten unanswered times end it. For tests.
  void BeatEvery(std::chrono::milliseconds beat);

  // Told of each cell that is still open and has no network, where one that is made now would have
  // it: when the process that ran dies or does not answer for seconds, when the cell's forwarder
  // dies, when Trust() replaces the process (inside that call), and when one runs again after
  // others could not be started. A cell that no call has is to be replaced.
  void OnLost(std::function<void(uint64_t cell)> lost);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// The libpod spec of the egress process's container, as JSON.
std::string EgressContainerSpec(const Paths& paths, const EgressLaunch& launch,
                                const std::string& name, const std::string& socket_dir,
                                const std::string& token);

}  // namespace hutch
