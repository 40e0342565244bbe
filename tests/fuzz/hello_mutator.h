// SPDX-License-Identifier: Apache-2.0

// Mutations of a TLS hello that know its form: names, extensions and the other fields are changed,
// doubled, exchanged and left out as wholes, and every length is written anew, so that most mutants
// are still hellos. Stateless.
#pragma once

#include <cstdint>
#include <string>

namespace hutch {

// Of the body of a hello, as the handshake's header is followed by it. What is none is one from the
// beginning, or stays as it is, as `seed` chooses. The same seed gives the same mutant.
void MutateHello(std::string& body, uint32_t seed);

}  // namespace hutch
