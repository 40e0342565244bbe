// SPDX-License-Identifier: Apache-2.0

#include "wire/channel.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

#include <cerrno>
#include <cstring>

#include "wire/error.h"

namespace hutch {
namespace {

constexpr size_t kMaxDatagramDescriptors = 16;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    throw Error(Code::kInvalidArgument, "the socket path is too long: " + path,
                "set HUTCH_HOME or XDG_RUNTIME_DIR to a shorter path");
  }
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  return address;
}

}  // namespace

SendStatus SendDatagram(int fd, std::span<const iovec> parts, std::span<const int> descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDatagramDescriptors)];
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts.data());
  message.msg_iovlen = parts.size();
  if (!descriptors.empty()) {
    if (descriptors.size() > kMaxDatagramDescriptors)
      throw Error(Code::kInternal, "a message cannot be sent: it has too many descriptors");
    const size_t bytes = descriptors.size() * sizeof(int);
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(bytes);
    std::memset(control, 0, message.msg_controllen);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(bytes);
    std::memcpy(CMSG_DATA(header), descriptors.data(), bytes);
  }
  for (;;) {
    if (::sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return SendStatus::kSent;
    if (errno == EINTR) continue;
    if (errno == EAGAIN || errno == ENOBUFS) return SendStatus::kFull;
    if (errno == ETOOMANYREFS) return SendStatus::kNoDescriptors;
    if (errno == EPIPE || errno == ECONNRESET || errno == ENOTCONN || errno == ECONNREFUSED)
      return SendStatus::kClosed;
    ThrowErrno("send a message");
  }
}

ReceiveResult ReceiveDatagram(int fd, std::span<char> buffer, std::vector<Fd>* descriptors,
                              int max_descriptors) {
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMaxDatagramDescriptors)];
  iovec part{buffer.data(), buffer.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (max_descriptors > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(sizeof(int) * static_cast<size_t>(max_descriptors));
  }
  ssize_t n;
  do {
    n = ::recvmsg(fd, &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (n < 0 && errno == EINTR);
  if (n < 0) {
    if (errno == EAGAIN) return {ReceiveStatus::kNothing};
    if (errno == ECONNRESET || errno == EPIPE || errno == ENOTCONN) return {ReceiveStatus::kClosed};
    ThrowErrno("receive a message");
  }
  if (max_descriptors > 0) {
    for (cmsghdr* h = CMSG_FIRSTHDR(&message); h != nullptr; h = CMSG_NXTHDR(&message, h)) {
      if (h->cmsg_level != SOL_SOCKET || h->cmsg_type != SCM_RIGHTS) continue;
      const size_t count = (h->cmsg_len - CMSG_LEN(0)) / sizeof(int);
      for (size_t i = 0; i < count; ++i) {
        int received;
        std::memcpy(&received, CMSG_DATA(h) + i * sizeof(int), sizeof received);
        descriptors->emplace_back(received);
      }
    }
  }
  if (message.msg_flags & MSG_TRUNC) return {ReceiveStatus::kTruncated};
  if (message.msg_flags & MSG_CTRUNC && max_descriptors > 0) return {ReceiveStatus::kTruncated};
  if (n == 0) return {ReceiveStatus::kClosed};
  return {ReceiveStatus::kData, static_cast<size_t>(n)};
}

std::pair<Fd, Fd> MakeSocketPair() {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    ThrowErrno("make a pair of sockets");
  return {Fd(ends[0]), Fd(ends[1])};
}

std::pair<Fd, Fd> MakePipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) ThrowErrno("make a pipe");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  return {Fd(ends[0]), Fd(ends[1])};
}

Fd ListenAt(const std::string& path, int backlog, unsigned mode) {
  const sockaddr_un address = AddressOf(path);
  struct stat status;
  if (::lstat(path.c_str(), &status) == 0) {
    if (!S_ISSOCK(status.st_mode)) {
      throw Error(Code::kPlatform, path + " exists and is not a socket", "remove it: rm " + path);
    }
    ::unlink(path.c_str());
  }
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) ThrowErrno("make a socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    ThrowErrno("make the socket " + path);
  if (::chmod(path.c_str(), mode) != 0) ThrowErrno("set the mode of " + path);
  if (::listen(fd.get(), backlog) != 0) ThrowErrno("listen at " + path);
  return fd;
}

Fd ConnectTo(const std::string& path, long euid) {
  const sockaddr_un address = AddressOf(path);
  Fd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  if (!fd) ThrowErrno("make a socket");
  // The raw system call changes this thread alone; glibc's seteuid() would change every thread of
  // the process.
  const bool switched = euid >= 0 && ::geteuid() == 0 && euid != 0;
  if (switched && ::syscall(SYS_setresuid, -1, euid, -1) != 0)
    ThrowErrno("take on the user of a socket");
  int result;
  do {
    result = ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  } while (result != 0 && errno == EINTR);
  const int error = errno;
  if (switched && ::syscall(SYS_setresuid, -1, 0, -1) != 0) ThrowErrno("become root again");
  if (result == 0) return fd;
  errno = error;
  if (error == ENOENT || error == ECONNREFUSED || error == ENOTDIR) return Fd();
  ThrowErrno("connect to " + path, Code::kUnavailable);
}

PeerCredentials PeerOf(int fd) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0)
    ThrowErrno("ask who is at the other end of a socket");
  return {credentials.pid, credentials.uid};
}

}  // namespace hutch
