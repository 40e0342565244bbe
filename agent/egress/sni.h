// SPDX-License-Identifier: Apache-2.0

// Reads the server's name from the first bytes of a TLS connection. The bytes are untrusted: all
// is bounded, and no length in them is believed beyond the bytes that are there.
//
// A pure function; safe from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hutch {

// The largest honest hellos (with post-quantum key shares) have 2 KiB; the standard allows more.
inline constexpr size_t kMaxClientHello = 16 * 1024;

struct ClientHello {
  enum class State {
    kMore,       // incomplete so far
    kNotTls,     // these are the first bytes of something else
    kMalformed,  // TLS, but not a hello that may pass
    kNoName,     // a whole hello without a server's name
    kName,       // a whole hello; `name` is in lower case
  };
  State state = State::kMore;
  std::string name;
};

// REQUIRES: `bytes` are all that the client has sent so far.
ClientHello ReadClientHello(std::string_view bytes);

}  // namespace hutch
