// SPDX-License-Identifier: Apache-2.0

// What one cell may take of the proxy, and the proxy of its host. Values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hutch {

struct EgressLimits {
  size_t connections = 256;           // at once, where there are enough: see ShareOf()
  uint64_t all_connections = 10'000;  // of one call: a loop that never ends is told so
  uint64_t bytes = 10ull << 30;       // both ways together
  size_t lookups = 4;         // at once: a name server that does not answer stalls its own cell
  size_t lookups_asked = 64;  // and waiting
  size_t records = 256;       // kept for the outcome
  std::chrono::milliseconds idle{300'000};    // without a byte either way
  std::chrono::milliseconds connect{10'000};  // resolving, all addresses, TLS
  std::chrono::milliseconds attempt{3'000};   // one address, while there are others
  std::chrono::milliseconds head{10'000};     // from the first byte of a head or hello to its last
};

// Of all cells together, in descriptors of this process. Each stream is two, and a third one until
// its forwarder has taken that.
inline constexpr size_t kOfStream = 3;
inline constexpr int kMostDescriptors = 16 * 1024;
inline constexpr size_t kOwnDescriptors = 64;  // the loop, the agent, certificates, messages

// How many streams one cell may have where `free` more can be had by all: a quarter. Whoever takes
// all that is allowed leaves more than that to others, so however many do, a cell that has few gets
// more: k such cells of n streams each leave 4n, which is a quarter for the next.
constexpr size_t ShareOf(size_t free) { return free == 0 ? 0 : free < 4 ? 1 : free / 4; }

inline constexpr size_t kRelayBuffer = 256 * 1024;
// Of the kernel, for each direction of a stream: less where there are many streams, for it is
// memory that no limit of a cell counts.
constexpr int StreamBuffer(size_t streams) { return streams < 512 ? 256 * 1024 : 32 * 1024; }
inline constexpr unsigned kReadsInARow = 16;  // of one stream, before the others have their turn

}  // namespace hutch
