// SPDX-License-Identifier: Apache-2.0

#include "pool/pressure.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>

namespace hutch {
namespace {

// Where all processors are busy, some process waits now and then without harm; waiting for memory
// is felt at once.
constexpr double kCpuEasy = 40, kCpuHard = 90;        // percent
constexpr double kMemoryEasy = 1, kMemoryHard = 20;   // percent
constexpr double kLoadEasy = 1.5, kLoadHard = 4;      // runnable tasks for each processor
constexpr double kLeftEasy = 0.15, kLeftHard = 0.03;  // share of the memory

// 0 at `easy`, 1 at `hard`, straight between them; `hard` may be below `easy`.
double Ramp(double value, double easy, double hard) {
  return std::clamp((value - easy) / (hard - easy), 0.0, 1.0);
}

std::string ReadText(const char* path) {
  const std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();  // an iterator would throw where reading fails
  return text.str();
}

// The number after `key` and blanks.
template <typename Number>
std::optional<Number> After(std::string_view text, std::string_view key) {
  size_t at = text.find(key);
  if (at == std::string_view::npos) return std::nullopt;
  at = text.find_first_not_of(' ', at + key.size());
  if (at == std::string_view::npos) return std::nullopt;
  Number number{};
  const auto [end, error] = std::from_chars(text.data() + at, text.data() + text.size(), number);
  return error == std::errc() ? std::optional(number) : std::nullopt;
}

}  // namespace

std::optional<double> StalledPercent(std::string_view pressure_file) {
  if (!pressure_file.starts_with("some ")) return std::nullopt;
  return After<double>(pressure_file, "avg10=");
}

double PressureOf(const PressureFacts& facts) {
  const double cpu = facts.cpu_percent ? Ramp(*facts.cpu_percent, kCpuEasy, kCpuHard)
                                       : Ramp(facts.load_per_core, kLoadEasy, kLoadHard);
  const double memory = facts.memory_percent ? Ramp(*facts.memory_percent, kMemoryEasy, kMemoryHard)
                                             : Ramp(facts.memory_left, kLeftEasy, kLeftHard);
  return std::max(cpu, memory);
}

uint64_t AvailableMemoryKb() {
  return After<uint64_t>(ReadText("/proc/meminfo"), "MemAvailable:").value_or(0);
}

uint64_t TotalMemoryKb() {
  return After<uint64_t>(ReadText("/proc/meminfo"), "MemTotal:").value_or(0);
}

double Pressure::At(std::chrono::steady_clock::time_point now) {
  if (read_ != std::chrono::steady_clock::time_point{} && now - read_ < kPeriod) return value_;
  read_ = now;
  PressureFacts facts;
  facts.cpu_percent = StalledPercent(ReadText("/proc/pressure/cpu"));
  facts.memory_percent = StalledPercent(ReadText("/proc/pressure/memory"));
  if (!facts.cpu_percent) {
    facts.load_per_core = After<double>(ReadText("/proc/loadavg"), "").value_or(0) /
                          std::max(1u, std::thread::hardware_concurrency());
  }
  if (!facts.memory_percent) {
    const auto total = static_cast<double>(TotalMemoryKb());
    if (total > 0) facts.memory_left = static_cast<double>(AvailableMemoryKb()) / total;
  }
  value_ = PressureOf(facts);
  return value_;
}

}  // namespace hutch
