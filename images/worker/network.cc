// SPDX-License-Identifier: Apache-2.0

#include "images/worker/network.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "images/warden/control.h"
#include "images/warden/write_file.h"
#include "images/worker/wall_switch.h"

namespace hutch {
namespace {

constexpr char kProgram[] = "/opt/hutch/hutch-forwarder";
constexpr char kOwnNames[] = "127.0.0.1 localhost cell\n::1 localhost cell\n";
constexpr char kOwnNamesButLocalhost[] = "127.0.0.1 cell\n::1 cell\n";
constexpr int kMaxListeners = 513;
constexpr int kBacklog = 64;
constexpr size_t kHostsLine = 64 + 256 + 2;
constexpr int kAboveAll = 64;  // descriptors from here on are not in the way of those with a place

struct Listener {
  unsigned number;
  sockaddr_in address;
};
Listener listeners[kMaxListeners];
int listener_count = 0;
int program = -1;
pid_t forwarder = 0;

// What shows that a network namespace was used, and costs little to read again: every packet
// passes lo, what was refused without a packet is counted, and sockets that outlive their cell are
// too. What else there is (TIME_WAIT, the counters of TCP) does not come about without a packet.
struct Trace {
  const char* path;
  bool first_line_only;  // the rest is of the whole host
  int fd = -1;
  ssize_t size = 0;
  char text[8192] = {};  // when the namespace was new
};
Trace traces[] = {{"/proc/self/net/dev", false},
                  {"/proc/self/net/sockstat", true},
                  {"/proc/self/net/snmp", false},
                  {"/proc/self/net/snmp6", false}};

ssize_t ReadTrace(const Trace& trace, char* text, size_t most) {
  const ssize_t size = pread(trace.fd, text, most, 0);
  if (size <= 0 || !trace.first_line_only) return size;
  const void* end = memchr(text, '\n', static_cast<size_t>(size));
  return end == nullptr ? size : static_cast<const char*>(end) - text;
}

bool NetworkWasUsed() {
  for (const Trace& trace : traces) {
    if (trace.fd < 0) continue;
    char text[sizeof trace.text];
    const ssize_t size = ReadTrace(trace, text, sizeof text);
    if (size != trace.size || size < 0 || memcmp(text, trace.text, static_cast<size_t>(size)) != 0)
      return true;
  }
  return false;
}

bool ReadLine(const char* line, char (&hosts_line)[kHostsLine]) {
  char address[64];
  char name[256];
  unsigned port;
  Listener& listener = listeners[listener_count];
  listener.address = {};
  listener.address.sin_family = AF_INET;
  if (listener_count == kMaxListeners ||
      sscanf(line, "%u %63s %u %255s", &listener.number, address, &port, name) != 4 ||
      inet_pton(AF_INET, address, &listener.address.sin_addr) != 1 || port == 0 || port > 65535)
    return false;
  listener.address.sin_port = htons(static_cast<uint16_t>(port));
  ++listener_count;
  hosts_line[0] = '\0';
  if (strcmp(name, "-") != 0) snprintf(hosts_line, sizeof hosts_line, "%s %s\n", address, name);
  return true;
}

// Without close-on-exec: they are the forwarder's, and closed here as soon as it has them.
int Listen(const sockaddr_in& address) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (fd >= 0 && setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) == 0 &&
      bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      listen(fd, kBacklog) == 0)
    return fd;
  const int error = errno;
  if (fd >= 0) close(fd);
  errno = error;
  return -1;
}

const char* Execute(int channel, char* arguments) {
  char number[16];
  snprintf(number, sizeof number, "%d", channel);
  if (fcntl(channel, F_SETFD, 0) != 0) return "egress channel";
  char name[] = "hutch-forwarder";
  char empty[] = "";
  char* argv[] = {name, number, arguments, nullptr};
  char* environment[] = {nullptr};
  // The child borrows this memory until it is another program: no page table is copied.
  // posix_spawn() cannot have it die with its parent, nor execute a descriptor.
  // NOLINTBEGIN(bugprone-unsafe-functions,clang-analyzer-*)
  const pid_t pid = vfork();
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    // NOLINTEND(bugprone-unsafe-functions,clang-analyzer-*)
    syscall(SYS_execveat, kForwarderFd, empty, argv, environment, AT_EMPTY_PATH);
    _exit(127);
  }
  forwarder = pid > 0 ? pid : 0;
  return pid > 0 ? nullptr : "vfork";
}

const char* RaiseLoopback() {
  const int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return "socket";
  ifreq request{};
  strcpy(request.ifr_name, "lo");
  // Packets of 64 KB and small windows make TCP wait for timers: a hundredth of the speed.
  request.ifr_mtu = 8192;
  const bool sized = ioctl(fd, SIOCSIFMTU, &request) == 0;
  const bool raised = sized && ioctl(fd, SIOCGIFFLAGS, &request) == 0 &&
                      (request.ifr_flags = static_cast<short>(request.ifr_flags | IFF_UP),
                       ioctl(fd, SIOCSIFFLAGS, &request) == 0);
  close(fd);
  return raised ? nullptr : "lo";
}

// What waits in sockets is in no map of a process, and all TCP of the host has one budget: the most
// that each socket of this network may hold. The warden counts a socket as that much (watch.cc).
const char* BoundSocketMemory() {
  if (WallIsDown("tcp_memory")) return nullptr;
  const struct {
    const char* path;
    const char* text;
    bool since_recently;  // older kernels have one for all networks, which is small by default
  } settings[] = {{"/proc/sys/net/ipv4/tcp_rmem", "4096 65536 131072", false},
                  {"/proc/sys/net/ipv4/tcp_wmem", "4096 16384 65536", false},
                  {"/proc/sys/net/ipv4/tcp_max_tw_buckets", "4096", false},
                  {"/proc/sys/net/core/optmem_max", "20480", true}};
  for (const auto& setting : settings) {
    if (!WriteFile(setting.path, setting.text) && !setting.since_recently) return setting.path;
  }
  return nullptr;
}

}  // namespace

const char* LoadNetwork(const char* text, char* hosts, size_t size) {
  bool maps_localhost = false;
  size_t used = 0;
  char last[kHostsLine] = {};
  hosts[0] = '\0';
  for (const char* line = text; line != nullptr && *line != '\0';) {
    char hosts_line[kHostsLine];
    if (!ReadLine(line, hosts_line)) {
      errno = EINVAL;
      return "HUTCH_EGRESS";
    }
    const size_t length = strlen(hosts_line);
    if (length != 0 && strcmp(hosts_line, last) != 0) {  // one line for each name
      if (used + length + sizeof kOwnNames > size) return "hosts";
      memcpy(hosts + used, hosts_line, length + 1);
      used += length;
      memcpy(last, hosts_line, length + 1);
      maps_localhost = maps_localhost || strstr(hosts_line, " localhost\n") != nullptr;
    }
    line = strchr(line, '\n');
    if (line != nullptr) ++line;
  }
  snprintf(hosts + used, size - used, "%s", maps_localhost ? kOwnNamesButLocalhost : kOwnNames);
  if (listener_count == 0) return nullptr;
  const int fd = open(kProgram, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return kProgram;
  program = fcntl(fd, F_DUPFD_CLOEXEC, kAboveAll);
  close(fd);
  return program >= 0 ? nullptr : kProgram;
}

bool has_network() { return listener_count > 0; }
int forwarder_program() { return program; }

const char* StartForwarder(int channel) {
  static char arguments[16 * kMaxListeners];
  static int fds[kMaxListeners];
  size_t used = 0;
  int made = 0;
  const char* failed = nullptr;
  for (; made < listener_count && failed == nullptr; ++made) {
    fds[made] = Listen(listeners[made].address);
    if (fds[made] < 0) {
      failed = "a listener of the forwarder";
      break;
    }
    used += static_cast<size_t>(snprintf(arguments + used, sizeof arguments - used, "%s%d:%u",
                                         made == 0 ? "" : ",", fds[made], listeners[made].number));
  }
  if (failed == nullptr) failed = Execute(channel, arguments);
  const int error = errno;
  while (made > 0) close(fds[--made]);
  errno = error;
  return failed;
}

const char* PrepareNetwork() {
  const char* const failed = RaiseLoopback();
  return failed == nullptr ? BoundSocketMemory() : failed;
}

void WatchNetwork() {
  for (Trace& trace : traces) {
    if (trace.fd >= 0) close(trace.fd);
    trace.fd = open(trace.path, O_RDONLY | O_CLOEXEC);
    trace.size = trace.fd < 0 ? 0 : ReadTrace(trace, trace.text, sizeof trace.text);
  }
}

const char* RenewNetwork() {
  if (!NetworkWasUsed() || WallIsDown("renewal")) return nullptr;
  if (unshare(CLONE_NEWNET) != 0) return "a network namespace";
  if (const char* failed = PrepareNetwork()) return failed;
  WatchNetwork();
  return nullptr;
}

void StopForwarder() {
  if (forwarder == 0) return;
  kill(forwarder, SIGKILL);
  while (waitpid(forwarder, nullptr, 0) < 0 && errno == EINTR) {
  }
  forwarder = 0;
}

}  // namespace hutch
