// SPDX-License-Identifier: Apache-2.0

// What this host is and can enforce, as data, and the commands that fix what it lacks.
//
// Facts are read (InspectHost), then judged (CheckHost, pure), then printed (ChecksToJson). Nothing
// needs the agent or the service; nothing on the host is changed. InspectHost forks: not for a
// program with threads.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "podman/podman.h"
#include "wire/paths.h"

namespace hutch {

enum class CgroupLayout { kNone, kV1, kHybrid, kV2 };

struct HostFacts {
  bool root = false;           // called by root: Podman is the service user's
  std::string user;            // whose Podman it is; "" when root has no service user yet
  std::string kernel;          // "6.1.0"
  std::string podman_path;     // "": not installed
  std::string podman_version;  // "": it does not run
  std::string oci_runtime;     // crun or runc; "": neither
  std::string network_helper;  // slirp4netns or pasta; "": neither (no dependency can be installed)
  bool gvisor = false;         // its runsc
  bool uid_helpers = false;    // newuidmap and newgidmap
  uint64_t subuids = 0;        // how many ids the user may map
  uint64_t subgids = 0;
  std::string user_namespaces_error;  // "": one with a mount in it could be made
  bool overlay = false;               // the kernel has it for user namespaces
  std::string graph_driver;           // what the running service uses; "": it does not run
  CgroupLayout cgroups = CgroupLayout::kNone;
  std::vector<std::string> controllers;  // that Podman may use: "cpu", "memory", "pids", ...
  bool systemd = false;                  // runs this host
  bool systemd_user = false;  // a user manager answers: it delegates cgroups and keeps the service
  bool tun_exists = false;    // /dev/net/tun
  bool tun_usable = false;    // by the user as it is (root's launcher makes one that is)
  std::string place_error;    // why there is no place for sockets and state; "": there is
  std::string place_fix;
  bool place_is_made = false;  // by the first call: it makes root's service user
};

struct HostCheck {
  std::string name;
  bool ok = false;
  bool required = true;  // false: Hutch works without it; `detail` says with what drawback
  std::string detail;
  std::string fix;  // the exact command; "" where ok or where there is none
};

// Why Podman refused to start a container, where its message says so, and the command that fixes
// it.
struct KnownCause {
  std::string cause;
  std::string fix;
};
std::optional<KnownCause> CauseOf(std::string_view said);

// Whether that version of Podman can use it; of one that is not known: whether any can.
bool Knows(const std::string& podman, const std::string& helper);
// "podman version 4.3.1" -> "4.3.1"; "" of anything else.
std::string VersionIn(const std::string& said);

// The command that gives `user` ids that nobody else has.
std::string SubIdCommand(const std::string& user);

// `service`: what the running service said, if it runs. `paths`: nullopt when FindPaths threw
// `place`.
HostFacts InspectHost(const std::optional<Paths>& paths,
                      const std::optional<PodmanVersion>& service);
std::vector<HostCheck> CheckHost(const HostFacts& facts);
// {"ok": all required ones are, "checks": [{"name", "ok", "required", "detail", "fix"}, ...]}
std::string ChecksToJson(const std::vector<HostCheck>& checks);

}  // namespace hutch
