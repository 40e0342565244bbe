// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/vet.h"

#include <gtest/gtest.h>

#include <vector>

namespace hutch {
namespace {

std::string Class(const char* text, const std::vector<Cidr>& named = {}) {
  return Vet(ParseIp(text).value(), named).value_or("");
}

TEST(Vet, RefusesEverySpecialRangeByName) {
  const struct {
    const char* address;
    const char* what;
  } cases[] = {
      {"127.0.0.1", "loopback"},
      {"127.255.255.255", "loopback"},
      {"0.0.0.0", "this network"},
      {"0.1.2.3", "this network"},
      {"10.0.2.2", "private (RFC 1918)"},
      {"172.16.0.1", "private (RFC 1918)"},
      {"172.31.255.255", "private (RFC 1918)"},
      {"192.168.1.1", "private (RFC 1918)"},
      {"100.64.0.1", "shared by a carrier's NAT"},
      {"100.127.255.255", "shared by a carrier's NAT"},
      {"169.254.1.1", "link-local"},
      {"169.254.169.254", "cloud metadata"},
      {"168.63.129.16", "cloud metadata"},
      {"100.100.100.200", "cloud metadata"},
      {"192.0.0.192", "cloud metadata"},
      {"192.0.0.1", "IETF protocols"},
      {"192.0.2.1", "documentation"},
      {"192.88.99.1", "6to4 relays"},
      {"198.18.0.1", "benchmarks"},
      {"198.19.255.255", "benchmarks"},
      {"198.51.100.7", "documentation"},
      {"203.0.113.9", "documentation"},
      {"224.0.0.1", "multicast"},
      {"239.255.255.255", "multicast"},
      {"240.0.0.1", "reserved"},
      {"255.255.255.255", "reserved"},
      {"::", "unspecified"},
      {"::1", "loopback"},
      {"::127.0.0.1", "IPv4-compatible"},
      {"::ffff:127.0.0.1", "IPv4-mapped"},
      {"::ffff:8.8.8.8", "IPv4-mapped"},
      {"::ffff:0:8.8.8.8", "IPv4-translated"},
      {"64:ff9b::7f00:1", "NAT64"},
      {"64:ff9b:1::1", "NAT64"},
      {"100::1", "discard"},
      {"2001::1", "Teredo"},
      {"2001:1::1", "IETF protocols"},
      {"2001:db8::1", "documentation"},
      {"2002:7f00:1::", "6to4"},
      {"3fff::1", "documentation"},
      {"fd00:ec2::254", "cloud metadata"},
      {"fc00::1", "unique local"},
      {"fdff::1", "unique local"},
      {"fe80::1", "link-local"},
      {"fec0::1", "site-local"},
      {"ff02::1", "multicast"},
      {"4000::1", "not a global address"},
      {"5f00::1", "not a global address"},
  };
  for (const auto& c : cases) EXPECT_EQ(Class(c.address), c.what) << c.address;
}

TEST(Vet, LetsPublicAddressesThrough) {
  for (const char* address :
       {"1.1.1.1", "8.8.8.8", "9.255.255.255", "11.0.0.0", "100.63.255.255", "100.128.0.0",
        "126.255.255.255", "128.0.0.0", "172.15.255.255", "172.32.0.0", "192.167.255.255",
        "223.255.255.255", "2606:4700:4700::1111", "2a00:1450::1", "2001:200::1"}) {
    EXPECT_EQ(Class(address), "") << address;
  }
}

TEST(Vet, OpensASpecialRangeOnlyToACidrInsideIt) {
  const auto named = [](const char* text) { return std::vector<Cidr>{ParseCidr(text).value()}; };
  EXPECT_EQ(Class("127.0.0.1", named("127.0.0.0/8")), "");
  EXPECT_EQ(Class("127.0.0.1", named("127.0.0.1")), "");
  EXPECT_EQ(Class("127.0.0.2", named("127.0.0.1/32")), "loopback");
  EXPECT_EQ(Class("10.1.2.3", named("10.1.0.0/16")), "");
  EXPECT_EQ(Class("10.1.2.3", named("0.0.0.0/0")), "private (RFC 1918)");
  EXPECT_EQ(Class("10.1.2.3", named("0.0.0.0/1")), "private (RFC 1918)");
  EXPECT_EQ(Class("::1", named("::/0")), "loopback");
  EXPECT_EQ(Class("fd00::5", named("fd00::/8")), "");
  // A whole link-local range does not name the metadata service in it; its address does.
  EXPECT_EQ(Class("169.254.169.254", named("169.254.0.0/16")), "cloud metadata");
  EXPECT_EQ(Class("169.254.169.254", named("169.254.169.254/32")), "");
  // A rule for IPv4 opens no IPv6 form of it.
  EXPECT_EQ(Class("::ffff:127.0.0.1", named("127.0.0.0/8")), "IPv4-mapped");
}

TEST(Vet, ReadsAddressesStrictly) {
  for (const char* text : {"", "127.1", "0177.0.0.1", "0x7f.0.0.1", "2130706433", "1.2.3.4 ",
                           "1.2.3.256", "1.2.3", "fe80::1%eth0", "[::1]", ":::", "1::2::3"}) {
    EXPECT_FALSE(ParseIp(text)) << text;
  }
  for (const char* text : {"10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/+8", "::/129",
                           "10.0.0.0/8/8", "name/8"}) {
    EXPECT_FALSE(ParseCidr(text)) << text;
  }
  EXPECT_EQ(ParseIp("2001:DB8::1")->ToText(), "2001:db8::1");
}

TEST(Vet, KnowsTheHostsOwnAddresses) {
  EXPECT_TRUE(IsOwnAddress(ParseIp("127.0.0.1").value()));
  EXPECT_FALSE(IsOwnAddress(ParseIp("1.1.1.1").value()));
}

}  // namespace
}  // namespace hutch
