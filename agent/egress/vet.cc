// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/vet.h"

#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <vector>

namespace hutch {
namespace {

struct Special {
  const char* range;
  const char* what;
};

// IANA's registries of special-purpose addresses, and the metadata services of clouds. The first
// range that holds an address decides, so the narrow ones come before the wide ones.
constexpr Special kSpecial[] = {
    {"169.254.169.254/32", "cloud metadata"},
    {"168.63.129.16/32", "cloud metadata"},
    {"100.100.100.200/32", "cloud metadata"},
    {"192.0.0.192/32", "cloud metadata"},
    {"fd00:ec2::254/128", "cloud metadata"},
    {"fd20:ce::254/128", "cloud metadata"},
    {"0.0.0.0/8", "this network"},
    {"10.0.0.0/8", "private (RFC 1918)"},
    {"100.64.0.0/10", "shared by a carrier's NAT"},
    {"127.0.0.0/8", "loopback"},
    {"169.254.0.0/16", "link-local"},
    {"172.16.0.0/12", "private (RFC 1918)"},
    {"192.0.0.0/24", "IETF protocols"},
    {"192.0.2.0/24", "documentation"},
    {"192.88.99.0/24", "6to4 relays"},
    {"192.168.0.0/16", "private (RFC 1918)"},
    {"198.18.0.0/15", "benchmarks"},
    {"198.51.100.0/24", "documentation"},
    {"203.0.113.0/24", "documentation"},
    {"224.0.0.0/4", "multicast"},
    {"240.0.0.0/4", "reserved"},
    {"::/128", "unspecified"},
    {"::1/128", "loopback"},
    {"::/96", "IPv4-compatible"},
    {"::ffff:0:0/96", "IPv4-mapped"},
    {"::ffff:0:0:0/96", "IPv4-translated"},
    {"64:ff9b::/96", "NAT64"},
    {"64:ff9b:1::/48", "NAT64"},
    {"100::/64", "discard"},
    {"2001::/32", "Teredo"},
    {"2001::/23", "IETF protocols"},
    {"2001:db8::/32", "documentation"},
    {"2002::/16", "6to4"},
    {"3fff::/20", "documentation"},
    {"fc00::/7", "unique local"},
    {"fe80::/10", "link-local"},
    {"fec0::/10", "site-local"},
    {"ff00::/8", "multicast"},
};

struct Range {
  Cidr cidr;
  const char* what;
};

const std::vector<Range>& Ranges() {
  static const std::vector<Range> ranges = [] {
    std::vector<Range> made;
    for (const Special& special : kSpecial)
      made.push_back({*ParseCidr(special.range), special.what});
    return made;
  }();
  return ranges;
}

bool GlobalUnicast(const IpAddress& address) {
  return !address.v6 || (address.bytes[0] & 0xe0) == 0x20;  // 2000::/3
}

}  // namespace

std::optional<std::string> Vet(const IpAddress& address, std::span<const Cidr> named) {
  for (const Range& range : Ranges()) {
    if (!Contains(range.cidr, address)) continue;
    const bool open = std::ranges::any_of(named, [&](const Cidr& cidr) {
      return cidr.bits >= range.cidr.bits && Contains(range.cidr, cidr.base) &&
             Contains(cidr, address);
    });
    if (open) return std::nullopt;
    return range.what;
  }
  if (!GlobalUnicast(address)) return "not a global address";
  return std::nullopt;
}

bool IsOwnAddress(const IpAddress& address) {
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return true;  // unknown: refused
  bool own = false;
  for (const ifaddrs* item = list; item != nullptr && !own; item = item->ifa_next) {
    if (item->ifa_addr == nullptr) continue;
    const int family = item->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage copy{};
    std::memcpy(&copy, item->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    own = FromSocketAddress(copy) == address;
  }
  ::freeifaddrs(list);
  return own;
}

unsigned ToSocketAddress(const IpAddress& address, uint16_t port, sockaddr_storage* out) {
  *out = {};
  if (!address.v6) {
    sockaddr_in v4{};
    v4.sin_family = AF_INET;
    v4.sin_port = htons(port);
    std::memcpy(&v4.sin_addr, address.bytes.data(), 4);
    std::memcpy(out, &v4, sizeof v4);
    return sizeof v4;
  }
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_port = htons(port);
  std::memcpy(&v6.sin6_addr, address.bytes.data(), 16);
  std::memcpy(out, &v6, sizeof v6);
  return sizeof v6;
}

std::optional<IpAddress> FromSocketAddress(const sockaddr_storage& in) {
  IpAddress address;
  if (in.ss_family == AF_INET) {
    sockaddr_in v4;
    std::memcpy(&v4, &in, sizeof v4);
    std::memcpy(address.bytes.data(), &v4.sin_addr, 4);
    return address;
  }
  if (in.ss_family != AF_INET6) return std::nullopt;
  sockaddr_in6 v6;
  std::memcpy(&v6, &in, sizeof v6);
  address.v6 = true;
  std::memcpy(address.bytes.data(), &v6.sin6_addr, 16);
  return address;
}

}  // namespace hutch
