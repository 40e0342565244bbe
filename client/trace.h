// SPDX-License-Identifier: Apache-2.0

// HUTCH_TRACE=1: one line on stderr for each stage of a call, with the ids that the agent logs at
// HUTCH_LOG=debug and the audit log has. A lease is a cell: the warden's reports come by its
// number.
//
//   hutch trace 17:07:08.123456 sent call=00b5… lease=12 worker=hutch-worker-…
//
// Safe from any thread. Off, it costs a branch on a constant that is read once, when this library
// is loaded: write `if (IsTraced()) Trace(...)`, so that no field is made either.
#pragma once

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <initializer_list>
#include <string>
#include <string_view>

#include "wire/log.h"

namespace hutch {

inline const bool kIsTraced = [] {
  const char* text = ::secure_getenv("HUTCH_TRACE");
  return text != nullptr && std::string_view(text) == "1";
}();

inline bool IsTraced() { return kIsTraced; }

inline void Trace(const char* stage, std::initializer_list<LogField> fields) {
  timespec now{};
  tm utc{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::gmtime_r(&now.tv_sec, &utc);
  char head[48];
  std::snprintf(head, sizeof head, "hutch trace %02d:%02d:%02d.%06ld ", utc.tm_hour, utc.tm_min,
                utc.tm_sec, now.tv_nsec / 1000);
  const std::string line = head + LogText(stage, fields) + "\n";
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
}

}  // namespace hutch
