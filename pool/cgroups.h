// SPDX-License-Identifier: Apache-2.0

// The kernel's own limits for slots, where the host delegates cgroup v2 to us: one cgroup for each
// slot, with memory.max, no swap, pids.max and cpu.max.
//
// The agent owns the directory (the launcher had it delegated, launcher/cell_cgroups.h), and no
// container sees it. A slot is given the open `cgroup.procs` of its own cgroup and writes "0" to
// it: since Linux 5.16 the rights of the process that opened the file count. That a file is there
// proves nothing: Prove() first lets a child process run into each limit, and a slot counts as
// being in its cgroup when the kernel says that the cgroup has a process.
//
// Cgroups and its groups belong to one thread, the loop's. It outlives them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "wire/fd.h"
#include "wire/values.h"

namespace hutch {

// For one slot: the processes of its cell, and our own beside them.
struct CgroupLimits {
  uint64_t memory_kb = 0;
  uint64_t pids = 0;
  double cpus = 0;
};
CgroupLimits LimitsOfSlot(const PoolSpec& pool);

class Cgroups {
 public:
  // One cgroup. It is removed with this object or, if a process is in it then, by a later Sweep().
  class Group {
   public:
    ~Group();
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

    int procs() const { return procs_.get(); }  // its cgroup.procs, for writing
    bool populated() const;                     // it has a process
    // How many processes the kernel has killed for want of memory: all of them at once
    // (memory.oom.group), unless KillTogether(false) was called.
    uint64_t memory_kills() const;
    bool KillTogether(bool all) const;  // false: the kernel refuses
    uint64_t peak_kb() const;  // the most memory that it had; 0 where the kernel does not say
    void Kill() const;         // all its processes, where the kernel has cgroup.kill

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

  // The limits of memory and processes were seen to hold. False: Make() returns nullptr.
  bool usable() const { return usable_; }
  // "cgroup": the kernel enforces memory, processes and the CPU share. "watchdog": it does not
  // enforce all three, and why() says what is missing.
  const char* enforcement() const { return usable_ && why_.empty() ? "cgroup" : "watchdog"; }
  const std::string& why() const { return why_; }

  // nullptr, with a line in the log, if it cannot be made; usable() is false from then on.
  std::unique_ptr<Group> Make(const CgroupLimits& limits);
  void Sweep();  // removes groups that have become empty

 private:
  std::string Prove(const char* limit, const CgroupLimits& limits, int (*child)(int procs),
                    const char* file, const char* event);

  Fd root_;
  bool usable_ = false;
  std::string why_;
  uint64_t next_ = 0;
  std::string prefix_;             // of our own groups' names
  std::vector<std::string> left_;  // groups that were not empty when they were to be removed
};

}  // namespace hutch
