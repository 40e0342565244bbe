// SPDX-License-Identifier: Apache-2.0

#include "agent/ceiling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "agent/limits.h"
#include "wire/network.h"

namespace hutch {
namespace {

std::string Number(double value) {
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}

class Check {
 public:
  explicit Check(std::string_view whose) : whose_(whose) {}

  void Limit(const LimitField& limit, double asked, std::optional<double> allowed) {
    if (error_ || !allowed) return;
    const bool none = limit.can_be_none && asked == 0;
    // A request arrives rounded up to whole milliseconds and bytes.
    if (!none && asked <= *allowed * (1 + 1e-9) + 0.001) return;
    Refuse(limit.name, none ? "None (unlimited)" : Number(asked),
           "at most " + std::string(limit.name) + "=" + Number(*allowed));
  }
  void Refuse(const std::string& keyword, const std::string& asked, const std::string& allowed) {
    if (error_) return;
    error_ = Error(Code::kInvalidArgument,
                   keyword + "=" + asked + " is above what this agent allows: " + allowed,
                   "the limit is in " + std::string(whose_) + " of its agent.toml");
  }
  std::optional<Error> Result() { return std::move(error_); }

 private:
  std::string_view whose_;
  std::optional<Error> error_;
};

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  return quoted.append(text).append("\"");
}

// Whether the network `outer` holds all of `inner`.
bool Contains(const std::string& outer, const std::string& inner) {
  const std::optional<Cidr> a = ParseCidr(outer), b = ParseCidr(inner);
  return a && b && Contains(*a, *b);
}

// A secret makes its host reachable without a rule.
void CheckNetwork(Check& check, const std::vector<std::string>& ceiling, const PoolSpec& spec) {
  std::vector<EgressRule> allowed;
  std::string names;
  for (const std::string& text : ceiling) {
    allowed.push_back(ParseEgressRule(text));
    names.append(names.empty() ? "" : ", ").append(Quoted(text));
  }
  const auto check_one = [&](const std::string& text) {
    const EgressRule asked = ParseEgressRule(text);
    if (std::ranges::any_of(allowed, [&](const EgressRule& one) { return Covers(one, asked); }))
      return;
    check.Refuse("allow_network", Quoted(text), names.empty() ? "no network" : names);
  };
  for (const std::string& text : spec.allow_network) check_one(text);
  for (const SecretRule& secret : spec.secrets) check_one(secret.host + ":443");
}

// Compares names: a source has no symbolic links (see MountSpec), its client resolved them.
void CheckRoots(Check& check, const char* keyword, const std::vector<std::string>& roots,
                const std::vector<MountSpec>& mounts) {
  std::string shown;
  for (const std::string& root : roots)
    shown.append(shown.empty() ? "files in " : ", ").append(root);
  for (const MountSpec& mount : mounts) {
    if (!LiesIn(mount.source, roots))
      check.Refuse(keyword, Quoted(mount.source), shown.empty() ? "no files of the host" : shown);
  }
}

}  // namespace

Isolation IsolationOf(const Prepare& prepare) {
  return prepare.shared ? Isolation::kShared : prepare.spec.isolation;
}

bool Covers(const EgressRule& allowed, const EgressRule& asked) {
  using Kind = EgressRule::Kind;
  const bool ports = asked.port != 0 ? HasPort(allowed, asked.port)
                                     : HasPort(allowed, kHttpsPort) && HasPort(allowed, kHttpPort);
  if (!ports) return false;
  if (asked.kind == Kind::kCidr || allowed.kind == Kind::kCidr)
    return asked.kind == allowed.kind && Contains(allowed.text, asked.text);
  if (allowed.kind == Kind::kAny) return true;
  if (asked.kind == Kind::kAny) return false;
  if (asked.kind == allowed.kind && asked.text == allowed.text) return true;
  // "*.example.org" covers "a.example.org" and "*.a.example.org".
  std::string suffix = ".";
  return allowed.kind == Kind::kWildcard && asked.text.ends_with(suffix.append(allowed.text));
}

std::optional<Error> AboveCeiling(const Ceiling& ceiling, const Prepare& prepare,
                                  std::string_view whose) {
  const PoolSpec& spec = prepare.spec;
  Check check(whose);
  for (const LimitField& limit : kLimitFields)
    check.Limit(limit, limit.asked(prepare), ceiling.*limit.ceiling);
  if (ceiling.allow_sdists && !*ceiling.allow_sdists && spec.allow_sdists)
    check.Refuse("allow_sdists", "True", "wheels only");
  const Isolation isolation = IsolationOf(prepare);
  if (ceiling.isolation && isolation < *ceiling.isolation) {
    check.Refuse("isolation", Quoted(NameOf(isolation)),
                 "at least " + Quoted(NameOf(*ceiling.isolation)));
  }
  if (ceiling.allow_network) CheckNetwork(check, *ceiling.allow_network, spec);
  if (ceiling.mounts) {
    CheckRoots(check, "mounts", *ceiling.mounts, spec.mounts);
    CheckRoots(check, "environment", *ceiling.mounts, spec.venv);
    CheckRoots(check, "environment", *ceiling.mounts, spec.links);
  }
  return check.Result();
}

uint64_t Bounded(uint64_t asked_ms, const std::optional<double>& ceiling_sec) {
  if (!ceiling_sec) return asked_ms;
  const auto most = std::max<uint64_t>(1, static_cast<uint64_t>(std::ceil(*ceiling_sec * 1000)));
  return asked_ms == 0 ? most : std::min(asked_ms, most);
}

bool LiesIn(std::string_view path, const std::vector<std::string>& roots) {
  if (path.empty() || path[0] != '/' || (std::string(path) + "/").find("/../") != std::string::npos)
    return false;
  return std::ranges::any_of(roots, [&](std::string_view root) {
    while (root.size() > 1 && root.ends_with('/')) root.remove_suffix(1);
    return root == "/" || path == root ||
           (path.starts_with(root) && path.substr(root.size()).starts_with('/'));
  });
}

std::optional<Error> NotHard(std::string_view enforcement) {
  if (enforcement == "cgroup") return std::nullopt;
  return Error(
      Code::kPlatform,
      "this host cannot enforce every limit hard, as the policy requires: without a "
      "delegated cgroup v2, memory_mb is checked every 20 ms and may be exceeded in "
      "between, and cpus is a share by priority, not a bound; every other limit is hard",
      "run as a user with a systemd session and cgroup v2 (`hutch doctor` says how), or use "
      "Policy.strict().replace(hard_limits=False)");
}

const Tenant* TenantOf(const AgentConfig& config, const PoolSpec& spec) {
  for (const Tenant& tenant : config.tenants) {
    if (std::ranges::all_of(tenant.labels, [&](const auto& label) {
          const auto found = spec.labels.find(label.first);
          return found != spec.labels.end() && found->second == label.second;
        }))
      return &tenant;
  }
  return nullptr;
}

}  // namespace hutch
