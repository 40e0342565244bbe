// SPDX-License-Identifier: Apache-2.0

// What one cell may use of the proxy, and the proxy of its host. Values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hutch {

struct EgressLimits {
  size_t connections = 256;           // at once, as far as ShareOf() allows
  uint64_t all_connections = 10'000;  // of one call: ends an endless loop
  uint64_t bytes = 10ull << 30;       // both ways together
  size_t lookups = 4;         // at once: a name server that does not answer delays this cell alone
  size_t lookups_asked = 64;  // running and waiting
  size_t records = 256;       // kept for the outcome
  std::chrono::milliseconds idle{300'000};    // without a byte either way
  std::chrono::milliseconds connect{10'000};  // resolving, all addresses, TLS
  std::chrono::milliseconds attempt{3'000};   // one address, while there are others
  std::chrono::milliseconds head{10'000};     // from the first byte of a head or hello to its last
};

// Descriptors of this process, for all cells together. A stream has two, and a third one until its
// forwarder has taken it.
inline constexpr size_t kOfStream = 3;
inline constexpr int kMostDescriptors = 16 * 1024;
inline constexpr size_t kOwnDescriptors = 64;  // the loop, the agent, certificates, messages

// How many streams one cell may have while all cells together can have `free` more: a quarter of
// those. So a cell that takes all it may leaves more than that to others, however many cells do so:
// k cells with n streams each leave 4n, of which the next one may have a quarter.
constexpr size_t ShareOf(size_t free) { return free == 0 ? 0 : free < 4 ? 1 : free / 4; }

inline constexpr size_t kRelayBuffer = 256 * 1024;
// The kernel's buffer for each direction of a stream, in bytes: smaller when there are many
// streams, because no limit of a cell counts this memory.
constexpr int StreamBuffer(size_t streams) { return streams < 512 ? 256 * 1024 : 32 * 1024; }
inline constexpr unsigned kReadsInARow = 16;  // of one stream, before others are served

}  // namespace hutch
