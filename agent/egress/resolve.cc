// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/resolve.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <thread>

namespace hutch {
namespace {

constexpr size_t kMaxAddresses = 16;

}  // namespace

Resolved LookUp(const std::string& host) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int status = ::getaddrinfo(host.c_str(), nullptr, &hints, &list);
  Resolved resolved;
  if (status != 0) {
    resolved.error = ::gai_strerror(status);
    return resolved;
  }
  for (const addrinfo* item = list; item != nullptr; item = item->ai_next) {
    sockaddr_storage copy{};
    std::memcpy(&copy, item->ai_addr, std::min<size_t>(item->ai_addrlen, sizeof copy));
    const std::optional<IpAddress> address = FromSocketAddress(copy);
    if (address && resolved.addresses.size() < kMaxAddresses &&
        std::ranges::find(resolved.addresses, *address) == resolved.addresses.end())
      resolved.addresses.push_back(*address);
  }
  ::freeaddrinfo(list);
  if (resolved.addresses.empty()) resolved.error = "it has no address";
  return resolved;
}

void SetUpLookups() {
  // resolv.conf(5): both override the file.
  ::setenv("LOCALDOMAIN", "", 1);
  ::setenv("RES_OPTIONS", "timeout:2 attempts:2", 1);
}

Resolver::~Resolver() {
  const MutexLock lock(mutex_);
  while (threads_ > 0) ended_.Wait(mutex_);
}

void Resolver::Start(const std::shared_ptr<Asker>& asker, const std::string& host, size_t at_once,
                     Done done) {
  at_once_ = at_once;
  asker->waiting.emplace_back(host, std::move(done));
  if (!std::exchange(asker->in_line, true)) line_.push_back(asker);
  ServeLine();
}

bool Resolver::MayRun(const Asker& asker, size_t at_once) const {
  if (running_ >= kMostLookups) return false;
  return asker.running == 0 || (asker.running < at_once && shared_ < kSharedLookups);
}

// Begins one lookup of each asker in turn, as long as any may begin.
void Resolver::ServeLine() {
  for (bool any = true; any;) {
    any = false;
    for (size_t left = line_.size(); left > 0; --left) {
      const std::shared_ptr<Asker> asker = line_.front().lock();
      line_.pop_front();
      if (!asker) continue;
      if (!asker->waiting.empty() && MayRun(*asker, at_once_)) {
        auto [host, done] = std::move(asker->waiting.front());
        asker->waiting.pop_front();
        Run(asker, std::move(host), std::move(done));
        any = true;
      }
      asker->in_line = !asker->waiting.empty();
      if (asker->in_line) line_.push_back(asker);
    }
  }
}

void Resolver::Run(const std::shared_ptr<Asker>& asker, std::string host, Done done) {
  ++running_;
  if (++asker->running > 1) ++shared_;
  const auto answer = [this, asker, done = std::move(done)](Resolved resolved) {
    --running_;
    if (asker->running-- > 1) --shared_;
    done(std::move(resolved));
    ServeLine();
  };
  {
    const MutexLock lock(mutex_);
    ++threads_;
  }
  try {
    std::thread([this, host = std::move(host), answer] {
      Resolved resolved;
      try {
        resolved = lookup_(host);
      } catch (const std::exception& error) {
        resolved.error = error.what();
      }
      loop_.Post([answer, resolved = std::move(resolved)] { answer(resolved); });
      const MutexLock lock(mutex_);
      --threads_;
      ended_.NotifyAll();
    }).detach();
  } catch (const std::system_error& error) {
    const MutexLock lock(mutex_);
    --threads_;
    loop_.Post([answer, why = std::string(error.what())] { answer({{}, why}); });
  }
}

}  // namespace hutch
