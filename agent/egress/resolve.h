// SPDX-License-Identifier: Apache-2.0

// Resolves names to addresses outside the loop's thread.
//
// Belongs to the loop's thread; each lookup runs on a thread of its own, because getaddrinfo has no
// time limit. An answer is used for one connection and asked for again for the next one: no cell
// depends on another's answer.
//
// Fair to cells: a cell's first lookup begins at once, even while others wait for zones that never
// answer. Its further lookups share kSharedLookups with those of all cells, and wait their turn.
#pragma once

#include <cstddef>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/egress/vet.h"
#include "loop/loop.h"
#include "wire/thread_annotations.h"

namespace hutch {

inline constexpr size_t kSharedLookups = 16;
inline constexpr size_t kMostLookups = 1024;  // threads, also those of cells that are gone

struct Resolved {
  std::vector<IpAddress> addresses;  // in the order to be tried
  std::string error;                 // why there is none
};

// Blocks; called on a lookup's thread. REQUIRES: safe from many threads.
using Lookup = std::function<Resolved(const std::string& host)>;

// getaddrinfo: the host's own files and name servers.
Resolved LookUp(const std::string& host);

// Once in the process, before its first thread: no name is looked up in the host's search domains,
// and a name server that does not answer is given up after seconds.
void SetUpLookups();

class Resolver {
 public:
  using Done = std::function<void(Resolved)>;
  // The lookups of one cell that have no answer yet. Those that wait are dropped with it.
  struct Asker {
    size_t running = 0;
    std::deque<std::pair<std::string, Done>> waiting;
    bool in_line = false;  // is in Resolver::line_

    size_t asked() const { return running + waiting.size(); }
  };

  Resolver(Loop& loop, Lookup lookup) : loop_(loop), lookup_(std::move(lookup)) {}
  ~Resolver();  // waits for what runs
  Resolver(const Resolver&) = delete;
  Resolver& operator=(const Resolver&) = delete;

  // `done` is called on the loop, later, even if the stream is gone by then. At most `at_once` of
  // this asker's lookups run at a time.
  void Start(const std::shared_ptr<Asker>& asker, const std::string& host, size_t at_once,
             Done done);
  size_t running() const { return running_; }

 private:
  bool MayRun(const Asker& asker, size_t at_once) const;
  void Run(const std::shared_ptr<Asker>& asker, std::string host, Done done);
  void ServeLine();

  Loop& loop_;
  Lookup lookup_;
  size_t running_ = 0;
  size_t shared_ = 0;  // of them: without the first one of each asker
  size_t at_once_ = 1;
  std::deque<std::weak_ptr<Asker>> line_;  // askers that wait, each once
  Mutex mutex_;
  CondVar ended_;
  size_t threads_ GUARDED_BY(mutex_) = 0;
};

}  // namespace hutch
