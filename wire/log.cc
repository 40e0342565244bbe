// SPDX-License-Identifier: Apache-2.0

#include "wire/log.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <optional>

namespace hutch {
namespace {

static_assert(kMaxLogLine <= PIPE_BUF);

constexpr std::array<std::string_view, 4> kNames = {"error", "warn", "info", "debug"};
constexpr std::string_view kCut = "...";
constexpr size_t kMaxHead = 64;  // time, level and component
constexpr size_t kMaxText = kMaxLogLine - kMaxHead - 1;

// Set once, by StartLog().
const char* component = "hutch";
LogStyle style = LogStyle::kFull;
LogLevel most = LogLevel::kInfo;

// Appends `c` to `to` such that a terminal shows it and does not obey it.
void AppendEscaped(char c, std::string* to) {
  constexpr char kHex[] = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  if (c == '\n') {
    to->append("\\n");
  } else if (c == '"' || c == '\\') {
    to->append({'\\', c});
  } else if (byte >= 0x20 && byte < 0x7f) {
    to->push_back(c);
  } else {
    to->append({'\\', 'x', kHex[byte >> 4], kHex[byte & 15]});
  }
}

// At most `limit` bytes of it, when escaped; of a longer one the beginning, or the end.
std::string Escape(std::string_view text, size_t limit, bool keep_end) {
  std::string escaped;
  if (limit < kCut.size()) return escaped;
  // Each byte becomes at least one: more of them than that cannot be shown.
  const bool is_long = text.size() > limit;
  if (is_long) text = keep_end ? text.substr(text.size() - limit) : text.substr(0, limit);
  for (const char c : text) AppendEscaped(c, &escaped);
  if (!is_long && escaped.size() <= limit) return escaped;
  const size_t kept = std::min(escaped.size(), limit - kCut.size());
  if (keep_end) return std::string(kCut) + escaped.substr(escaped.size() - kept);
  // Not in the middle of an escape: its backslash would take the quote that follows.
  escaped.clear();
  std::string one;
  for (const char c : text) {
    one.clear();
    AppendEscaped(c, &one);
    if (escaped.size() + one.size() > kept) break;
    escaped += one;
  }
  return escaped.append(kCut);
}

bool NeedsQuotes(std::string_view escaped) {
  return escaped.empty() || escaped.find_first_of(" =\"\\") != std::string_view::npos;
}

std::optional<LogLevel> LevelSet() {
  const char* text = ::secure_getenv("HUTCH_LOG");
  const auto* found = std::ranges::find(kNames, std::string_view(text == nullptr ? "" : text));
  if (found == kNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kNames.begin());
}

std::string Head(LogLevel level) {
  char text[kMaxHead + 1];
  if (style == LogStyle::kForPeople) {
    const bool bad = level <= LogLevel::kWarn;
    std::snprintf(text, sizeof text, "hutch: %s", bad ? "warning: " : "");
    return text;
  }
  timespec now{};
  tm utc{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  ::gmtime_r(&now.tv_sec, &utc);
  const size_t size = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
  const std::string_view name = kNames[static_cast<size_t>(level)];
  std::snprintf(text + size, sizeof text - size, ".%03ldZ %.*s %.16s: ", now.tv_nsec / 1'000'000,
                static_cast<int>(name.size()), name.data(), component);
  return text;
}

}  // namespace

LogField TailField(const char* key, std::string_view text) {
  LogField field(key, text);
  field.keep_end = true;
  return field;
}

void StartLog(const char* name, LogStyle wanted) {
  component = name;
  const std::optional<LogLevel> level = LevelSet();
  most = level.value_or(LogLevel::kInfo);
  style = level ? LogStyle::kFull : wanted;
}

std::string LogLevelSetting() {
  const std::optional<LogLevel> level = LevelSet();
  return level ? std::string(kNames[static_cast<size_t>(*level)]) : std::string();
}

std::string LogId(uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

bool IsLogged(LogLevel level) { return level <= most; }

std::string LogText(std::string_view message, std::initializer_list<LogField> fields) {
  std::string text = Escape(message, kMaxLogText, false);
  for (const LogField& field : fields) {
    const std::string key = std::string(" ") + field.key + "=";
    const size_t used = text.size() + key.size() + 2;  // the quotes
    if (used + kCut.size() > kMaxText) break;
    const size_t limit = std::min(kMaxText - used, field.keep_end ? kMaxLogTail : kMaxLogText);
    const std::string value =
        field.is_number ? std::to_string(field.number) : Escape(field.text, limit, field.keep_end);
    const char* quote = NeedsQuotes(value) ? "\"" : "";
    text.append(key).append(quote).append(value).append(quote);
  }
  return text;
}

void Log(LogLevel level, std::string_view message, std::initializer_list<LogField> fields) {
  if (!IsLogged(level)) return;
  const std::string line = Head(level) + LogText(message, fields) + "\n";
  // A line that does not fit is lost: nobody waits for the reader of a log.
  while (::write(STDERR_FILENO, line.data(), line.size()) < 0 && errno == EINTR) {
  }
}

}  // namespace hutch
