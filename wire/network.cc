// SPDX-License-Identifier: Apache-2.0

#include "wire/network.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

namespace hutch {

std::string IpAddress::ToText() const {
  char text[INET6_ADDRSTRLEN] = {};
  ::inet_ntop(v6 ? AF_INET6 : AF_INET, bytes.data(), text, sizeof text);
  return text;
}

std::optional<IpAddress> ParseIp(std::string_view text) {
  if (text.empty() || text.size() >= INET6_ADDRSTRLEN || text.find('\0') != text.npos) return {};
  const std::string copy(text);
  IpAddress address;
  address.v6 = text.find(':') != text.npos;
  if (::inet_pton(address.v6 ? AF_INET6 : AF_INET, copy.c_str(), address.bytes.data()) != 1)
    return {};
  return address;
}

std::optional<Cidr> ParseCidr(std::string_view text) {
  const size_t slash = text.find('/');
  const std::optional<IpAddress> base = ParseIp(text.substr(0, slash));
  if (!base) return {};
  const int most = base->v6 ? 128 : 32;
  if (slash == text.npos) return Cidr{*base, most};
  const std::string_view digits = text.substr(slash + 1);
  unsigned bits = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), bits);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() > 3 ||
      bits > static_cast<unsigned>(most))
    return {};
  return Cidr{*base, static_cast<int>(bits)};
}

bool Contains(const Cidr& cidr, const IpAddress& address) {
  if (cidr.base.v6 != address.v6) return false;
  const auto whole = static_cast<size_t>(cidr.bits / 8);
  if (!std::equal(cidr.base.bytes.begin(), cidr.base.bytes.begin() + static_cast<long>(whole),
                  address.bytes.begin()))
    return false;
  const int rest = cidr.bits % 8;
  return rest == 0 || (cidr.base.bytes[whole] ^ address.bytes[whole]) >> (8 - rest) == 0;
}

bool Contains(const Cidr& outer, const Cidr& inner) {
  return outer.bits <= inner.bits && Contains(outer, inner.base);
}

std::string Canonical(const Cidr& cidr) {
  IpAddress base = cidr.base;
  for (int bit = cidr.bits; bit < (base.v6 ? 128 : 32); ++bit) {
    uint8_t& byte = base.bytes[static_cast<size_t>(bit / 8)];
    byte = static_cast<uint8_t>(byte & ~(0x80u >> bit % 8));
  }
  return base.ToText() + "/" + std::to_string(cidr.bits);
}

}  // namespace hutch
