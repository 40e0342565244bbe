// SPDX-License-Identifier: Apache-2.0

// Mutations of what is asked of a proxy that know its three forms, CONNECT, absolute and SOCKS5:
// hosts, ports, paths and headers are changed, and added and left out as wholes, so that most
// mutants still name a host. Stateless.
#pragma once

#include <cstdint>
#include <string>

namespace hutch {

// What asks for nothing is replaced by what does, or stays as it is, as `seed` chooses. The same
// seed gives the same mutant.
void MutateAsked(std::string& bytes, uint32_t seed);

}  // namespace hutch
