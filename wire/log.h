// SPDX-License-Identifier: Apache-2.0

// The log of our own programs: one line on stderr for each event, for `hutch logs` and for people.
//
//   2026-11-24T16:51:01.123Z warn agent: the worker died worker=hutch-worker-1 why="exit code 1"
//
// Messages and values may hold what a worker or another host sent. So a line is printable ASCII
// only, with everything else escaped, and at most PIPE_BUF bytes long: a pipe takes it whole or not
// at all, whatever other threads write. Log() never blocks where stderr does not, and never throws
// for what it is given. StartLog() is called once, before there are threads; the rest is
// thread-safe.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

namespace hutch {

enum class LogLevel : uint8_t { kError, kWarn, kInfo, kDebug };

// The lines of a launcher go to the terminal of a user, who did not ask for times and levels.
enum class LogStyle : uint8_t { kFull, kForPeople };

struct LogField {
  LogField(const char* name, std::string_view value) : key(name), text(value) {}
  LogField(const char* name, const char* value) : key(name), text(value) {}
  LogField(const char* name, const std::string& value) : key(name), text(value) {}
  LogField(const char* name, std::integral auto value)
      : key(name), number(static_cast<uint64_t>(value)), is_number(true) {}

  const char* key;
  std::string_view text{};
  uint64_t number = 0;
  bool is_number = false;
  bool keep_end = false;  // of a text that is too long, and up to kMaxLogTail of it
};
// A field of a long text whose end says most, such as a traceback.
LogField TailField(const char* key, std::string_view text);

inline constexpr size_t kMaxLogLine = 4096;  // PIPE_BUF, with the line's end
inline constexpr size_t kMaxLogText = 1024;  // of a message, or of a field's value, when escaped
inline constexpr size_t kMaxLogTail = 3072;

// `component`: agent, launcher or egress. The level is that of HUTCH_LOG: error, warn, info or
// debug, and info for anything else. A level that is set there makes every style kFull.
void StartLog(const char* component, LogStyle style = LogStyle::kFull);

// The level in HUTCH_LOG, to hand on to a container; "" where it names none.
std::string LogLevelSetting();

// Whether lines of this level are written. For what costs something to say.
bool IsLogged(LogLevel level);

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields = {});

inline void LogError(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kError, message, fields);
}
inline void LogWarn(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kWarn, message, fields);
}
inline void LogInfo(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogDebug(std::string_view message, std::initializer_list<LogField> fields = {}) {
  Log(LogLevel::kDebug, message, fields);
}

// A call's id as the audit log and outcomes write it: 16 hex digits.
std::string LogId(uint64_t id);

// The text without its beginning ("kFull": time, level, component) and the line's end.
std::string LogText(std::string_view message, std::initializer_list<LogField> fields);

}  // namespace hutch
