// SPDX-License-Identifier: Apache-2.0

#include "wire/memfd.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "wire/error.h"

namespace hutch {
namespace {

Fd MakeMemfd(const char* name) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) ThrowErrno("make shared memory");
  return fd;
}

void ReadAll(int fd, char* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, to + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(Code::kProtocol, "a shared memory file is shorter than it says");
    done += static_cast<size_t>(n);
  }
}

}  // namespace

Fd MakeSealedMemfd(const char* name, const void* data, size_t size) {
  Fd fd = MakeMemfd(name);
  // A cell is another user, without capabilities: it can neither open it again nor set its times.
  if (::fchmod(fd.get(), S_IRUSR) != 0) ThrowErrno("close shared memory to others");
  const char* bytes = static_cast<const char*>(data);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::write(fd.get(), bytes + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowErrno("write to shared memory");
    done += static_cast<size_t>(n);
  }
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_WRITE | F_SEAL_SEAL) !=
      0) {
    ThrowErrno("seal shared memory");
  }
  return fd;
}

Fd MakeResultMemfd(size_t size) {
  Fd fd = MakeMemfd("hutch-result");
  if (::ftruncate(fd.get(), static_cast<off_t>(size)) != 0)
    ThrowErrno("set the size of shared memory");
  if (::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_GROW | F_SEAL_SHRINK) != 0)
    ThrowErrno("seal shared memory");
  return fd;
}

Fd LendMemfd(int fd) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  Fd lent(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!lent) ThrowErrno("open shared memory for a cell");
  return lent;
}

void HoldSharedLocks(int fd) {
  struct flock all{};
  all.l_type = F_RDLCK;
  all.l_whence = SEEK_SET;
  if (::flock(fd, LOCK_SH | LOCK_NB) != 0 || ::fcntl(fd, F_OFD_SETLK, &all) != 0)
    ThrowErrno("lock shared memory");
}

std::string ReadSealedMemfd(int fd, size_t limit) {
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (seals < 0 || !(seals & F_SEAL_SHRINK))
    throw Error(Code::kProtocol, "a shared memory file is not sealed");
  struct stat status;
  if (::fstat(fd, &status) != 0) ThrowErrno("inspect shared memory");
  const auto size = static_cast<size_t>(status.st_size);
  if (size > limit) throw Error(Code::kProtocol, "a message in shared memory is too large");
  std::string bytes(size, '\0');
  ReadAll(fd, bytes.data(), size);
  return bytes;
}

PrivateMapping::PrivateMapping(int fd, size_t size) : size_(size) {
  if (size == 0) return;
  // Once it is sealed against writing, nobody can change the pages while we read. The seal fails
  // while the peer holds a writable mapping: then the bytes are copied, and later writes do not
  // matter.
  const bool sealed = ::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE) == 0;
  void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      sealed ? MAP_PRIVATE : MAP_PRIVATE | MAP_ANONYMOUS, sealed ? fd : -1, 0);
  if (data == MAP_FAILED) ThrowErrno("map a result");
  data_ = static_cast<char*>(data);
  if (!sealed) ReadAll(fd, data_, size);
}

PrivateMapping::PrivateMapping(PrivateMapping&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

PrivateMapping& PrivateMapping::operator=(PrivateMapping&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

PrivateMapping::~PrivateMapping() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace hutch
