// SPDX-License-Identifier: Apache-2.0

// Values that cross a socket of ours: plain, copyable, comparable; no behaviour.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hutch {

// How far a call is walled off, from the weakest to the strongest.
enum class Isolation : uint8_t { kShared, kCell, kContainer, kGvisor };
inline constexpr std::array<const char*, 4> kIsolationNames = {"shared", "cell", "container",
                                                               "gvisor"};

constexpr const char* NameOf(Isolation isolation) {
  return kIsolationNames[static_cast<size_t>(isolation)];
}
constexpr std::optional<Isolation> IsolationFrom(std::string_view name) {
  for (size_t i = 0; i < kIsolationNames.size(); ++i) {
    if (name == kIsolationNames[i]) return static_cast<Isolation>(i);
  }
  return std::nullopt;
}

// What one call may use; 0 means no limit.
struct CallLimits {
  uint64_t timeout_ms = 30'000;          // wall time from the start of the function
  uint64_t cpu_ms = 0;                   // CPU time of all its processes
  uint64_t output_bytes = 1 << 20;       // kept of stdout and stderr together
  uint64_t result_bytes = 512ull << 20;  // encoded result
  uint64_t queue_ms = 60'000;            // wait for a cell
  uint64_t memory_bytes = 0;             // of the call, and so the most of its result; 0: none
};

// Where packages come from. Never a credential: those travel in a netrc of their own.
struct IndexSettings {
  std::string index_url;
  std::string extra_index_urls;  // separated by spaces
  std::string http_proxy;
  std::string https_proxy;
  std::string no_proxy;
  std::string ca_bundle;        // PEM text, "": the base image's own
  std::string find_links;       // pages of links, separated by spaces
  std::string netrc;            // credentials of the addresses above; the fetch step alone sees it
  std::string npm_sources;      // lines of an .npmrc: which registries there are
  std::string npm_credentials;  // more of them, which the fetch step alone sees
  std::string npm_ca_bundle;    // PEM text, "": that of ca_bundle

  bool operator==(const IndexSettings&) const = default;
};

// A header that the egress process adds to requests to one host. The value is never shown: it is in
// no message to a client, no log, no worker.
struct SecretRule {
  std::string host;                  // in the normal form of egress_rules.h
  std::string header;                // its name
  std::string value;                 // whole, its prefix included
  std::vector<std::string> paths;    // prefixes of the path, none: all
  std::vector<std::string> methods;  // upper case, none: all

  bool operator==(const SecretRule&) const = default;
};

// What the egress process decided about one host and port, and what went there.
struct NetworkRecord {
  std::string host;  // as the cell named it, in normal form or shortened and printable
  uint16_t port = 0;
  bool allowed = false;
  std::string reason;       // why not, "": it was allowed
  std::string suggestion;   // the narrowest entry of allow_network that would have allowed it
  uint64_t bytes_sent = 0;  // by the cell
  uint64_t bytes_received = 0;
  uint64_t count = 1;  // of connections like this one
  bool lost = false;   // the network itself failed, by a fault of ours: `reason`

  bool operator==(const NetworkRecord&) const = default;
};

// A file or directory of the caller's that is shown inside. What was vetted is what must be there:
// a mount with another device or inode is refused by the worker.
struct MountSpec {
  std::string source;       // on the host, absolute, with no symbolic link in it
  std::string destination;  // inside
  bool writable = false;
  bool as_caller = false;  // workers have the caller's own uid
  std::string copy;        // a name in Paths::copies_dir(): that copy is shown, "": the source
  uint64_t device = 0;     // of what is shown
  uint64_t inode = 0;
};

// Everything that decides which worker may serve a call. Two calls share a pool exactly when all of
// it is equal.
struct PoolSpec {
  std::vector<std::string>
      requirements;            // PEP 508, normalized and sorted by the client; validated again here
  std::string python_version;  // "3.11.7"; with `base` what its own has to be, as "3.11"
  std::string platform;        // "linux_x86_64"
  std::string base_id;         // 32 hex digits: the base image
  std::string base;            // another one: an OCI image's reference, "": that of base_id
  std::string runtime_id;      // 32 hex digits: the worker files
  IndexSettings index;
  bool allow_sdists = false;
  bool allow_urls = false;               // requirements may be `name @ https://...`
  std::vector<std::string> constraints;  // PEP 508: versions where one is wanted, nothing by itself
  std::vector<std::string> node_requirements;  // of npm: "name@range", sorted
  std::string lock;              // a pylock.toml or requirements with hashes, "": resolved afresh
  std::vector<MountSpec> links;  // directories of wheels, for the fetch step
  std::vector<MountSpec> venv;   // at most one: its packages are the environment
  std::vector<MountSpec> mounts;
  bool preload_given = false;  // false: the direct requirements
  std::vector<std::string> preload;
  std::string nonce;  // disable_cache: a fresh value makes a fresh environment
  std::string setup;  // pickled setup function for the zygote, never loaded on the host
  std::map<std::string, std::string> modules;  // the caller's own modules: relative path to content
  uint64_t memory_mb = 1024;
  uint64_t disk_mb = 256;
  uint64_t pids = 64;
  double cpus = 1;
  std::map<std::string, std::string> env;
  std::map<std::string, std::string> labels;
  uint64_t max_calls = 10'000;
  double max_age_sec = 3600;
  int64_t warm = -1;       // cells kept ready, -1: the pool decides
  uint64_t max_cells = 0;  // 0: the pool decides
  double idle_sec = 300;
  Isolation isolation = Isolation::kCell;  // kContainer, kGvisor: a worker for each call
  std::vector<std::string> allow_network;  // entries in normal form (egress_rules.h), sorted
  std::vector<SecretRule> secrets;
};

// Calls visit(name, member) for each field: what is read from Python and sent to the agent.
template <class Spec, class Visit>
void ForEachField(Spec& spec, Visit visit) {
  visit("requirements", spec.requirements);
  visit("python_version", spec.python_version);
  visit("platform", spec.platform);
  visit("base_id", spec.base_id);
  visit("base", spec.base);
  visit("runtime_id", spec.runtime_id);
  visit("index", spec.index);
  visit("allow_sdists", spec.allow_sdists);
  visit("allow_urls", spec.allow_urls);
  visit("constraints", spec.constraints);
  visit("node_requirements", spec.node_requirements);
  visit("lock", spec.lock);
  visit("links", spec.links);
  visit("venv", spec.venv);
  visit("mounts", spec.mounts);
  visit("preload_given", spec.preload_given);
  visit("preload", spec.preload);
  visit("nonce", spec.nonce);
  visit("setup", spec.setup);
  visit("modules", spec.modules);
  visit("memory_mb", spec.memory_mb);
  visit("disk_mb", spec.disk_mb);
  visit("pids", spec.pids);
  visit("cpus", spec.cpus);
  visit("env", spec.env);
  visit("labels", spec.labels);
  visit("max_calls", spec.max_calls);
  visit("max_age_sec", spec.max_age_sec);
  visit("warm", spec.warm);
  visit("max_cells", spec.max_cells);
  visit("idle_sec", spec.idle_sec);
  visit("isolation", spec.isolation);
  visit("allow_network", spec.allow_network);
  visit("secrets", spec.secrets);
}

}  // namespace hutch
