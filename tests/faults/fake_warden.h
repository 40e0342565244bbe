// SPDX-License-Identifier: Apache-2.0

// Wardens for tests: threads that connect to a worker's socket and speak its frames, honestly or
// not, each started when the container of its worker is.
//
// The workers must be made with the uid of the test's own process. Counters may be read from any
// thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/faults/fake_podman.h"
#include "wire/cell_frame.h"

namespace hutch {

enum class WardenWay {
  kHonest,
  kNeverConnects,
  kWrongToken,
  kNoHello,
  kHelloForever,      // the right one, again and again
  kReadyUnasked,      // before it is configured
  kFailsCells,        // every cell fails to be made
  kEndsCellsUnready,  // every cell ends before it is ready
  kNoNamespaces,  // says that no cell can be made where it is, and makes the one of a bare worker
  kZygoteDies,    // instead of being ready, with words that are no text
  kNonsense,      // frames made of a seed, forever
  kDeaf,          // honest, but for pings
};

class FakeWardens {
 public:
  explicit FakeWardens(std::string worker_dir);
  ~FakeWardens();

  const std::string& podman_socket() const { return containers_.path(); }
  FakeContainers& containers() { return containers_; }
  void Behave(WardenWay way) { way_ = way; }  // those that start from now on
  void KillAll();                             // every warden's connection closes

  std::atomic<int> connected = 0;
  std::atomic<int> turned_away = 0;  // connections closed before any order came
  std::atomic<int> configured = 0;
  std::atomic<int> retired = 0;
  std::atomic<int> cells_made = 0;
  std::atomic<int> cells_ended = 0;
  std::atomic<int> slots_ended = 0;
  std::atomic<int> armed = 0;
  std::atomic<int> pings = 0;
  std::atomic<uint64_t> seed = 1;
  std::string last_frame();   // that a cell found when it was killed
  std::string last_config();  // what the last one that was configured was sent

 private:
  struct Warden {
    std::atomic<bool> stop = false;
    std::thread thread;
  };
  void Run(const Warden& warden, const std::string& socket, const std::string& token,
           WardenWay way);
  void Nonsense(const Warden& warden, int socket);

  std::string worker_dir_;
  std::atomic<WardenWay> way_ = WardenWay::kHonest;
  std::mutex mutex_;
  std::string last_config_;
  std::string last_frame_;
  std::vector<std::unique_ptr<Warden>> wardens_;
  FakeContainers containers_;  // last: its thread starts wardens
};

}  // namespace hutch
