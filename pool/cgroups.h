// SPDX-License-Identifier: Apache-2.0

// The kernel's own limits for slots, where the host delegates cgroup v2 to us: one cgroup for each
// slot, with memory.max, no swap, pids.max and cpu.max.
//
// The agent owns the directory (the launcher had it delegated, launcher/cell_cgroups.h) and is the
// only one that sees it. A slot is given the open `cgroup.procs` of its own cgroup and writes "0"
// to it: since Linux 5.16 it is the rights of who opened the file that count. Nothing is believed
// because a file is there: Prove() has a child of ours run into each limit first, and a slot is in
// its cgroup when the kernel says that somebody is.
//
// Thread contract: Cgroups and what it makes belong to one thread, the loop's. It outlives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "wire/fd.h"

namespace hutch {

// Of one slot: of its cell, and of what of ours lives beside it.
struct CgroupLimits {
  uint64_t memory_kb = 0;
  uint64_t pids = 0;
  double cpus = 0;
};

class Cgroups {
 public:
  // Removed with it: what still lives there then keeps it until the next Sweep().
  class Group {
   public:
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int procs() const { return procs_.get(); }  // its cgroup.procs, for writing
    bool populated() const;                     // somebody lives in it
    // The kernel has killed everybody in it for its memory (memory.oom.group).
    bool out_of_memory() const;
    uint64_t peak_kb() const;  // of its memory, ever; 0 where the kernel keeps no such figure
    void Kill() const;         // everybody in it, where the kernel has cgroup.kill

   private:
    friend class Cgroups;
    Group(Cgroups& owner, Fd directory, Fd procs, std::string name);

    Cgroups& owner_;
    Fd directory_;
    Fd procs_;
    std::string name_;
  };

  // `root`: the delegated directory; "": there is none.
  explicit Cgroups(const std::string& root);
  ~Cgroups();
  Cgroups(const Cgroups&) = delete;
  Cgroups& operator=(const Cgroups&) = delete;

  // Runs a child into each limit (about 50 ms), and removes what an earlier agent left. REQUIRES:
  // before anything else.
  void Prove();

  // Memory and processes were seen to be limited. Without it Make() gives nothing.
  bool usable() const { return usable_; }
  // "cgroup": memory, processes and the CPU share, all three by the kernel. "watchdog": not so, and
  // `why` says what is lacking.
  const char* enforcement() const { return usable_ && why_.empty() ? "cgroup" : "watchdog"; }
  const std::string& why() const { return why_; }

  // nullptr, with a line in the log, where it cannot be made; nothing is usable from then on.
  std::unique_ptr<Group> Make(const CgroupLimits& limits);
  void Sweep();  // removes what is empty by now

 private:
  std::string Prove(const char* limit, const CgroupLimits& limits, int (*child)(int procs),
                    const char* file, const char* event);

  Fd root_;
  bool usable_ = false;
  std::string why_;
  uint64_t next_ = 0;
  std::string prefix_;             // of our own groups' names
  std::vector<std::string> left_;  // groups that were not empty when they should have gone
};

}  // namespace hutch
