#include "agent/egress/resolve.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace hutch {
namespace {

// A name server that does not answer holds a thread for as long as the resolver waits for it.
constexpr int kThreads = 16;
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

void Resolver::Start(const std::string& host, std::function<void(Resolved)> done) {
  if (!threads_) threads_.emplace(kThreads);
  threads_->Post([this, host, done = std::move(done)] {
    Resolved resolved;
    try {
      resolved = lookup_(host);
    } catch (const std::exception& error) {
      resolved.error = error.what();
    }
    loop_.Post([done, resolved = std::move(resolved)]() mutable { done(std::move(resolved)); });
  });
}

}  // namespace hutch
