// SPDX-License-Identifier: Apache-2.0

// Decides which addresses may be dialled: by a table of special ranges, and the user's CIDRs that
// open parts of it.
//
// Pure functions, except IsOwnAddress, which asks the kernel; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "wire/network.h"

struct sockaddr_storage;

namespace hutch {

// Why `address` may not be dialled ("loopback", "private (RFC 1918)", ...); nullopt: it may. A
// special range is opened only by a CIDR that lies inside it: 10.0.0.0/8 opens RFC 1918's first
// block, and 0.0.0.0/0 opens none of them: a user who writes that means the Internet.
std::optional<std::string> Vet(const IpAddress& address, std::span<const Cidr> named);

// Whether this host has `address` on one of its interfaces.
bool IsOwnAddress(const IpAddress& address);

// Writes the socket address to `out`, and returns its size.
unsigned ToSocketAddress(const IpAddress& address, uint16_t port, sockaddr_storage* out);
std::optional<IpAddress> FromSocketAddress(const sockaddr_storage& in);

}  // namespace hutch
