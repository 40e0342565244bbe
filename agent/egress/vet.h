// SPDX-License-Identifier: Apache-2.0

// Which addresses may be dialled: one table of special ranges, and the user's CIDRs that open parts
// of it.
//
// Pure functions, but for IsOwnAddress, which asks the kernel; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

struct sockaddr_storage;

namespace hutch {

struct IpAddress {
  bool v6 = false;
  std::array<uint8_t, 16> bytes{};  // of IPv4: the first four

  bool operator==(const IpAddress&) const = default;
  std::string ToText() const;
};

struct Cidr {
  IpAddress base;
  int bits = 0;
};

// Exactly what inet_pton takes: no zone, no octal, no short form.
std::optional<IpAddress> ParseIp(std::string_view text);
// "10.0.0.0/8", "2001:db8::/32", or a single address.
std::optional<Cidr> ParseCidr(std::string_view text);
bool Contains(const Cidr& cidr, const IpAddress& address);

// Why `address` may not be dialled ("loopback", "private (RFC 1918)", ...); nullopt: it may. A
// special range is open only to a CIDR that lies inside it: 10.0.0.0/8 opens RFC 1918's first
// block, and 0.0.0.0/0 opens nothing, for who writes it means the Internet.
std::optional<std::string> Vet(const IpAddress& address, std::span<const Cidr> named);

// Whether this host has `address` on one of its interfaces.
bool IsOwnAddress(const IpAddress& address);

// The socket address of `address`; its size is returned.
unsigned ToSocketAddress(const IpAddress& address, uint16_t port, sockaddr_storage* out);
std::optional<IpAddress> FromSocketAddress(const sockaddr_storage& in);

}  // namespace hutch
