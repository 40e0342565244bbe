// Names to addresses, off the loop's thread.
//
// Belongs to the loop's thread; lookups run on threads of its own. What a lookup gave is used for
// one connection and asked for again for the next: nobody else's answer decides.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "agent/egress/vet.h"
#include "pool/background.h"
#include "pool/loop.h"

namespace hutch {

struct Resolved {
  std::vector<IpAddress> addresses;  // in the order to be tried
  std::string error;                 // why there is none
};

// Blocks; called on a lookup's thread. REQUIRES: safe from many threads.
using Lookup = std::function<Resolved(const std::string& host)>;

// getaddrinfo: the host's own files and name servers.
Resolved LookUp(const std::string& host);

class Resolver {
 public:
  Resolver(Loop& loop, Lookup lookup) : loop_(loop), lookup_(std::move(lookup)) {}
  // `done` is called on the loop, later, whatever became of who asked.
  void Start(const std::string& host, std::function<void(Resolved)> done);

 private:
  Loop& loop_;
  Lookup lookup_;
  std::optional<Background> threads_;  // made with the first lookup
};

}  // namespace hutch
