// SPDX-License-Identifier: Apache-2.0

// When a worker is due for replacement: pure decisions over numbers; time comes in as an argument.
#pragma once

#include <chrono>
#include <cstdint>
#include <string_view>

namespace hutch {

struct Rotation {
  uint64_t max_calls = 10'000;
  std::chrono::duration<double> max_age{3600};
};

struct WorkerAge {
  uint64_t calls = 0;                    // cells handed out
  std::chrono::duration<double> age{0};  // since it became ready
  bool tainted = false;  // something in it went wrong that a fresh one would not have
  double jitter = 0;     // 0 to 1, fixed for each worker: those started together end apart
};

// "" while the worker may go on, else why it is due: "taint", "calls" or "age". Jitter only
// shortens a worker's life: none passes a limit.
constexpr std::string_view DueForRotation(const Rotation& rotation, const WorkerAge& worker) {
  if (worker.tainted) return "taint";
  if (worker.calls >= rotation.max_calls) return "calls";
  if (worker.age >= rotation.max_age * (1.0 - 0.1 * worker.jitter)) return "age";
  return "";
}

// How long to wait before a worker is started again after `failures` starts failed in a row:
// doubles from 0.2 s to 30 s.
constexpr std::chrono::milliseconds StartBackoff(unsigned failures) {
  if (failures == 0) return std::chrono::milliseconds(0);
  const unsigned doublings = failures - 1 < 8 ? failures - 1 : 8;
  const auto wait = std::chrono::milliseconds(200) * (1u << doublings);
  return wait < std::chrono::milliseconds(30'000) ? wait : std::chrono::milliseconds(30'000);
}

}  // namespace hutch
