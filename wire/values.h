// Values that cross a socket of ours: plain, copyable, comparable; no behaviour.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace hutch {

// What one call may use; 0 means no limit.
struct CallLimits {
  uint64_t timeout_ms = 30'000;          // wall time from the start of the function
  uint64_t cpu_ms = 0;                   // CPU time of all its processes
  uint64_t output_bytes = 1 << 20;       // kept of stdout and stderr together
  uint64_t result_bytes = 512ull << 20;  // encoded result
  uint64_t queue_ms = 60'000;            // wait for a cell
  uint64_t memory_bytes = 0;             // of the call; a result is no larger. 0: none
};

// Where packages come from. Never a credential: those travel in a netrc of their own.
struct IndexSettings {
  std::string index_url;
  std::string extra_index_urls;  // separated by spaces
  std::string http_proxy;
  std::string https_proxy;
  std::string no_proxy;
  std::string ca_bundle;   // PEM text, "": the base image's own
  std::string find_links;  // pages of links, separated by spaces
  std::string netrc;       // credentials of the addresses above; the fetch step alone sees it

  bool operator==(const IndexSettings&) const = default;
};

// A header that the egress process adds to requests to one host. The value is nobody's to show: it
// is in no message to a client, no log, no worker.
struct SecretRule {
  std::string host;                  // in the normal form of egress.h
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
  std::string isolation = "cell";          // or "container", "gvisor": a worker for each call
  std::vector<std::string> allow_network;  // entries in normal form (egress.h), sorted
  std::vector<SecretRule> secrets;
};

}  // namespace hutch
