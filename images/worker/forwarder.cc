// SPDX-License-Identifier: Apache-2.0

// hutch-forwarder: carries the connections of one cell to the egress process.
//
//     hutch-forwarder CHANNEL FD:NUMBER,FD:NUMBER,…
//
// Theory of operation. The slot makes the listeners on loopback addresses of its own network
// namespace, one for each host and port that the cell may reach, and starts this program before the
// cell exists (network.h). On each connection it asks on the egress channel (wire/cell_frame.h) for
// a stream, and relays bytes between the two, half-closes kept. It decides nothing: the egress
// process knows the rules. It knows no secret and no address of the host.
//
// The cell can send it any bytes, which it never looks at, and any number of connections, of which
// it takes kMaxStreams at a time. It has no capability, no file but these sockets, and a filter
// that allows ten system calls. When the egress process closes the channel, or the slot dies, it
// ends, and with it every connection: nothing of one cell is left for the next.
//
// Static, one thread, no allocation.
#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "wire/cell_frame.h"

namespace hutch {
namespace {

constexpr int kMaxListeners = 513;
constexpr int kMaxStreams = 256;  // as many as the egress process gives one cell
constexpr size_t kBuffer = 64 * 1024;

#if defined(__x86_64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_X86_64;
#elif defined(__aarch64__)
constexpr uint32_t kArchitecture = AUDIT_ARCH_AARCH64;
#endif

struct Listener {
  int fd;
  uint32_t number;
};

// One direction of a stream. Filled only when it is empty, so that a slow reader slows its writer.
struct Flow {
  size_t begin, end;
  bool ended;  // its source has no more; what is here is still to be written
  bool shut;   // and its destination has been notified
  char* bytes;

  bool empty() const { return begin == end; }
};

enum class State : uint8_t { kFree, kAsked, kOpen };
struct Stream {
  State state;
  uint64_t id;
  int inner;  // the cell's connection
  int outer;  // the egress process's end
  Flow up, down;
};

int channel;
Listener listeners[kMaxListeners];
int listener_count;
Stream streams[kMaxStreams];
char buffers[kMaxStreams][2][kBuffer];  // pages that no stream ever used cost nothing
int stream_count;
uint64_t last_id;

void Reset(int fd) {
  const linger now{1, 0};
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
}

void Drop(Stream* stream, bool reset) {
  if (reset) {
    Reset(stream->inner);
  } else {
    close(stream->inner);
  }
  if (stream->state == State::kOpen) close(stream->outer);
  stream->state = State::kFree;
  --stream_count;
}

// False: that connection is over, and not as it should be.
bool Write(Flow* flow, int to) {
  while (!flow->empty()) {
    const ssize_t size =
        send(to, flow->bytes + flow->begin, flow->end - flow->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    flow->begin += static_cast<size_t>(size);
  }
  if (flow->ended && !flow->shut) {
    flow->shut = true;
    shutdown(to, SHUT_WR);
  }
  return true;
}

bool Move(Flow* flow, int from, int to) {
  if (flow->empty() && !flow->ended) {
    const ssize_t size = recv(from, flow->bytes, kBuffer, MSG_DONTWAIT);
    if (size < 0) return errno == EAGAIN || errno == EINTR;
    flow->begin = 0;
    flow->end = static_cast<size_t>(size);
    flow->ended = size == 0;
  }
  return Write(flow, to);
}

void Accept(const Listener& listener) {
  const int fd = accept4(listener.fd, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);  // bytes go on as they come
  Stream* stream = streams;
  while (stream->state != State::kFree) ++stream;
  FrameHeader header;
  header.kind = FrameKind::kOpenStream;
  header.a = listener.number;
  header.id = ++last_id;
  if (send(channel, &header, sizeof header, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) return Reset(fd);
  stream->state = State::kAsked;
  stream->id = header.id;
  stream->inner = fd;
  stream->up = {0, 0, false, false, buffers[stream - streams][0]};
  stream->down = {0, 0, false, false, buffers[stream - streams][1]};
  ++stream_count;
}

void OnChannel() {
  FrameHeader header;
  iovec part{&header, sizeof header};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t size = recvmsg(channel, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (size != sizeof header || header.magic != kFrameMagic || header.version != kFrameVersion)
    _exit(0);  // the end of this cell's network, or of whoever served it
  int fd = -1;
  const cmsghdr* rights = CMSG_FIRSTHDR(&message);
  if (rights != nullptr && rights->cmsg_type == SCM_RIGHTS)
    memcpy(&fd, CMSG_DATA(rights), sizeof fd);
  for (Stream& stream : streams) {
    if (stream.state != State::kAsked || stream.id != header.id) continue;
    if (header.kind != FrameKind::kStream || fd < 0) return Drop(&stream, true);
    stream.outer = fd;
    stream.state = State::kOpen;
    return;
  }
  if (fd >= 0) close(fd);
}

// What is waited for of one end: to read when there is room, to write when there is something.
short Wanted(const Flow& in, const Flow& out) {
  return static_cast<short>((in.empty() && !in.ended ? POLLIN : 0) | (out.empty() ? 0 : POLLOUT));
}

void Serve() {
  static pollfd polled[1 + kMaxListeners + 2 * kMaxStreams];
  static Stream* owners[kMaxStreams];
  for (;;) {
    nfds_t count = 0;
    polled[count++] = {channel, POLLIN, 0};
    const bool room = stream_count < kMaxStreams;
    for (int i = 0; i < listener_count; ++i)
      polled[count++] = {room ? listeners[i].fd : -1, POLLIN, 0};
    int open = 0;
    for (Stream& stream : streams) {
      if (stream.state != State::kOpen) continue;
      // An end with nothing to wait for is left out: poll() would report its hang-up again and
      // again.
      const short inner = Wanted(stream.up, stream.down);
      const short outer = Wanted(stream.down, stream.up);
      owners[open++] = &stream;
      polled[count++] = {inner != 0 ? stream.inner : -1, inner, 0};
      polled[count++] = {outer != 0 ? stream.outer : -1, outer, 0};
    }
    if (ppoll(polled, count, nullptr, nullptr) < 0) continue;
    const pollfd* of_stream = polled + 1 + listener_count;
    for (int i = 0; i < open; ++i, of_stream += 2) {
      if (of_stream[0].revents == 0 && of_stream[1].revents == 0) continue;
      Stream* stream = owners[i];
      if (!Move(&stream->up, stream->inner, stream->outer) ||
          !Move(&stream->down, stream->outer, stream->inner)) {
        Drop(stream, true);
      } else if (stream->up.shut && stream->down.shut) {
        Drop(stream, false);
      }
    }
    if (polled[0].revents != 0) OnChannel();
    for (int i = 0; i < listener_count && stream_count < kMaxStreams; ++i) {
      if (polled[1 + i].revents != 0) Accept(listeners[i]);
    }
  }
}

#define ALLOW(number) \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

bool InstallFilter() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, arch)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, kArchitecture, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      ALLOW(__NR_ppoll),
      ALLOW(__NR_recvfrom),
      ALLOW(__NR_sendto),
      ALLOW(__NR_accept4),
      ALLOW(__NR_recvmsg),
      ALLOW(__NR_close),
      ALLOW(__NR_shutdown),
      ALLOW(__NR_setsockopt),
      ALLOW(__NR_restart_syscall),
      ALLOW(__NR_exit_group),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  const sock_fprog program{sizeof filter / sizeof filter[0], filter};
  return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

bool ReadArguments(int count, char** arguments) {
  if (count != 3) return false;
  channel = atoi(arguments[1]);
  for (char* at = arguments[2]; *at != '\0' && listener_count < kMaxListeners;) {
    Listener& listener = listeners[listener_count++];
    listener.fd = static_cast<int>(strtol(at, &at, 10));
    if (*at++ != ':') return false;
    listener.number = static_cast<uint32_t>(strtoul(at, &at, 10));
    if (*at == ',') ++at;
  }
  return listener_count > 0;
}

}  // namespace
}  // namespace hutch

int main(int count, char** arguments) {
  prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
  prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
  if (getppid() == 1) return 0;  // the slot is gone already
  if (!hutch::ReadArguments(count, arguments) || !hutch::InstallFilter()) return 2;
  hutch::Serve();
}
