// SPDX-License-Identifier: Apache-2.0

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

// For a memfd that several peers are lent: an open file of its own, to read by, for one of them.
// Offset, flags and locks are then its own too.
Fd LendMemfd(int fd);

// Takes a shared lock of each kind, for as long as `fd` is open: nobody who is lent the memfd can
// then lock it exclusively, so two of them cannot tell each other anything by that.
void HoldSharedLocks(int fd);

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
