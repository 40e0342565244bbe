// Shared memory made by us and handed to a peer: every memfd of Hutch is made on the host and
// sealed before it is sent.
#pragma once

#include <cstddef>
#include <span>
#include <string>

#include "wire/fd.h"

namespace hutch {

// A memfd holding a copy of `data`, sealed against every change.
Fd MakeSealedMemfd(const char* name, const void* data, size_t size);

// An empty memfd of exactly `size` bytes for a peer to fill: sealed GROW|SHRINK, so that it cannot
// be truncated under us.
Fd MakeResultMemfd(size_t size);

// Reads all of a memfd that must be sealed against shrinking. Throws kProtocol when it is not, or
// is over `limit`.
std::string ReadSealedMemfd(int fd, size_t limit);

// A private, writable, copy-on-write mapping of a memfd, or a copy where the peer kept a writable
// mapping of it.
class PrivateMapping {
 public:
  PrivateMapping() = default;
  // REQUIRES: `fd` came from MakeResultMemfd() of at least `size`.
  PrivateMapping(int fd, size_t size);
  PrivateMapping(PrivateMapping&& other) noexcept;
  PrivateMapping& operator=(PrivateMapping&& other) noexcept;
  ~PrivateMapping();

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hutch
