// SPDX-License-Identifier: Apache-2.0

#include "agent/config.h"

#include <toml++/toml.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <set>

#include "agent/limits.h"
#include "wire/egress_rules.h"
#include "wire/error.h"

namespace hutch {
namespace {

size_t Distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

// "memory" of "memory_mb" and of "memory_gb".
std::string_view Stem(std::string_view name) { return name.substr(0, name.rfind('_')); }

std::string Nearest(std::string_view name, const std::set<std::string>& known) {
  std::string best;
  size_t least = 3;  // a name that differs by more is not a typo
  for (const std::string& one : known) {
    if (Stem(one) == name || Stem(one) == Stem(name)) return one;
    if (const size_t d = Distance(name, one); d < least) {
      least = d;
      best = one;
    }
  }
  return best;
}

// One table of the file. Each key is taken once; Finish() reports a key that was not taken.
class Section {
 public:
  Section(const toml::table& table, std::string title, const std::string& file)
      : table_(table), title_(std::move(title)), file_(file) {}

  [[noreturn]] void Refuse(const toml::node& node, const std::string& what) const {
    throw Error(Code::kInvalidArgument, file_ + ":" + std::to_string(node.source().begin.line) +
                                            ": " + (title_.empty() ? "" : "[" + title_ + "] ") +
                                            what);
  }

  std::optional<uint64_t> Whole(const std::string& key, int64_t least, int64_t most) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const auto value = node->value_exact<int64_t>();
    if (!value || *value < least || *value > most) {
      Refuse(*node, key + " must be a whole number from " + std::to_string(least) + " to " +
                        std::to_string(most));
    }
    return static_cast<uint64_t>(*value);
  }
  std::optional<double> Number(const std::string& key, double most) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const auto value = node->is_number() ? node->value<double>() : std::nullopt;
    if (!value || !(*value > 0 && *value <= most)) {
      char text[32];
      std::snprintf(text, sizeof text, "%g", most);
      Refuse(*node, key + " must be a number above 0 and at most " + text);
    }
    return value;
  }
  std::optional<bool> Flag(const std::string& key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const auto value = node->value_exact<bool>();
    if (!value) Refuse(*node, key + " must be true or false");
    return value;
  }
  std::optional<std::vector<std::string>> List(const std::string& key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const toml::array* array = node->as_array();
    std::vector<std::string> list;
    if (array == nullptr) Refuse(*node, key + " must be a list of strings");
    for (const toml::node& item : *array) {
      const auto text = item.value_exact<std::string>();
      if (!text || text->empty()) Refuse(item, key + " must be a list of strings");
      list.push_back(*text);
    }
    return list;
  }
  std::optional<std::string> Text(const std::string& key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return std::nullopt;
    const auto value = node->value_exact<std::string>();
    if (!value) Refuse(*node, key + " must be a string");
    return value;
  }
  // nullptr: the key is missing.
  const toml::table* Table(const std::string& key) {
    const toml::node* node = Take(key);
    if (node == nullptr) return nullptr;
    if (node->as_table() == nullptr) Refuse(*node, key + " must be a table");
    return node->as_table();
  }
  const toml::node& At(const std::string& key) const { return *table_.get(key); }

  void Finish() const {
    for (const auto& [key, node] : table_) {
      const std::string name(key.str());
      if (known_.contains(name)) continue;
      const std::string meant = Nearest(name, known_);
      Refuse(node, "unknown key \"" + name + "\"" +
                       (meant.empty() ? std::string() : "; did you mean \"" + meant + "\"?"));
    }
  }

 private:
  const toml::node* Take(const std::string& key) {
    known_.insert(key);
    return table_.get(key);
  }

  const toml::table& table_;
  std::string title_;
  const std::string& file_;
  std::set<std::string> known_;
};

// And without "..", so that the path is what it seems to be.
bool IsAbsolute(const std::string& path) {
  return path.starts_with('/') && (path + "/").find("/../") == std::string::npos;
}

Ceiling CeilingOf(const toml::table& table, const std::string& title, const std::string& file) {
  Section section(table, title, file);
  Ceiling ceiling;
  for (const LimitField& limit : kLimitFields) {
    if (limit.whole) {
      ceiling.*limit.ceiling = section.Whole(limit.name, static_cast<int64_t>(limit.least),
                                             static_cast<int64_t>(limit.most));
    } else {
      ceiling.*limit.ceiling = section.Number(limit.name, limit.most);
    }
  }
  ceiling.allow_network = section.List("allow_network");
  ceiling.mounts = section.List("mounts");
  const auto isolation = section.Text("isolation");
  ceiling.allow_sdists = section.Flag("allow_sdists");
  section.Finish();
  if (isolation) ceiling.isolation = IsolationFrom(*isolation);
  if (isolation && !ceiling.isolation)
    section.Refuse(section.At("isolation"),
                   "isolation must be \"shared\", \"cell\", \"container\" or \"gvisor\": the "
                   "weakest that callers may ask for");
  if (ceiling.allow_network) {
    for (const std::string& entry : *ceiling.allow_network) {
      try {
        ParseEgressRule(entry);
      } catch (const Error& error) {
        section.Refuse(section.At("allow_network"), error.what());
      }
    }
  }
  if (ceiling.mounts) {
    for (const std::string& root : *ceiling.mounts) {
      if (!IsAbsolute(root))
        section.Refuse(section.At("mounts"),
                       "mounts has \"" + root + "\", which is not an absolute path");
    }
  }
  return ceiling;
}

constexpr int64_t kMostHostMb = 1 << 26;

HostQuotas HostOf(const toml::table& table, const std::string& file) {
  Section section(table, "host", file);
  HostQuotas host;
  host.cells = section.Whole("cells", 1, 65536).value_or(0);
  host.sessions = section.Whole("sessions", 1, 65536).value_or(kDefaultSessions);
  host.memory_mb = section.Whole("memory_mb", 16, kMostHostMb).value_or(0);
  host.queue = section.Whole("queue", 1, 1 << 20).value_or(0);
  host.environment_disk_mb = section.Whole("environment_disk_mb", 1, kMostHostMb).value_or(0);
  host.idle_sec = section.Number("idle_sec", kYearSec).value_or(0);
  host.warm_workers =
      section.Whole("warm_workers", 0, kMostSingleUseWorkers).value_or(kMostParkedWorkers);
  host.sweep_sec = section.Whole("sweep_sec", 1, 86400).value_or(kDefaultSweepSec);
  host.ca_bundle = section.Text("ca_bundle").value_or("");
  section.Finish();
  if (table.contains("ca_bundle") && !IsAbsolute(host.ca_bundle))
    section.Refuse(section.At("ca_bundle"),
                   "ca_bundle must be the absolute path of a PEM file on this host");
  return host;
}

Tenant TenantOf(const toml::table& table, const std::string& name, const std::string& file) {
  Section section(table, "tenants." + name, file);
  Tenant tenant;
  tenant.name = name;
  if (const toml::table* labels = section.Table("labels")) {
    for (const auto& [key, node] : *labels) {
      const auto value = node.value_exact<std::string>();
      if (!value) section.Refuse(node, "labels must be strings");
      tenant.labels[std::string(key.str())] = *value;
    }
  }
  tenant.cells = section.Whole("cells", 1, 65536).value_or(0);
  tenant.sessions = section.Whole("sessions", 1, 65536).value_or(0);
  tenant.memory_mb = section.Whole("memory_mb", 16, kMostHostMb).value_or(0);
  section.Text("key");  // this one and the next are for hutch serve
  section.Whole("share", 1, 1000);
  if (const toml::table* ceiling = section.Table("ceiling"))
    tenant.ceiling = CeilingOf(*ceiling, "tenants." + name + ".ceiling", file);
  section.Finish();
  if (tenant.labels.empty())
    section.Refuse(table,
                   "labels is missing: it selects the tenant's calls, for example {team = \"x\"}");
  return tenant;
}

AuditSettings AuditOf(const toml::table& table, const std::string& file) {
  Section section(table, "audit", file);
  AuditSettings audit;
  audit.enabled = section.Flag("enabled").value_or(audit.enabled);
  audit.file_mb = section.Whole("file_mb", 1, 1 << 20).value_or(audit.file_mb);
  audit.files = section.Whole("files", 1, 1000).value_or(audit.files);
  section.Finish();
  return audit;
}

}  // namespace

std::string ConfigFile(const Paths& paths) { return paths.state_dir + "/agent.toml"; }

AgentConfig ParseConfig(std::string_view text, const std::string& name) {
  toml::table parsed;
  try {
    parsed = toml::parse(text, std::string_view(name));
  } catch (const toml::parse_error& error) {
    throw Error(Code::kInvalidArgument,
                name + ":" + std::to_string(error.source().begin.line) +
                    ": not valid TOML: " + std::string(error.description()));
  }
  Section section(parsed, "", name);
  AgentConfig config;
  if (const toml::table* table = section.Table("ceiling"))
    config.ceiling = CeilingOf(*table, "ceiling", name);
  if (const toml::table* table = section.Table("host")) config.host = HostOf(*table, name);
  if (const toml::table* table = section.Table("audit")) config.audit = AuditOf(*table, name);
  section.Table("serve");  // hutch serve reads it
  if (const toml::table* table = section.Table("tenants")) {
    for (const auto& [key, node] : *table) {
      const std::string tenant(key.str());
      if (node.as_table() == nullptr)
        section.Refuse(node, "tenants." + tenant + " must be a table");
      config.tenants.push_back(TenantOf(*node.as_table(), tenant, name));
    }
    // The library sorts tables by name, but the first tenant in the file counts.
    std::ranges::sort(config.tenants, {},
                      [&](const Tenant& one) { return table->get(one.name)->source().begin.line; });
  }
  section.Finish();
  return config;
}

AgentConfig LoadConfig(const std::string& file) {
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  if (!in && errno == ENOENT) return {};
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!in) {
    throw Error(Code::kInvalidArgument, file + " cannot be read: " + std::strerror(errno),
                "make it readable for the user that the agent runs as");
  }
  return ParseConfig(text, file);
}

}  // namespace hutch
