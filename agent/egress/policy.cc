// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/policy.h"

#include <algorithm>
#include <utility>

namespace hutch {

EgressPolicy::EgressPolicy(const std::vector<std::string>& allow_network,
                           std::vector<SecretRule> its_secrets)
    : secrets(std::move(its_secrets)) {
  for (const std::string& text : allow_network) rules.push_back(ParseEgressRule(text));
  plan = PlanEgress(rules, secrets);
  for (const EgressRule& rule : rules) {
    if (rule.kind != EgressRule::Kind::kCidr) continue;
    if (const auto cidr = ParseCidr(rule.text)) named.push_back(*cidr);
  }
}

std::vector<SecretRule> EgressPolicy::SecretsOf(const std::string& host) const {
  std::vector<SecretRule> found;
  for (const SecretRule& secret : secrets) {
    if (secret.host == host) found.push_back(secret);
  }
  return found;
}

bool EgressPolicy::MayAsk(const Authority& to) const {
  if (!to.literal) {
    return Allows(rules, to.host, to.port) || (to.port == kHttpPort && !SecretsOf(to.host).empty());
  }
  const std::optional<IpAddress> address = ParseIp(to.host);
  return address && std::ranges::any_of(rules, [&](const EgressRule& rule) {
           if (!HasPort(rule, to.port)) return false;
           if (rule.kind == EgressRule::Kind::kAny) return true;
           if (rule.kind != EgressRule::Kind::kCidr) return false;
           const auto cidr = ParseCidr(rule.text);
           return cidr && Contains(*cidr, *address);
         });
}

bool EgressPolicy::NamesOwnAddress(const IpAddress& address) const {
  return std::ranges::any_of(
      named, [&](const Cidr& cidr) { return cidr.bits > 0 && Contains(cidr, address); });
}

}  // namespace hutch
