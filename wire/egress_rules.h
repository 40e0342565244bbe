// SPDX-License-Identifier: Apache-2.0

// What a pool's cells may reach: the rules of `allow_network`, read and answered by one parser for
// client, agent and egress process alike, and the listeners that follow from them.
//
// A name is compared in its normal form only: lower case, letters, digits and hyphens (IDNA already
// applied), no dot at the end. What has no normal form is refused before anything resolves it.
//
// Pure functions of values; safe from any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/values.h"

namespace hutch {

inline constexpr uint16_t kHttpPort = 80;
inline constexpr uint16_t kHttpsPort = 443;
inline constexpr size_t kMaxEgressRules = 256;
inline constexpr size_t kMaxEgressTargets = 512;
inline constexpr uint32_t kProxyListener = 0xffff;
inline constexpr char kProxyAddress[] = "127.63.0.1";
inline constexpr uint16_t kProxyPort = 3128;

struct EgressRule {
  enum class Kind {
    kHost,      // text: the name
    kWildcard,  // text: what follows "*."; the name itself is not meant
    kCidr,  // text: canonical "10.0.0.0/8" or "fd00::/8"; a single address is one of /32 or /128
    kAny,   // text: ""
  };
  Kind kind = Kind::kHost;
  std::string text;
  uint16_t port = 0;  // 0: 443 and 80

  bool operator==(const EgressRule&) const = default;
};

// `name` in normal form; std::nullopt when it is not a valid hostname (an address among others).
std::optional<std::string> NormalHost(std::string_view name);

// Throws kInvalidArgument with what is wrong with it, and a hint.
EgressRule ParseEgressRule(std::string_view text);
std::string ToString(const EgressRule& rule);  // the normal form of its text

bool HasPort(const EgressRule& rule, uint16_t port);

// Whether some rule allows a connection to that name. It decides about names only: a kCidr rule
// allows no name. (A kCidr rule allows a literal address with its port, and it lets a name that
// another rule allows resolve into its network, whatever the port.)
// REQUIRES: `host` is in normal form.
bool Allows(const std::vector<EgressRule>& rules, std::string_view host, uint16_t port);

// One listener of a cell's forwarder: its place in EgressPlan::targets is its number.
struct EgressTarget {
  std::string host;
  uint16_t port = 0;
  // A secret's host: the cell speaks plain HTTP to port 80, the proxy TLS to port 443.
  bool tls_from_proxy = false;
  std::string address;  // the loopback address that stands for `host` inside: one for each host

  bool operator==(const EgressTarget&) const = default;
};
struct EgressPlan {
  std::vector<EgressTarget> targets;
  bool proxy = false;  // wildcards, networks or "*": also HTTP CONNECT and SOCKS5h (kProxyListener)
};

// REQUIRES: the secrets' hosts are in normal form. A secret's host is reachable even if no rule
// names it.
EgressPlan PlanEgress(const std::vector<EgressRule>& rules, const std::vector<SecretRule>& secrets);

// The rules of a pool, whose strings are checked again. Throws kInvalidArgument.
std::vector<EgressRule> EgressRulesOf(const PoolSpec& spec);
inline bool HasNetwork(const PoolSpec& spec) {
  return !spec.allow_network.empty() || !spec.secrets.empty();
}
// Throws kInvalidArgument for rules or secrets that no client of ours sends: a name that is not
// normal, a header that could smuggle another one.
void CheckEgress(const PoolSpec& spec);

}  // namespace hutch
