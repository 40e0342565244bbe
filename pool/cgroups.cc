// SPDX-License-Identifier: Apache-2.0

#include "pool/cgroups.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "wire/egress_rules.h"
#include "wire/log.h"

namespace hutch {
namespace {

constexpr unsigned kPeriodUs = 100'000;  // of cpu.max: the kernel's own default
// Processes of a slot beside those of its cell's code: the slot, the cell's PID 1 and a thread that
// writes what was printed. Where there is a network, the forwarder is one more.
constexpr uint64_t kOwnProcesses = 3;
constexpr uint64_t kTestProcesses = 2;
constexpr uint64_t kTestKb = 16 * 1024;
constexpr char kTestShare[] = "1000 5000";

bool Write(int directory, const char* file, const std::string& text) {
  const Fd fd(::openat(directory, file, O_WRONLY | O_CLOEXEC));
  return fd && ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

bool Has(int directory, const char* file) { return ::faccessat(directory, file, F_OK, 0) == 0; }

std::string Read(int directory, const char* file) {
  char text[4096];
  const Fd fd(::openat(directory, file, O_RDONLY | O_CLOEXEC));
  const ssize_t size = fd ? ::read(fd.get(), text, sizeof text) : 0;
  return {text, size > 0 ? static_cast<size_t>(size) : 0};
}

// The number after `key` at the beginning of a line.
uint64_t Field(const std::string& text, const std::string& key) {
  const size_t at = ("\n" + text).find("\n" + key + " ");
  return at == std::string::npos ? 0 : std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
}

bool GivesOpenersRights() {
  struct utsname name{};
  int major = 0;
  int minor = 0;
  return ::uname(&name) == 0 && std::sscanf(name.release, "%d.%d", &major, &minor) == 2 &&
         (major > 5 || (major == 5 && minor >= 16));
}

// ---- what a child process does in a test group; only async-signal-safe calls. 0: nothing stopped
// it. Whether it ran into the limit is read from the group's own counters.

int TakeMemory(int) {
  const size_t size = 4 * kTestKb * 1024;
  void* memory = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 3;
  for (size_t at = 0; at < size; at += 4096) static_cast<volatile char*>(memory)[at] = 1;
  return 0;
}

int Fork(int) {
  pid_t made[kTestProcesses];
  size_t count = 0;
  while (count < kTestProcesses && (made[count] = ::fork()) > 0) ++count;
  if (count < kTestProcesses && made[count] == 0) {
    ::pause();
    ::_exit(0);
  }
  for (size_t i = 0; i < count; ++i) {
    ::kill(made[i], SIGKILL);
    ::waitpid(made[i], nullptr, 0);
  }
  return 0;
}

int Spin(int) {
  timespec now{};
  do {
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  } while (now.tv_sec == 0 && now.tv_nsec < 3'000'000);
  return 0;
}

}  // namespace

CgroupLimits LimitsOfSlot(const PoolSpec& pool) {
  return {.memory_kb = pool.memory_mb * 1024,
          .pids = pool.pids + kOwnProcesses + (HasNetwork(pool) ? 1 : 0),
          .cpus = pool.cpus};
}

Cgroups::Cgroups(const std::string& root) {
  if (root.empty()) {
    why_ = "no cgroup is delegated to the agent";
    return;
  }
  root_ = Fd(::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!root_) why_ = root + ": " + std::strerror(errno);
  prefix_ = "slot-" + std::to_string(static_cast<long long>(::time(nullptr))) + "-";
}

Cgroups::~Cgroups() { Sweep(); }

void Cgroups::Prove() {
  if (!root_) return;
  if (!GivesOpenersRights()) {
    why_ = "Linux before 5.16 does not let a process enter a cgroup that another user opened";
    return;
  }
  if (DIR* directory = ::fdopendir(::openat(root_.get(), ".", O_RDONLY | O_CLOEXEC))) {
    while (const dirent* entry = ::readdir(directory)) {
      if (std::strncmp(entry->d_name, "slot-", 5) == 0) left_.emplace_back(entry->d_name);
    }
    ::closedir(directory);
  }
  Sweep();
  usable_ = true;  // for Make()
  const CgroupLimits limits{.memory_kb = kTestKb, .pids = kTestProcesses, .cpus = 1};
  for (const std::string& failed :
       {Prove("memory", limits, TakeMemory, "memory.events", "oom_kill"),
        Prove("pids", limits, Fork, "pids.events", "max")}) {
    if (failed.empty()) continue;
    usable_ = false;
    why_ += (why_.empty() ? "" : "; ") + failed;
  }
  if (!usable_) return;
  // The kernel throttles at a clock tick, and three milliseconds may pass between two.
  for (int attempt = 0; attempt < 8; ++attempt) {
    why_ = Prove("cpu", limits, Spin, "cpu.stat", "nr_throttled");
    if (why_.empty()) return;
  }
}

// "", or why the limit is not enforced.
std::string Cgroups::Prove(const char* limit, const CgroupLimits& limits, int (*child)(int),
                           const char* file, const char* event) {
  const std::unique_ptr<Group> group = Make(limits);
  if (group == nullptr) return std::string(limit) + " cannot be limited here";
  Write(group->directory_.get(), "cpu.max", kTestShare);
  const pid_t pid = ::fork();
  if (pid == 0) {
    if (::write(group->procs(), "0", 1) != 1) ::_exit(2);
    ::_exit(child(group->procs()));
  }
  if (pid < 0) return "fork";
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string events = Read(group->directory_.get(), file);
  group->Kill();
  if (WIFEXITED(status) && WEXITSTATUS(status) == 2) return "a process cannot enter its cgroup";
  if (Field(events, event) == 0)
    return std::string("the limit of ") + limit + " did not take effect";
  return {};
}

std::unique_ptr<Cgroups::Group> Cgroups::Make(const CgroupLimits& limits) {
  if (!usable_) return nullptr;
  Sweep();
  const std::string name = prefix_ + std::to_string(next_++);
  const auto refuse = [&](const char* what) -> std::unique_ptr<Group> {
    LogError("a cgroup for a slot could not be made: the warden enforces limits from now on",
             {{"step", what}, {"why", std::strerror(errno)}});
    ::unlinkat(root_.get(), name.c_str(), AT_REMOVEDIR);
    usable_ = false;  // the delegation was taken away: wardens enforce the limits from now on
    why_ = std::string("no cgroup could be made for a slot: ") + what;
    return nullptr;
  };
  if (::mkdirat(root_.get(), name.c_str(), 0755) != 0) return refuse("mkdir");
  Fd directory(::openat(root_.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!directory) return refuse("open");
  const int at = directory.get();
  if (!Write(at, "memory.max", std::to_string(limits.memory_kb * 1024)))
    return refuse("memory.max");
  // Memory that is swapped out would not count, and would slow down the host. (No file: no swap.)
  if (Has(at, "memory.swap.max") && !Write(at, "memory.swap.max", "0"))
    return refuse("memory.swap.max");
  // All processes of a call are killed together: it must not go on with some of them missing.
  if (!Write(at, "memory.oom.group", "1")) return refuse("memory.oom.group");
  if (!Write(at, "pids.max", std::to_string(limits.pids))) return refuse("pids.max");
  const auto quota = static_cast<uint64_t>(std::ceil(limits.cpus * kPeriodUs));
  // Not every systemd delegates it; Prove() has reported that.
  const std::string share =
      std::to_string(std::max<uint64_t>(quota, 1000)) + " " + std::to_string(kPeriodUs);
  if (Has(at, "cpu.max") && !Write(at, "cpu.max", share)) return refuse("cpu.max");
  Fd procs(::openat(at, "cgroup.procs", O_WRONLY | O_CLOEXEC));
  if (!procs) return refuse("cgroup.procs");
  return std::unique_ptr<Group>(new Group(*this, std::move(directory), std::move(procs), name));
}

void Cgroups::Sweep() {
  std::erase_if(left_, [this](const std::string& name) {
    return ::unlinkat(root_.get(), name.c_str(), AT_REMOVEDIR) == 0 || errno == ENOENT;
  });
}

Cgroups::Group::Group(Cgroups& owner, Fd directory, Fd procs, std::string name)
    : owner_(owner),
      directory_(std::move(directory)),
      procs_(std::move(procs)),
      name_(std::move(name)) {}

Cgroups::Group::~Group() {
  if (::unlinkat(owner_.root_.get(), name_.c_str(), AT_REMOVEDIR) != 0)
    owner_.left_.push_back(name_);
}

bool Cgroups::Group::populated() const {
  return Field(Read(directory_.get(), "cgroup.events"), "populated") == 1;
}

uint64_t Cgroups::Group::memory_kills() const {
  const auto kills = Field(Read(directory_.get(), "memory.events"), "oom_kill");
  return kills > 0 ? static_cast<uint64_t>(kills) : 0;
}

bool Cgroups::Group::KillTogether(bool all) const {
  return Write(directory_.get(), "memory.oom.group", all ? "1" : "0");
}

uint64_t Cgroups::Group::peak_kb() const {
  return std::strtoull(Read(directory_.get(), "memory.peak").c_str(), nullptr, 10) / 1024;
}

void Cgroups::Group::Kill() const { Write(directory_.get(), "cgroup.kill", "1"); }

}  // namespace hutch
