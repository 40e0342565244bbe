// What one cell may take of the proxy. Values.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

namespace hutch {

struct EgressLimits {
  size_t connections = 256;           // at once: each is two descriptors of ours
  uint64_t all_connections = 10'000;  // of one call: a loop that never ends is told so
  uint64_t bytes = 10ull << 30;       // both ways together
  size_t lookups = 4;    // at once: a name server that does not answer stalls its own cell
  size_t records = 256;  // kept for the outcome
  std::chrono::milliseconds idle{300'000};    // without a byte either way
  std::chrono::milliseconds connect{10'000};  // resolving, all addresses, TLS
  std::chrono::milliseconds attempt{3'000};   // one address, while there are others
  std::chrono::milliseconds head{10'000};     // from the first byte of a head or hello to its last
};

inline constexpr size_t kRelayBuffer = 256 * 1024;
inline constexpr unsigned kReadsInARow = 16;  // of one stream, before the others have their turn

}  // namespace hutch
