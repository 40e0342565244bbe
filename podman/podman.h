// SPDX-License-Identifier: Apache-2.0

// libpod over its REST API. How a request gets there is in transport.h, what an answer means in
// replies.h.
//
// One Podman is one client of one service socket. Thread-safe: each call makes a connection of its
// own, in the calling thread (whose effective uid therefore decides), and has a deadline; at most
// two creates or starts run at once. Failure (Error: kUnavailable nobody listens, kTimeout, kPodman
// any other), absence (std::nullopt, false) and a value are three different things. REQUIRES: the
// socket belongs to our own user.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace hutch {

struct ContainerInfo {
  std::string id;
  std::string name;
  // "created", "running", "exited", "stopping", ... As Podman last recorded it: where everything
  // was killed at once, or a removal was interrupted, a container whose process is dead stays
  // "running" or "stopping".
  std::string state;
  int exit_code = 0;
  int pid = 0;  // on the host; 0: none, or not asked (List)
  std::map<std::string, std::string> labels;
};

bool HasLabel(const ContainerInfo& info, const std::string& label, const std::string& value);
// Whether that agent, by its generation, has started it.
bool IsOf(const ContainerInfo& info, const std::string& generation);
// Whether two agents run among the containers of one instance: beside the newest one, one of
// another version keeps serving its clients. Neither removes what may be the other's.
bool TwoAgentsRun(const std::vector<ContainerInfo>& containers);
// Those with the role ("worker", "egress") that an agent of that generation may remove: its own,
// and those of earlier agents unless two run.
std::vector<ContainerInfo> Removable(const std::vector<ContainerInfo>& containers,
                                     const std::string& role, const std::string& generation);

// A container on gVisor can only be removed by the service that made it, and says so in its labels.
inline constexpr char kGvisorLabel[] = "hutch.gvisor";
inline bool IsOnGvisor(const std::map<std::string, std::string>& labels) {
  return labels.contains(kGvisorLabel);
}

struct PodmanVersion {
  std::string podman;          // "4.3.1"
  std::string api;             // "4.3.1"
  std::string runtime;         // "crun"
  std::string cgroup_version;  // "v1" or "v2"
  std::vector<std::string>
      cgroup_controllers;  // what the service may delegate; empty: no hard limits
  bool rootless = false;
  std::string graph_driver;
  std::string network_helper;  // slirp4netns or pasta: what it can give a container a network with
};

struct ImageInfo {
  std::string id;            // 64 hex digits
  std::string architecture;  // as Go names it: "amd64"
  std::string os;            // "linux"
  std::map<std::string, std::string> annotations;
};

class Podman {
 public:
  explicit Podman(std::string socket_path);
  ~Podman();

  bool Ping(std::chrono::milliseconds timeout) const;  // never throws
  PodmanVersion Version() const;           // takes a third of a second on Debian: it asks dpkg
  std::string NetworkHelper() const;       // PodmanVersion's, asked for once
  std::string UsualNetworkHelper() const;  // what its version uses by itself; known at once

  // `spec_json` is a libpod SpecGenerator body (POST /libpod/containers/create); returns the
  // container's id. `name` inside it makes a retry after a lost answer idempotent: an existing
  // container of that name with the same labels is returned. REQUIRES: nobody else creates one of
  // that name meanwhile.
  std::string Create(const std::string& spec_json);
  void Start(const std::string& id);
  void Kill(const std::string& id,
            const std::string& signal = "KILL");  // absent or stopped counts as done
  void Rename(const std::string& id, const std::string& name);
  void Remove(
      const std::string& id);  // forced, with volumes; absent counts as done; bounded retries
  std::optional<ContainerInfo> Inspect(const std::string& id_or_name) const;
  std::vector<ContainerInfo> List(
      const std::string& label) const;  // all states; label "hutch.owner=..."
  // What a service that was killed while it created a container left in the storage: a name that is
  // taken, though its container does not exist. A container that is being created looks the same.
  std::vector<ContainerInfo> ListRemains() const;
  void RemoveRemains(const std::string& id);
  std::string Logs(const std::string& id,
                   size_t max_bytes = 65536) const;  // stdout and stderr, tail
  // Waits until the container has stopped; nullopt when `timeout` passes first. Polls inspect,
  // never libpod's wait.
  std::optional<int> WaitExit(const std::string& id, std::chrono::milliseconds timeout) const;

  std::optional<std::string> ImageId(const std::string& reference) const;
  std::optional<ImageInfo> InspectImage(const std::string& reference) const;
  // POST /libpod/images/pull. `heard` is called with each line of Podman's progress, on this
  // thread; `stopped` about every 100 ms, on another one: once it returns true the pull is
  // cancelled (kCancelled). kPodman: the image cannot be pulled; the message is the registry's or
  // Podman's.
  void PullImage(const std::string& reference, bool verify_tls, std::chrono::milliseconds timeout,
                 const std::function<void(const std::string&)>& heard,
                 const std::function<bool()>& stopped);
  // POST /libpod/images/import, streaming a tar; `read` fills the buffer, 0 is the end. `changes`
  // are Dockerfile lines.
  std::string ImportImage(const std::string& reference,
                          const std::function<size_t(char*, size_t)>& read,
                          const std::vector<std::string>& changes = {});
  std::vector<std::string> ListImages(const std::string& reference_prefix) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hutch
