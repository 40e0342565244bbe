// SPDX-License-Identifier: Apache-2.0

// The agent's side of the egress process: gives it the cells that have a network, and gets back
// what it decided for each.
//
// The process (`hutch-agent --egress`) runs in a container of its own that is made when the first
// cell is added: on the host's network, with no capability, another uid, and nothing mounted but
// the worker files and the directory of one socket, at which the agent listens. It resolves, vets,
// dials and relays; no data passes through the agent, and a fault in the process's parsers reaches
// neither the broker nor libpod. It ends when the agent closes its connection. When it dies, every
// cell it had loses its network (the channel closes with it) and a record says so; the next cell
// that is added starts another process. One that does not answer for some seconds is stopped, hung
// or starved, and is ended.
//
// Belongs to the loop's thread. Nothing here blocks: libpod is used on a thread of its own.
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
  // what `pool` allows. Never throws: when the process cannot be started, the channel is closed and
  // the records say why.
  void AddCell(uint64_t cell, const PoolSpec& pool, Fd channel);

  // The cell's call has ended, or is being ended: its forwarder may end from now on.
  void CallIsOver(uint64_t cell);

  // Closes all connections of the cell. `closed` is called once with what was decided for it: from
  // the loop, after some seconds at the latest, or within this call when the cell is unknown or its
  // process is gone. If the cell lost its network before, a record says so (NetworkRecord::lost).
  void CloseCell(uint64_t cell, Closed closed);

  // Sets the process's CA bundle, see EgressLaunch. If it is another file than before, the process
  // is replaced, and open connections are cut off as when it dies.
  void Trust(std::string ca_bundle);

  // How often the process is pinged; it is ended after ten pings without an answer. For tests.
  void BeatEvery(std::chrono::milliseconds beat);

  // `lost` is called for each open cell that has no network although a new cell would have one:
  // when the process dies or does not answer for seconds, when the cell's forwarder dies, when
  // Trust() replaces the process (within that call), and when a process runs again after others
  // could not be started. A cell without a call should then be replaced.
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
