// SPDX-License-Identifier: Apache-2.0

// The pressure on the host, as one number from 0 (idle) to 1 (processes wait all the time): from
// the kernel's pressure stall information where there is some (PSI, Linux 4.20), else from the load
// average and the available memory.
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
  double load_per_core = 0;                             // used without cpu_percent
  double memory_left = 1;  // available share of all memory; used without memory_percent
};
double PressureOf(const PressureFacts& facts);

uint64_t AvailableMemoryKb();  // of the host; 0: not known
uint64_t TotalMemoryKb();

class Pressure {
 public:
  // PressureOf() the host; the files are read again after kPeriod.
  double At(std::chrono::steady_clock::time_point now);

 private:
  static constexpr auto kPeriod = std::chrono::milliseconds(500);
  std::chrono::steady_clock::time_point read_{};
  double value_ = 0;
};

}  // namespace hutch
