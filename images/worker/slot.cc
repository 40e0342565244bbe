// SPDX-License-Identifier: Apache-2.0

#include "images/worker/slot.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>

#include "images/warden/control.h"
#include "images/worker/network.h"
#include "images/worker/raw_syscall.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr unsigned long kQuiet = MS_NOSUID | MS_NODEV;
constexpr char kRoot[] = "/tmp/root";
constexpr char kEmpty[] =
    "/tmp/empty";  // the second lower directory that an overlay without an upper one needs

// Shown to cells, each where it is in the container. Links among them are made anew.
constexpr const char* kShown[] = {"/usr",     "/bin",     "/sbin",        "/lib",
                                  "/lib32",   "/lib64",   "/libx32",      "/opt/python",
                                  "/opt/env", "/etc/ssl", "/opt/modules", "/opt/node"};
constexpr const char* kDevices[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                    "/dev/urandom"};
// An image's own: its library directories, name, types of files, and names of ports and protocols.
constexpr const char* kCopied[] = {"/etc/ld.so.cache", "/etc/os-release", "/etc/mime.types",
                                   "/etc/protocols", "/etc/services"};

// Packages of npm in an environment (images/environment/npm.py), and where Node looks for them from
// any directory.
constexpr char kNodeModules[] = "/opt/env/.node/node_modules";
constexpr char kNodeModulesShown[] = "/node_modules";

constexpr char kNothing[] = "/var/hutch/nothing";  // an empty file
constexpr char kNoFiles[] = "/var/hutch/none";     // an empty directory
constexpr char kNoBootId[] = "/var/hutch/boot_id";

constexpr uint64_t kBackstopProcesses = 16;
constexpr uint64_t kMostRoomKb = 64 << 10;

struct Mask {
  const char* path;
  const char* by;
};
// What a fresh /proc still shows of the host, readable or not: the owner is the host's root,
// but not all is 0400. In /proc/locks stand the open-file locks of the whole machine, the host's
// and those of other cells, which could communicate that way.
constexpr Mask kMasks[] = {
    {"/proc/cmdline", kNothing},
    {"/proc/config.gz", kNothing},
    {"/proc/kallsyms", kNothing},
    {"/proc/kcore", kNothing},
    {"/proc/key-users", kNothing},
    {"/proc/locks", kNothing},
    {"/proc/keys", kNothing},
    {"/proc/kmsg", kNothing},
    {"/proc/kpagecount", kNothing},
    {"/proc/kpageflags", kNothing},
    {"/proc/kpagecgroup", kNothing},
    {"/proc/sched_debug", kNothing},
    {"/proc/latency_stats", kNothing},
    {"/proc/sysrq-trigger", kNothing},
    {"/proc/timer_list", kNothing},
    {"/proc/vmallocinfo", kNothing},
    {"/proc/pressure", kNoFiles},
    {"/proc/acpi", kNoFiles},
    {"/proc/scsi", kNoFiles},
    {"/proc/asound", kNoFiles},
    {"/proc/sys/kernel/random/boot_id", kNoBootId},
};
static_assert(sizeof kMasks / sizeof kMasks[0] <= kMaxMasks);

int WriteFile(const char* path, const char* text, int flags = 0) {
  const int fd = open(path, O_WRONLY | O_CLOEXEC | flags, 0644);
  if (fd < 0) return -1;
  const ssize_t size = static_cast<ssize_t>(strlen(text));
  const bool written = write(fd, text, size) == size;
  const int error = errno;
  close(fd);
  errno = error;
  return written ? 0 : -1;
}

constexpr size_t kMaxShown = 256;  // characters of a path

struct RootPath {
  char text[kMaxShown + sizeof kRoot];
  explicit RootPath(const char* path) { snprintf(text, sizeof text, "%s%s", kRoot, path); }
};

// The directories above a path of the new root.
void MakeParents(char* full) {
  for (char* slash = full + sizeof kRoot; (slash = strchr(slash, '/')) != nullptr; *slash++ = '/') {
    *slash = '\0';
    mkdir(full, 0755);
  }
}

// mkdir -p below the new root.
void MakeDirectories(const char* path, mode_t mode = 0755) {
  RootPath full(path);
  MakeParents(full.text);
  mkdir(full.text, mode);
  chmod(full.text, mode);
}

bool MountOverlay(const char* from, const char* to) {
  char options[kMaxShown + 64];
  snprintf(options, sizeof options, "lowerdir=%s:%s", from, kEmpty);
  return mount("overlay", to, "overlay", MS_RDONLY | kQuiet, options) == 0;
}

// As those of a worker that was started ahead are, where its calls want nothing there.
bool IsEmpty(const char* path) {
  DIR* directory = opendir(path);
  if (directory == nullptr) return false;
  int entries = 0;
  while (entries < 3 && readdir(directory) != nullptr) ++entries;
  closedir(directory);
  return entries < 3;
}

const char* Show(const char* path, bool* locks_shared) {
  struct stat info;
  if (lstat(path, &info) != 0) return nullptr;
  const RootPath full(path);
  if (S_ISLNK(info.st_mode)) {
    char target[128] = {};
    if (readlink(path, target, sizeof target - 1) < 0) return path;
    return symlink(target, full.text) == 0 ? nullptr : path;
  }
  if (!S_ISDIR(info.st_mode) || IsEmpty(path)) return nullptr;
  MakeDirectories(path);
  if (!WallIsDown("overlays") && MountOverlay(path, full.text)) return nullptr;
  *locks_shared = true;
  if (mount(path, full.text, nullptr, MS_BIND, nullptr) != 0) return path;
  return mount(nullptr, full.text, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | kQuiet, nullptr) == 0
             ? nullptr
             : path;
}

// The inode is the host's. Read-only, its times cannot be set; the device is written to as before.
const char* BindDevice(const char* path) {
  const RootPath full(path);
  if (WriteFile(full.text, "", O_CREAT) != 0) return path;
  if (mount(path, full.text, nullptr, MS_BIND, nullptr) != 0) return path;
  struct statvfs info;
  if (WallIsDown("devices")) return nullptr;
  if (statvfs(full.text, &info) != 0) return path;
  unsigned long flags = MS_REMOUNT | MS_BIND | MS_RDONLY | MS_NOSUID;
  if ((info.f_flag & ST_NOEXEC) != 0) flags |= MS_NOEXEC;  // of the container's mount, and locked
  return mount(nullptr, full.text, nullptr, flags, nullptr) == 0 ? nullptr : path;
}

void CopyFile(const char* path) {
  const int from = open(path, O_RDONLY | O_CLOEXEC);
  const int to = from < 0 ? -1 : open(RootPath(path).text, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  char buffer[4096];
  ssize_t size;
  while (to >= 0 && (size = read(from, buffer, sizeof buffer)) > 0 &&
         write(to, buffer, size) == size) {
  }
  if (to >= 0) close(to);
  if (from >= 0) close(from);
}

void WriteSmallFiles(const char* hosts) {
  char passwd[160];
  char group[96];
  snprintf(passwd, sizeof passwd, "root:x:0:0:root:/:/bin/sh\ncell:x:%u:%u:cell:/work:/bin/sh\n",
           getuid(), getgid());
  snprintf(group, sizeof group, "root:x:0:\ncell:x:%u:\n", getgid());
  const struct {
    const char* path;
    const char* text;
  } files[] = {
      {"/etc/passwd", passwd},
      {"/etc/group", group},
      {"/etc/hosts", hosts},
      {"/etc/nsswitch.conf",
       "passwd: files\ngroup: files\nhosts: files\n"},  // no name is asked for on a network
      {"/etc/host.conf", "multi on\n"},
      {kNothing, ""},
      {kNoBootId, "00000000-0000-4000-8000-000000000000\n"},
  };
  for (const auto& file : files) WriteFile(RootPath(file.path).text, file.text, O_CREAT);
}

// Forbids what a mount of the caller's files never grants. What the container's own mount forbids
// is locked here and has to be asked for again; crun 1.8 leaves out all but "ro" where ids are
// mapped.
bool Restrict(const char* path, bool writable) {
  struct statvfs info;
  if (statvfs(path, &info) != 0) return false;
  unsigned long flags = MS_REMOUNT | MS_BIND | kQuiet | (writable ? MS_NOEXEC : MS_RDONLY);
  if ((info.f_flag & ST_NOEXEC) != 0) flags |= MS_NOEXEC;
  if ((info.f_flag & ST_RDONLY) != 0) flags |= MS_RDONLY;
  return mount(nullptr, path, nullptr, flags, nullptr) == 0;
}

// A mount of the caller's files.
const char* ShowMount(const char* path, bool writable, bool* locks_shared) {
  struct stat info;
  if (stat(path, &info) != 0) return "a mount";
  RootPath full(path);
  if (S_ISDIR(info.st_mode)) {
    MakeDirectories(path);
    if (!writable && !WallIsDown("overlays") && MountOverlay(path, full.text)) return nullptr;
    *locks_shared |= !writable;
  } else {
    MakeParents(full.text);
    if (WriteFile(full.text, "", O_CREAT) != 0) return "a mount";
  }
  const bool shown = mount(path, full.text, nullptr, MS_BIND, nullptr) == 0;
  return shown && Restrict(full.text, writable) ? nullptr : "a mount";
}

const char* ShowMounts(const char* lines, bool* locks_shared) {
  for (const char* end; *lines != '\0'; lines = end + 1) {
    end = strchrnul(lines, '\n');
    const char* tab =
        static_cast<const char*>(memrchr(lines, '\t', static_cast<size_t>(end - lines)));
    char path[kMaxShown];
    if (tab == nullptr || static_cast<size_t>(end - tab) > sizeof path) return "a mount";
    snprintf(path, sizeof path, "%.*s", static_cast<int>(end - tab - 1), tab + 1);
    if (const char* failed = ShowMount(path, strncmp(lines, "rw\t", 3) == 0, locks_shared))
      return failed;
    if (*end == '\0') break;
  }
  return nullptr;
}

const char* BuildRoot(const char* hosts, const char* mounts, bool* locks_shared) {
  if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "private mounts";
  if (mount("tmpfs", "/tmp", "tmpfs", kQuiet, "size=1m,mode=0755") != 0) return "tmpfs";
  if (mkdir(kEmpty, 0755) != 0 || mkdir(kRoot, 0755) != 0) return "mkdir";
  if (mount("root", kRoot, "tmpfs", kQuiet, "size=8m,nr_inodes=4k,mode=0755") != 0) return "root";
  for (const char* path :
       {"/proc", "/dev", "/dev/shm", "/etc", "/tmp", "/work", "/run", "/var", "/opt", kNoFiles}) {
    MakeDirectories(path);
  }
  symlink("/tmp", RootPath("/var/tmp").text);
  WriteSmallFiles(hosts);
  for (const char* path : kCopied) CopyFile(path);
  for (const char* path : kShown) {
    if (const char* failed = Show(path, locks_shared)) return failed;
  }
  if (const char* failed = ShowMounts(mounts, locks_shared)) return failed;
  // Where the caller has a mount there, that has the place.
  if (access(kNodeModules, F_OK) == 0) symlink(kNodeModules, RootPath(kNodeModulesShown).text);
  if (WallIsDown("root")) {
    if (const char* failed = Show("/run/hutch", locks_shared)) return failed;
  }
  for (const char* path : kDevices) {
    if (const char* failed = BindDevice(path)) return failed;
  }
  symlink("/proc/self/fd", RootPath("/dev/fd").text);
  symlink("/proc/self/fd/0", RootPath("/dev/stdin").text);
  symlink("/proc/self/fd/1", RootPath("/dev/stdout").text);
  symlink("/proc/self/fd/2", RootPath("/dev/stderr").text);
  // Bound whole: only a full view of /proc lets a cell mount its own, which then covers this one.
  if (mount("/proc", RootPath("/proc").text, nullptr, MS_BIND | MS_REC, nullptr) != 0)
    return "/proc";
  if (mount(nullptr, kRoot, nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY | kQuiet, nullptr) != 0)
    return "read-only root";
  if (chdir(kRoot) != 0 || syscall(SYS_pivot_root, ".", ".") != 0) return "pivot_root";
  if (umount2(".", MNT_DETACH) != 0 || chdir("/") != 0) return "umount";
  return nullptr;
}

uint64_t DataBytes() {
  char text[128] = {};
  const int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t size = read(fd, text, sizeof text - 1);
    close(fd);
  }
  unsigned long long data = 0;
  sscanf(text, "%*u %*u %*u %*u %*u %llu", &data);
  return data * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

void FillPlan(const SlotOptions& options, CellPlan* plan) {
  snprintf(plan->uid_map, sizeof plan->uid_map, "%u %u 1", getuid(), getuid());
  snprintf(plan->gid_map, sizeof plan->gid_map, "%u %u 1", getgid(), getgid());
  // An inode of tmpfs takes about 1 KB of kernel memory that `size` does not count.
  const unsigned long long inodes =
      std::clamp<unsigned long long>(options.disk_kb / 8, 1024, 65536);
  // Its files are memory of the cell. They may not take all of that: no process could begin beside
  // them, and those of a session could be neither read nor deleted.
  const uint64_t room_kb = std::min(options.memory_kb / 4, kMostRoomKb);
  const unsigned long long size_kb = std::min(options.disk_kb, options.memory_kb - room_kb);
  snprintf(plan->scratch_options, sizeof plan->scratch_options,
           "size=%lluk,nr_inodes=%llu,mode=0755", size_kb * (WallIsDown("scratch") ? 16 : 1),
           inodes);
  for (const Mask& mask : kMasks) {
    if (WallIsDown("masks")) break;
    if (access(mask.path, R_OK) != 0 && access(mask.path, W_OK) != 0)
      continue;  // the host's own ownership guards it
    plan->mask[plan->masks] = mask.path;
    plan->mask_by[plan->masks++] = mask.by;
  }
  plan->limits = LimitsOf(options);
}

}  // namespace

Limits LimitsOf(const SlotOptions& options) {
  // Reserved memory is no used memory: several times the limit, and the stacks of all threads.
  const uint64_t memory = options.memory_kb * 1024;
  const uint64_t data = DataBytes() + 4 * memory + kStackBytes * (options.pids + 1);
  return {.data_bytes = data,
          .data_most_bytes = data + 2 * memory,
          // Where a cgroup counts them, this is only the backstop behind it.
          .pids = options.pids + (options.cgroup >= 0 ? kBackstopProcesses : 0),
          .nofile = options.nofile};
}

const char* PlaceControl(int control) {
  if (control != kControlFd && dup3(control, kControlFd, O_CLOEXEC) < 0) return "control socket";
  const int last = has_network() ? kForwarderFd : kControlFd;
  if (has_network() && dup3(forwarder_program(), last, O_CLOEXEC) < 0) return "forwarder";
  if (!CloseFrom(last + 1) || close(kControlFd - 1) != 0) return "close_range";
  const int null = open(
      "/dev/null", O_RDWR | O_CLOEXEC);  // anew: the zygote's belongs to the container's own root
  if (null < 0) return "/dev/null";
  for (int fd = 0; fd <= 2; ++fd) {
    if (dup2(null, fd) < 0) return "/dev/null";
  }
  close(null);
  return nullptr;
}

long ForkSlot() {
  if (!LearnThread()) return -ENOSYS;
  int* tid = nullptr;
  prctl(PR_GET_TID_ADDRESS, &tid, 0, 0, 0);
  const long flags = CLONE_PARENT | SIGCHLD | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID;
#if defined(__x86_64__)
  return RawCall(SYS_clone, flags, 0, 0, Arg(tid), 0);
#else
  return RawCall(SYS_clone, flags, 0, 0, 0, Arg(tid));
#endif
}

const char* EnterSlot(const SlotOptions& options, int control, CellPlan* plan, bool* locks_shared) {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_BLOCK, &all, nullptr);
  WriteFile("/proc/self/oom_score_adj", "800");  // before anything of the host
  // First, so that nothing of what follows is on the worker's account.
  if (options.cgroup >= 0 && write(options.cgroup, "0", 1) != 1) return "cgroup";
  FillPlan(options, plan);
  int namespaces = SlotNamespaces();
  if (WallIsDown("network")) namespaces &= ~CLONE_NEWNET;
  if (WallIsDown("locks")) namespaces &= ~(CLONE_NEWCGROUP | CLONE_NEWTIME);
  const bool network = (namespaces & CLONE_NEWNET) != 0;
  if (!PrepareToKeep(kForwarderFd + 1)) return "socketpair";
  if (unshare(namespaces) != 0) return "unshare";
  if (WriteFile("/proc/self/setgroups", "deny") != 0) return "setgroups";
  if (WriteFile("/proc/self/uid_map", plan->uid_map) != 0) return "uid_map";
  if (WriteFile("/proc/self/gid_map", plan->gid_map) != 0) return "gid_map";
  if ((namespaces & CLONE_NEWTIME) != 0 && !EnterOwnTime()) return "a namespace of time";
  if (sethostname("cell", 4) != 0 || setdomainname("(none)", 6) != 0) return "hostname";
  static char hosts[64 * 1024];
  if (const char* failed = LoadNetwork(options.egress, hosts, sizeof hosts)) return failed;
  if (const char* failed = BuildRoot(hosts, options.mounts, locks_shared)) return failed;
  if (const char* failed = network ? PrepareNetwork() : nullptr) return failed;
  if (const char* failed = PlaceControl(control)) return failed;
  if (network) WatchNetwork();
  return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0) == 0 ? nullptr : "PR_SET_DUMPABLE";
}

}  // namespace hutch
