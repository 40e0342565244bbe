// SPDX-License-Identifier: Apache-2.0

// Addresses and networks as they are written. Pure functions; safe from any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

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
// Whether every address of `inner` is one of `outer`.
bool Contains(const Cidr& outer, const Cidr& inner);
// The network as text, without the bits of a host: "10.1.2.3/8" as "10.0.0.0/8".
std::string Canonical(const Cidr& cidr);

}  // namespace hutch
