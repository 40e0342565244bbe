// SPDX-License-Identifier: Apache-2.0

// Shared memory made by us and handed to a peer: every memfd of Hutch is made on the host and
// sealed before it is sent.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <utility>

#include "wire/fd.h"

namespace hutch {

// A memfd holding a copy of `data`, sealed against every change.
Fd MakeSealedMemfd(const char* name, const void* data, size_t size);

// The same, but that it may be taken back: TakeBack().
Fd MakeAnswerMemfd(const char* name, const void* data, size_t size);

// An empty memfd of exactly `size` bytes for a peer to fill: sealed GROW|SHRINK, so that it cannot
// be truncated under us.
Fd MakeResultMemfd(size_t size);

// The same for a peer that outlives what it fills: sealed GROW only, and against other seals, so
// that it may be taken back. The peer may truncate it: it is read by CopyOf(), or by OfSole() once
// IsHeldElsewhere() is false. The second one is an open file of its own, for the peer.
std::pair<Fd, Fd> MakeReturnableMemfd(size_t size);

// Frees all of it, whoever still has it open or mapped, and for good: it cannot grow again.
// REQUIRES: of MakeAnswerMemfd() or MakeReturnableMemfd().
void TakeBack(int fd) noexcept;

// Whether another open file of it is there, in whatever process, table or queue, or what was mapped
// by one. REQUIRES: others were given open files of their own only, and cannot open it anew.
// True, too, where the kernel does not say.
bool IsHeldElsewhere(int fd);

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
  // REQUIRES: `fd` came from MakeResultMemfd(). Throws kProtocol where it has less than `size`.
  PrivateMapping(int fd, size_t size);
  // REQUIRES: nobody else can change the file any more. Throws kProtocol where it has less.
  static PrivateMapping OfSole(int fd, size_t size);
  // A copy of the first `size` bytes. Throws kProtocol where there are less.
  static PrivateMapping CopyOf(int fd, size_t size);
  PrivateMapping(PrivateMapping&& other) noexcept;
  PrivateMapping& operator=(PrivateMapping&& other) noexcept;
  ~PrivateMapping();

  char* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  void Map(int fd, int flags);

  char* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hutch
