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

Fd Reopened(int fd, int flags) {
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  Fd opened(::open(path.c_str(), flags | O_CLOEXEC));
  if (!opened) ThrowErrno("open shared memory for a cell");
  return opened;
}

void Seal(int fd, int seals) {
  if (::fcntl(fd, F_ADD_SEALS, seals) != 0) ThrowErrno("seal shared memory");
}

void SetSize(int fd, size_t size) {
  if (::ftruncate(fd, static_cast<off_t>(size)) != 0) ThrowErrno("set the size of shared memory");
}

// A cell is another user, without capabilities: it can neither open it again nor set its times.
void CloseToOthers(int fd, mode_t mode) {
  if (::fchmod(fd, mode) != 0) ThrowErrno("close shared memory to others");
}

Fd MakeFilledMemfd(const char* name, const void* data, size_t size, int seals) {
  Fd fd = MakeMemfd(name);
  CloseToOthers(fd.get(), S_IRUSR);
  const char* bytes = static_cast<const char*>(data);
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::write(fd.get(), bytes + done, size - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) ThrowErrno("write to shared memory");
    done += static_cast<size_t>(n);
  }
  Seal(fd.get(), seals | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL);
  return fd;
}

[[noreturn]] void ThrowShort() {
  throw Error(Code::kProtocol, "a shared memory file is shorter than it says");
}

void ReadAll(int fd, char* to, size_t size) {
  size_t done = 0;
  while (done < size) {
    const ssize_t n = ::pread(fd, to + done, size - done, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) ThrowShort();
    done += static_cast<size_t>(n);
  }
}

}  // namespace

Fd MakeSealedMemfd(const char* name, const void* data, size_t size) {
  return MakeFilledMemfd(name, data, size, F_SEAL_SHRINK);
}

Fd MakeAnswerMemfd(const char* name, const void* data, size_t size) {
  return MakeFilledMemfd(name, data, size, 0);
}

Fd MakeResultMemfd(size_t size) {
  Fd fd = MakeMemfd("hutch-result");
  SetSize(fd.get(), size);
  Seal(fd.get(), F_SEAL_GROW | F_SEAL_SHRINK);
  return fd;
}

std::pair<Fd, Fd> MakeReturnableMemfd(size_t size) {
  Fd fd = MakeMemfd("hutch-result");
  SetSize(fd.get(), size);
  Seal(fd.get(), F_SEAL_GROW | F_SEAL_SEAL);  // a seal of the peer's could forbid TakeBack()
  CloseToOthers(fd.get(), S_IRUSR | S_IWUSR);
  Fd theirs = Reopened(fd.get(), O_RDWR);
  return {std::move(fd), std::move(theirs)};
}

void TakeBack(int fd) noexcept { [[maybe_unused]] const int done = ::ftruncate(fd, 0); }

bool IsHeldElsewhere(int fd) {
  // A lease to write is given where no other open file of it is: nobody could break it, either. The
  // one that a memfd is made with is not counted, so one is opened for this.
  const Fd own = Reopened(fd, O_RDONLY);
  return ::fcntl(own.get(), F_SETLEASE, F_WRLCK) != 0;
}

Fd LendMemfd(int fd) { return Reopened(fd, O_RDONLY); }

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

PrivateMapping::PrivateMapping(int fd, size_t size) : PrivateMapping() {
  // Once it is sealed against writing, nobody can change the pages while we read. The seal fails
  // while the peer holds a writable mapping: then the bytes are copied, and later writes do not
  // matter.
  if (::fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE | F_SEAL_SHRINK) == 0) {
    *this = OfSole(fd, size);
  } else {
    *this = CopyOf(fd, size);
  }
}

PrivateMapping PrivateMapping::OfSole(int fd, size_t size) {
  // Reading a mapping beyond the end of its file ends the process.
  struct stat status;
  if (::fstat(fd, &status) != 0) ThrowErrno("inspect shared memory");
  if (static_cast<uint64_t>(status.st_size) < size) ThrowShort();
  PrivateMapping mapping;
  mapping.size_ = size;
  mapping.Map(fd, MAP_PRIVATE);
  return mapping;
}

PrivateMapping PrivateMapping::CopyOf(int fd, size_t size) {
  PrivateMapping copy;
  copy.size_ = size;
  copy.Map(-1, MAP_PRIVATE | MAP_ANONYMOUS);
  ReadAll(fd, copy.data_, size);
  return copy;
}

void PrivateMapping::Map(int fd, int flags) {
  if (size_ == 0) return;
  void* data = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, flags, fd, 0);
  if (data == MAP_FAILED) ThrowErrno("map a result");
  data_ = static_cast<char*>(data);
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
