// SPDX-License-Identifier: Apache-2.0

// HTTP to the socket of Podman's service: one request, on a connection of its own, bounded in bytes
// and time. What the paths and the bodies mean is up to podman.cc.
//
// Thread-safe. A service that does not answer is distinguished from one that is slow: while a
// request waits, the service is pinged.
#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <string_view>
#include <utility>

namespace hutch {

struct PodmanReply {
  int status = 0;
  std::string body;
  std::string api_version;  // "4.3.1"
  bool ok() const { return status >= 200 && status < 300; }
};

struct PodmanRequest {
  static constexpr size_t kMaxReply = 16u << 20;  // a list of 2,000 containers is about 4 MB

  std::string method;
  std::string path;  // below that of the API
  std::chrono::milliseconds timeout;
  std::string json = {};                               // its body, or
  std::function<size_t(char*, size_t)> tar = nullptr;  // that, a stream; 0 is the end
  size_t max_reply = kMaxReply;
  // Given the reply as it comes.
  std::function<void(std::string_view)> heard = nullptr;
  // Asked about every 100 ms, on another thread: once it returns true the request is cancelled.
  std::function<bool()> stopped = nullptr;
  bool watched = true;  // the service is pinged; not for a stream, which its reader watches
};

class PodmanTransport {
 public:
  explicit PodmanTransport(std::string socket_path) : socket_path_(std::move(socket_path)) {}

  // Throws kPodmanDown (nobody answers), kTimeout, kPodman (a broken reply), kCancelled, and what
  // `tar` throws.
  PodmanReply Send(const PodmanRequest& request) const;
  // The same; repeats a request that Podman refused only temporarily.
  PodmanReply SendPatiently(const PodmanRequest& request) const;
  bool Pings(std::chrono::milliseconds timeout) const;  // whether it answers at all

  // How long to wait before the next attempt.
  static std::chrono::milliseconds Backoff(int attempt);

 private:
  bool Listens() const;

  const std::string socket_path_;
};

}  // namespace hutch
