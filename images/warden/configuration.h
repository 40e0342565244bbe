// SPDX-License-Identifier: Apache-2.0

// What the agent says, once, of the calls that are to come: lines KEY=value, each with a zero byte
// at its end (pool/confinement.cc writes them).
//
// Thread contract: one thread.
#pragma once

#include <cstddef>
#include <cstdint>

#include "wire/cell_frame.h"

namespace hutch {

class Configuration {
 public:
  // False: it is not whole, or there is one already.
  bool Take(const char* text, size_t size);
  bool taken() const { return size_ != 0; }

  const char* text() const { return text_; }
  size_t size() const { return size_; }
  const char* Text(const char* key) const;  // "": it has none
  uint64_t Number(const char* key, uint64_t otherwise) const;

  uint64_t memory_kb() const { return memory_kb_; }  // of a call
  // Above it the call is killed: more than that where a cgroup limits it.
  uint64_t watch_kb() const { return watch_kb_; }
  uint64_t pids() const { return pids_; }
  uint64_t cpus() const { return cpus_; }            // of a call, rounded up
  uint64_t worker_kb() const { return worker_kb_; }  // of zygote and slots together
  bool single_cell() const { return single_cell_; }  // no cells can be made here
  bool gvisor() const { return gvisor_; }            // single cell, on gVisor's kernel
  // Single cell: the most files in its scratch; 0: the scratch has a limit itself.
  uint64_t files() const { return files_; }

 private:
  char text_[kMaxConfig];
  size_t size_ = 0;
  uint64_t memory_kb_ = 1 << 20;
  uint64_t watch_kb_ = 1 << 20;
  uint64_t pids_ = 64;
  uint64_t cpus_ = 1;
  uint64_t worker_kb_ = 0;
  uint64_t files_ = 0;
  bool single_cell_ = false;
  bool gvisor_ = false;
};

}  // namespace hutch
