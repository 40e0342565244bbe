// SPDX-License-Identifier: Apache-2.0

// The paths that Hutch uses on this host. Values; made once from the environment and passed on.
//
// An ordinary user: run_dir = $XDG_RUNTIME_DIR/hutch, state_dir =
// ${XDG_DATA_HOME:-~/.local/share}/hutch. Where XDG_RUNTIME_DIR is not set (su, cron, containers)
// it is /run/user/<uid>, or else /tmp/podman-run-<uid>, as it is for Podman. Root without systemd:
// everything belongs to the service user `hutch`, whose XDG_RUNTIME_DIR is /run/hutch and whose
// home is /var/lib/hutch: run_dir = /run/hutch/run, state_dir = /var/lib/hutch/state. Podman's own
// files lie beside them (never inside: the agent mounts these two directories, and must not pin
// other containers' mounts). HUTCH_HOME replaces state_dir (run_dir then gets a suffix of its own),
// HUTCH_SOCKET the agent's socket.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hutch {

// Of the frames and messages that this build speaks: a hash of them, made by CMakeLists.txt.
extern const uint32_t kWireVersion;
extern const char* const kHutchVersion;  // of Hutch: "0.1.0"; CMakeLists.txt has it
inline constexpr char kServiceUser[] = "hutch";
inline constexpr char kServiceHome[] = "/var/lib/hutch";
inline constexpr char kServiceRuntimeDir[] = "/run/hutch";

struct Paths {
  bool service_user = false;  // root: Podman and the agent run as kServiceUser
  uid_t uid = 0;              // whose Podman it is
  gid_t gid = 0;
  std::string home;             // HOME of that user
  std::string xdg_runtime_dir;  // XDG_RUNTIME_DIR of that user
  std::string run_dir;          // 0700: sockets, worker directories
  std::string state_dir;        // 0700: store, environments, runtimes
  std::string instance;         // "" for the default state_dir, else 8 hex digits of it

  // $HUTCH_SOCKET or run_dir/agent-<wire version>.sock
  std::string agent_socket;
  std::string agent_socket_dir() const { return agent_socket.substr(0, agent_socket.rfind('/')); }
  std::string podman_socket() const { return run_dir + "/podman/podman.sock"; }
  // Of the Podman service whose containers run on gVisor (launcher/podman_service.h).
  std::string gvisor_socket() const { return run_dir + "/podman/gvisor.sock"; }
  std::string worker_dir() const { return run_dir + "/workers"; }  // one directory for each worker
  std::string runtime_dir(const std::string& id) const { return state_dir + "/runtime/" + id; }
  std::string store_dir() const {
    return state_dir + "/store";
  }  // cache/ and build/: the builders' one mount
  std::string environment_dir() const {
    return state_dir + "/environments";
  }  // published trees, by digest
  std::string copies_dir() const {
    return state_dir + "/copies";
  }  // of what a root caller mounts, by content
  std::string agent_container() const {
    return instance.empty() ? "hutch-agent" : "hutch-agent-" + instance;
  }
  // The value of the label hutch.instance: never empty, so that a filter on it never matches
  // everything.
  std::string instance_label() const { return instance.empty() ? "default" : instance; }

  // What the launcher hands to `--serve` in $HUTCH_PATHS (FindPaths takes it), and back. Lines of
  // `key=value`. FromText throws kInvalidArgument on an unknown or missing key.
  std::string ToText() const;
  static Paths FromText(std::string_view text);
};

// The image that a base id stands for.
inline std::string BaseReference(const std::string& base_id) {
  return "localhost/hutch-base:" + base_id;
}

// The directory of that user in `parent`, which others may write to: made private, or found so.
// Throws kPlatform where it is anybody else's, a link, or open to others.
std::string FallbackRuntimeDir(const std::string& parent, uid_t uid);

// The user's name. A static program finds only users of /etc/passwd, none of a directory service:
// of one who is ourselves it then takes $USER. The digits of the uid where nobody says.
std::string UserName(uid_t uid);

// Reads the environment, the uid and the user database; $HOME and the group of the process stand
// for a user of no entry. Throws kPlatform where XDG_RUNTIME_DIR is missing or not ours, or the
// service user does not exist (the hint has the command that makes it; `hutch-agent --start` runs
// it).
Paths FindPaths();

}  // namespace hutch
