// SPDX-License-Identifier: Apache-2.0

#include "images/worker/process_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

namespace hutch {
namespace {

constexpr useconds_t kPauseUs = 200;  // between two looks at what is being killed
constexpr int kMostLooks = 25'000;    // five seconds: something cannot be killed
constexpr int kLooksAtDead = 1'000;   // until PID 1 has waited for what was killed

struct Process {
  pid_t pid = 0, parent = 0;
  char state = 0;
  uint64_t begun = 0;  // in ticks since the machine began
  uint64_t cpu = 0;    // in ticks, with those that it has waited for
  bool below = false;
  bool ended() const { return state == 'Z' || state == 'X'; }
};

// False: it has gone meanwhile.
bool Read(const char* name, Process* process) {
  char path[64], text[1024];
  snprintf(path, sizeof path, "/proc/%s/stat", name);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  const ssize_t size = TEMP_FAILURE_RETRY(read(fd, text, sizeof text - 1));
  close(fd);
  if (size <= 0) return false;
  text[size] = 0;
  const char* const rest = strrchr(text, ')');  // a name may have anything in it
  if (rest == nullptr) return false;
  unsigned long long user = 0, system = 0, begun = 0;
  long long user_below = 0, system_below = 0;
  if (sscanf(rest + 1,
             " %c %d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu %lld %lld %*d %*d %*d %*d %llu",
             &process->state, &process->parent, &user, &system, &user_below, &system_below,
             &begun) != 7) {
    return false;
  }
  process->pid = static_cast<pid_t>(strtol(name, nullptr, 10));
  process->begun = begun;
  process->cpu = user + system + static_cast<uint64_t>(user_below + system_below);
  return true;
}

std::vector<Process> Processes() {
  std::vector<Process> found;
  DIR* const directory = opendir("/proc");
  if (directory == nullptr) return found;
  while (const dirent* entry = readdir(directory)) {
    Process process;
    if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' && Read(entry->d_name, &process))
      found.push_back(process);
  }
  closedir(directory);
  return found;
}

Process* Find(std::vector<Process>& all, pid_t pid) {
  for (Process& one : all) {
    if (one.pid == pid) return &one;
  }
  return nullptr;
}

// Marks what is below those that are marked, which have to be listed in any order.
void MarkBelow(std::vector<Process>& all) {
  std::sort(all.begin(), all.end(),
            [](const Process& a, const Process& b) { return a.parent < b.parent; });
  std::vector<pid_t> parents;
  for (const Process& one : all) {
    if (one.below) parents.push_back(one.pid);
  }
  for (size_t i = 0; i < parents.size(); ++i) {
    auto child = std::lower_bound(all.begin(), all.end(), parents[i],
                                  [](const Process& one, pid_t pid) { return one.parent < pid; });
    for (; child != all.end() && child->parent == parents[i]; ++child) {
      if (child->below) continue;
      child->below = true;
      parents.push_back(child->pid);
    }
  }
}

// A list of processes is made before each of them is looked at: one that has ended by then may have
// started another meanwhile, which is not on the list. So two lists have to show the same.
class Killing {
 public:
  // Kills what is marked, but for the root. `stands`: that starts nothing any more. Whether there
  // was nothing, and neither was there anything new since the last look.
  bool KillMarked(const std::vector<Process>& all, pid_t root, bool stands) {
    bool none = stands;
    size_t ended = 0;
    for (const Process& one : all) {
      if (!one.below || one.pid == root) continue;
      kill(one.pid, SIGKILL);  // one that is shown as ended may be its first thread alone
      if (one.ended()) {
        ++ended;
        continue;
      }
      killed_.push_back(one.pid);
      none = false;
    }
    const bool as_before = none && none_ && ended == ended_;
    none_ = none;
    ended_ = ended;
    return as_before;
  }

  // Until nothing shows them any more.
  void AwaitGone() {
    for (int look = 0; look < kLooksAtDead && !killed_.empty(); ++look) {
      std::erase_if(killed_, [](pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; });
      if (!killed_.empty()) usleep(kPauseUs);
    }
  }

 private:
  std::vector<pid_t> killed_;
  bool none_ = false;  // at the last look
  size_t ended_ = 0;
};

// The root is stopped meanwhile, so that it makes no more of them: what is killed is left to it.
void KillBelow(pid_t root, Killing* killing) {
  kill(root, SIGSTOP);
  for (int look = 0; look < kMostLooks; ++look) {
    std::vector<Process> all = Processes();
    Process* const top = Find(all, root);
    if (top == nullptr) return;
    const bool stands = top->ended() || top->state == 'T' || top->state == 't';
    top->below = true;
    MarkBelow(all);
    if (killing->KillMarked(all, root, stands)) return;
    usleep(kPauseUs);
  }
}

// (Nothing is stopped here: under gVisor, a group with a stopped process gets a SIGHUP when one of
// it ends, and this process is in that group.)
void KillLeftToFirst(pid_t root, uint64_t begun, Killing* killing) {
  for (int look = 0; look < kMostLooks; ++look) {
    std::vector<Process> all = Processes();
    for (Process& one : all) {
      one.below = one.pid == root || (one.parent == 1 && one.begun >= begun && one.pid != getpid());
    }
    MarkBelow(all);
    if (killing->KillMarked(all, root, true)) return;
    usleep(kPauseUs);
  }
}

}  // namespace

uint64_t CpuOfTreeUs(pid_t root) {
  std::vector<Process> all = Processes();
  Process* const top = Find(all, root);
  if (top == nullptr) return 0;
  top->below = true;
  MarkBelow(all);
  uint64_t ticks = 0;
  for (const Process& one : all) {
    if (one.below) ticks += one.cpu;
  }
  return ticks * (1'000'000 / static_cast<uint64_t>(sysconf(_SC_CLK_TCK)));
}

int EndTree(pid_t root, rusage* usage) {
  Killing killing;
  int adopted;  // by this process, whatever it says: gVisor knows no such thing
  const bool adopts = prctl(PR_GET_CHILD_SUBREAPER, &adopted, 0, 0, 0) == 0;
  uint64_t begun = 0;
  if (adopts) {
    KillBelow(root, &killing);
  } else {
    Process top;
    char name[16];
    snprintf(name, sizeof name, "%d", root);
    if (Read(name, &top)) begun = top.begun;
  }
  kill(root, SIGKILL);
  int status = 0;
  const auto waited = static_cast<pid_t>(TEMP_FAILURE_RETRY(wait4(root, &status, 0, usage)));
  if (!adopts && begun != 0) KillLeftToFirst(root, begun, &killing);
  killing.AwaitGone();
  return waited == root ? status : -1;
}

}  // namespace hutch
