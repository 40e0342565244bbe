// SPDX-License-Identifier: Apache-2.0

// How hard the host is pressed, as one number from 0 (idle) to 1 (others wait for it all the time):
// from the kernel's pressure stall information where it has it (PSI, Linux 4.20), else from the
// load average and the memory that is left.
//
// The functions are pure; a Pressure belongs to one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string_view>

namespace hutch {

// Percent of the last 10 s in which something waited: the `some avg10=` of a /proc/pressure file.
std::optional<double> StalledPercent(std::string_view pressure_file);

struct PressureFacts {
  std::optional<double> cpu_percent = std::nullopt;     // StalledPercent of /proc/pressure/cpu
  std::optional<double> memory_percent = std::nullopt;  // and of /proc/pressure/memory
  double load_per_core = 0;                             // looked at where the first is not there
  double memory_left = 1;  // share of all memory; where the second is not there
};
double PressureOf(const PressureFacts& facts);

uint64_t AvailableMemoryKb();  // the host's; 0: not known
uint64_t TotalMemoryKb();

class Pressure {
 public:
  // As read at most kPeriod ago.
  double At(std::chrono::steady_clock::time_point now);

 private:
  static constexpr auto kPeriod = std::chrono::milliseconds(500);
  std::chrono::steady_clock::time_point read_{};
  double value_ = 0;
};

}  // namespace hutch
