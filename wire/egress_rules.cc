// SPDX-License-Identifier: Apache-2.0

#include "wire/egress_rules.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "wire/error.h"
#include "wire/network.h"

namespace hutch {
namespace {

constexpr size_t kMaxName = 253;
constexpr size_t kMaxLabel = 63;
constexpr size_t kMaxHeaderValue = 16 * 1024;
constexpr char kForms[] =
    "give host, host:port, *.host, *.host:port, a network such as 10.1.0.0/16, or *";

[[noreturn]] void Refuse(std::string_view text, const std::string& why) {
  std::string shown;
  for (const char c : text.substr(0, 100))
    shown += c >= 0x20 && c < 0x7f ? c : '?';  // it goes into logs and terminals
  throw Error(Code::kInvalidArgument, "allow_network: '" + shown + "' " + why, kForms);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return c >= 'a' && c <= 'z'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Resolvers take a name whose last label is a number for an address, in more notations than one.
bool LooksLikeNumber(std::string_view label) {
  if (std::ranges::all_of(label, IsDigit)) return true;
  return label.starts_with("0x") && std::ranges::all_of(label.substr(2), [](char c) {
           return IsDigit(c) || (c >= 'a' && c <= 'f');
         });
}

std::optional<uint16_t> ParsePort(std::string_view text) {
  unsigned port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  if (error != std::errc() || end != text.data() + text.size() || text.size() > 5 || port == 0 ||
      port > 65535)
    return std::nullopt;
  return static_cast<uint16_t>(port);
}

// std::nullopt: neither a network nor an address.
std::optional<std::string> CanonicalNetwork(std::string_view text) {
  const std::optional<Cidr> cidr = ParseCidr(text);
  return cidr ? std::optional(Canonical(*cidr)) : std::nullopt;
}

// The i-th host's own loopback address.
std::string AddressOf(size_t i) {
  std::string address = "127.64.";
  return address.append(std::to_string(i / 254)).append(".").append(std::to_string(1 + i % 254));
}

bool IsToken(std::string_view text) {
  return !text.empty() && text.size() <= 128 && std::ranges::all_of(text, [](char c) {
    return IsDigit(c) || IsLetter(Lower(c)) ||
           std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
  });
}

bool IsHeaderValue(std::string_view text) {
  return !text.empty() && text.size() <= kMaxHeaderValue && std::ranges::all_of(text, [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
}

}  // namespace

std::optional<std::string> NormalHost(std::string_view name) {
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty() || name.size() > kMaxName) return std::nullopt;
  std::string normal(name);
  std::ranges::transform(normal, normal.begin(), Lower);
  std::string_view rest = normal;
  std::string_view label;
  for (;;) {
    const size_t dot = rest.find('.');
    label = rest.substr(0, dot);
    if (label.empty() || label.size() > kMaxLabel || label.front() == '-' || label.back() == '-')
      return std::nullopt;
    if (!std::ranges::all_of(label, [](char c) { return IsDigit(c) || IsLetter(c) || c == '-'; }))
      return std::nullopt;
    if (dot == std::string_view::npos) break;
    rest.remove_prefix(dot + 1);
  }
  if (LooksLikeNumber(label)) return std::nullopt;
  return normal;
}

EgressRule ParseEgressRule(std::string_view text) {
  if (text.empty()) Refuse(text, "is empty");
  if (text.find("://") != std::string_view::npos) Refuse(text, "is a URL: give its host alone");
  if (std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) >= 0x80; }))
    Refuse(text, "is not ASCII: give the name as IDNA writes it (xn--…)");
  EgressRule rule;
  std::string_view host = text;
  std::string_view port;
  bool has_port = false;
  const size_t colon = text.rfind(':');
  if (text.front() == '[') {  // [address] or [address]:port
    const size_t end = text.find(']');
    if (end == std::string_view::npos) Refuse(text, "has a '[' without its ']'");
    host = text.substr(1, end - 1);
    if (host.find(':') == std::string_view::npos) Refuse(text, "has no IPv6 address in brackets");
    const std::string_view rest = text.substr(end + 1);
    has_port = !rest.empty();
    if (has_port && rest.front() != ':') Refuse(text, "has something other than a port after ']'");
    if (has_port) port = rest.substr(1);
  } else if (colon != std::string_view::npos && text.find(':') == colon) {
    has_port = true;
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (has_port) {
    const auto number = ParsePort(port);
    if (!number) Refuse(text, "has no port from 1 to 65535 after the ':'");
    rule.port = *number;
  }
  if (host == "*") {
    rule.kind = EgressRule::Kind::kAny;
    return rule;
  }
  if (const auto network = CanonicalNetwork(host)) {
    rule.kind = EgressRule::Kind::kCidr;
    rule.text = *network;
    return rule;
  }
  if (host.find('/') != std::string_view::npos)
    Refuse(text, "is not a network, and a host has no path");
  if (host.starts_with("*.")) {
    rule.kind = EgressRule::Kind::kWildcard;
    host.remove_prefix(2);
  }
  const auto name = NormalHost(host);
  if (!name) Refuse(text, "is not a valid hostname");
  rule.text = *name;
  return rule;
}

std::string ToString(const EgressRule& rule) {
  std::string text = rule.text;
  if (rule.kind == EgressRule::Kind::kAny) text.push_back('*');
  if (rule.kind == EgressRule::Kind::kWildcard) text.insert(0, "*.");
  if (rule.port == 0) return text;
  if (text.find(':') != std::string::npos) text.insert(0, 1, '[').push_back(']');
  return text.append(":").append(std::to_string(rule.port));
}

bool HasPort(const EgressRule& rule, uint16_t port) {
  return rule.port == port || (rule.port == 0 && (port == kHttpPort || port == kHttpsPort));
}

bool Allows(const std::vector<EgressRule>& rules, std::string_view host, uint16_t port) {
  return std::ranges::any_of(rules, [&](const EgressRule& rule) {
    if (!HasPort(rule, port)) return false;
    switch (rule.kind) {
      case EgressRule::Kind::kHost:
        return host == rule.text;
      case EgressRule::Kind::kWildcard:
        return host.size() > rule.text.size() + 1 && host.ends_with(rule.text) &&
               host[host.size() - rule.text.size() - 1] == '.';
      case EgressRule::Kind::kCidr:
        return false;
      case EgressRule::Kind::kAny:
        return true;
    }
    return false;
  });
}

EgressPlan PlanEgress(const std::vector<EgressRule>& rules,
                      const std::vector<SecretRule>& secrets) {
  EgressPlan plan;
  std::vector<std::string> hosts;
  const auto add = [&](const std::string& host, uint16_t port, bool tls_from_proxy) {
    const bool known = std::ranges::any_of(plan.targets, [&](const EgressTarget& target) {
      return target.host == host && target.port == port;
    });
    if (known) return;
    auto place = std::ranges::find(hosts, host);
    if (place == hosts.end()) place = hosts.insert(place, host);
    plan.targets.push_back(
        {host, port, tls_from_proxy, AddressOf(static_cast<size_t>(place - hosts.begin()))});
  };
  for (const SecretRule& secret : secrets) add(secret.host, kHttpPort, true);
  for (const EgressRule& rule : rules) {
    if (rule.kind != EgressRule::Kind::kHost) {
      plan.proxy = true;
    } else if (rule.port != 0) {
      add(rule.text, rule.port, false);
    } else {
      add(rule.text, kHttpsPort, false);
      add(rule.text, kHttpPort, false);
    }
  }
  return plan;
}

std::vector<EgressRule> EgressRulesOf(const PoolSpec& spec) {
  std::vector<EgressRule> rules;
  for (const std::string& text : spec.allow_network) rules.push_back(ParseEgressRule(text));
  return rules;
}

void CheckEgress(const PoolSpec& spec) {
  const auto refuse = [](const std::string& what) { throw Error(Code::kInvalidArgument, what); };
  if (spec.allow_network.size() > kMaxEgressRules || spec.secrets.size() > kMaxEgressRules)
    refuse("allow_network and secrets have at most 256 entries each");
  if (PlanEgress(EgressRulesOf(spec), spec.secrets).targets.size() > kMaxEgressTargets)
    refuse("allow_network and secrets name more than 512 hosts and ports in all");
  for (const SecretRule& secret : spec.secrets) {
    if (NormalHost(secret.host) != secret.host)
      refuse("secrets: '" + secret.host.substr(0, 100) + "' is not a valid hostname");
    if (!IsToken(secret.header)) refuse("secrets: the header is not a valid header name");
    if (!IsHeaderValue(secret.value))
      refuse("secrets: the value for " + secret.header + " of " + secret.host +
             " is empty, too long, or holds control characters");
    for (const std::string& path : secret.paths)
      if (!path.starts_with('/')) refuse("secrets: a path begins with '/'");
    for (const std::string& method : secret.methods)
      if (!IsToken(method)) refuse("secrets: a method is a word such as GET");
  }
}

}  // namespace hutch
