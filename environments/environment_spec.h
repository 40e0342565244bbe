// SPDX-License-Identifier: Apache-2.0

// What an environment is made of, and the digest that names it. Values and pure functions.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "wire/values.h"

namespace hutch {

inline constexpr size_t kMaxLock = 4u << 20;  // bytes

struct EnvironmentSpec {
  std::vector<std::string> requirements;  // PEP 508, normalized by the client
  std::string python_version;             // "3.11.7"; of a base that is not known yet: as "3.11"
  std::string platform;                   // "linux_x86_64"
  std::string base_id;                    // 32 hex digits
  std::string base;                       // an OCI image's reference, "": that of base_id
  std::string base_image;                 // of `base` once it is known: 64 hex digits
  std::string
      runtime_id;  // 32 hex digits: whose build scripts and installer run; not in the digest
  IndexSettings index;
  bool allow_sdists = false;
  bool allow_urls = false;
  std::vector<std::string> constraints;
  std::vector<std::string> node_requirements;  // of npm
  std::string lock;                            // in place of requirements, "": none
  std::vector<MountSpec> links;                // directories of wheels
  std::vector<MountSpec> venv;                 // at most one: nothing is built then
  std::vector<std::string> preload;
  bool preload_given = false;  // false: the modules of the direct requirements
  std::string nonce;           // a fresh value makes a fresh environment
};

// What the environment is for: `base_image`, or `base_id` where there is none.
inline const std::string& BaseOf(const EnvironmentSpec& spec) {
  return spec.base_image.empty() ? spec.base_id : spec.base_image;
}

bool HasPackages(const PoolSpec& pool);  // false: a worker needs nothing but the base

EnvironmentSpec SpecOf(const PoolSpec& pool);

// Throws kInvalidArgument, naming the value, for everything but a name with extras, version clauses
// and a marker: an option, a path or a line break never reaches the installer, and a URL only with
// allow_urls. The client has checked already, but is not trusted.
void CheckSpec(const EnvironmentSpec& spec);

std::vector<std::string> Words(std::string_view text);  // separated by spaces

// A dotted name of ASCII identifiers.
bool IsModule(std::string_view name);

// SHA-256, 64 hex digits, over the set of requirements in any order, Python version, platform, base
// (by what it is, whatever it is called), index and layout. Proxies, certificates and the preload
// list change how packages are fetched and used, not which they are. REQUIRES: CheckSpec passed,
// and a base is known.
std::string DigestOf(const EnvironmentSpec& spec);

}  // namespace hutch
