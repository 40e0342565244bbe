// SPDX-License-Identifier: Apache-2.0

// The server's name in the first bytes of a TLS connection. Reads bytes of a stranger: bounded, and
// no length in them is believed beyond what is there.
//
// A pure function; safe from any thread.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace hutch {

// A hello may be longer in theory; the largest honest ones (post-quantum key shares) have 2 KiB.
inline constexpr size_t kMaxClientHello = 16 * 1024;

struct ClientHello {
  enum class State {
    kMore,       // not all of it is there yet
    kNotTls,     // these are the first bytes of something else
    kMalformed,  // TLS, but no hello that we let through
    kNoName,     // a whole hello without a server's name
    kName,       // a whole hello; `name` is in lower case
  };
  State state = State::kMore;
  std::string name;
};

// REQUIRES: `bytes` are all that the client has sent so far.
ClientHello ReadClientHello(std::string_view bytes);

}  // namespace hutch
