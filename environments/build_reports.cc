// SPDX-License-Identifier: Apache-2.0

#include "environments/build_reports.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <type_traits>
#include <utility>

#include "environments/environment_spec.h"
#include "environments/install_error.h"

namespace hutch {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxValues = 200'000;  // of a line's JSON that are kept
constexpr size_t kMaxLog = 64u << 10;
constexpr size_t kMaxPackage = 256;
constexpr size_t kMaxSourceFiles = 50'000;

// Parses untrusted text. Values deeper than `depth` are dropped, so that nothing recurses far, and
// so are those after kMaxValues, since each takes more memory than it has bytes.
Json ParseShallow(const std::string& text, int depth) {
  const auto keep = [depth, left = kMaxValues](int at, Json::parse_event_t event, Json&) mutable {
    const bool counts = event == Json::parse_event_t::value || event == Json::parse_event_t::key ||
                        event == Json::parse_event_t::object_start ||
                        event == Json::parse_event_t::array_start;
    if (counts && left > 0) --left;
    return at <= depth && (left > 0 || !counts);
  };
  return Json::parse(text, keep, false);
}

template <typename T>
T Member(const Json& object, const char* key, T otherwise) {
  if (!object.is_object()) return otherwise;
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if constexpr (std::is_same_v<T, std::string>) {
    return found->is_string() ? found->template get<std::string>() : otherwise;
  } else if constexpr (std::is_same_v<T, bool>) {
    return found->is_boolean() ? found->template get<bool>() : otherwise;
  } else if constexpr (std::is_same_v<T, uint64_t>) {  // a double may be larger than any
    return found->is_number_unsigned() ? found->template get<T>() : otherwise;
  } else {
    return found->is_number() ? found->template get<T>() : otherwise;
  }
}

std::vector<std::string> Strings(const Json& object, const char* key, size_t max) {
  std::vector<std::string> strings;
  if (!object.is_object() || !object.contains(key) || !object[key].is_array()) return strings;
  for (const Json& item : object[key]) {
    if (strings.size() == max) break;
    if (item.is_string()) strings.push_back(item.get<std::string>());
  }
  return strings;
}

Error Failure(const Json& item) {
  return InstallError(Member(item, "failed", std::string()),
                      Member(item, "log", std::string()).substr(0, kMaxLog));
}

bool IsPlainSourcePath(const std::string& path) {
  if (path.size() > 512 || !path.ends_with(".py") || path.starts_with('/')) return false;
  if (path.find('\0') != std::string::npos) return false;
  for (const auto& part : std::filesystem::path(path)) {
    if (part.empty() || part == "." || part == "..") return false;
  }
  return true;
}

InstallItem::End EndOf(const Json& item) {
  InstallItem::End end;
  for (const std::string& package : Strings(item, "packages", 10'000))
    end.packages.push_back(PrintableLine(package, kMaxPackage));
  end.bytes = Member<uint64_t>(item, "bytes", 0);
  end.files = Member<uint64_t>(item, "files", 0);
  end.modules = Strings(item, "modules", 4096);
  end.uncompiled = Strings(item, "uncompiled", 4096);
  for (auto* names : {&end.modules, &end.uncompiled})
    std::erase_if(*names, [](const std::string& module) { return !IsModule(module); });
  return end;
}

}  // namespace

std::string PrintableLine(std::string_view text, size_t max) {
  std::string out;
  for (const char c : text.substr(0, max)) {
    out += static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\x9b' ? ' ' : c;
  }
  return out;
}

InstallItem ReadInstallItem(const std::string& line) {
  InstallItem read;
  const Json item = ParseShallow(line, 3);
  if (!item.is_object()) return read;
  if (item.contains("failed")) read.failure = Failure(item);
  const std::string stage = Member(item, "stage", std::string());
  if (stage == "resolve" || stage == "download" || stage == "install") {
    read.progress = {stage, ScrubCredentials(Member(item, "text", std::string()).substr(0, 1000)),
                     Member(item, "done", 0.0), Member(item, "total", 0.0)};
  }
  if (item.contains("packages")) read.end = EndOf(item);
  return read;
}

ProbeAnswer ReadProbeAnswer(const std::string& text, const std::vector<std::string>& asked) {
  ProbeAnswer answer;
  const Json body = ParseShallow(text, 4);
  std::set<std::string> seen;
  if (body.is_object() && body.contains("modules") && body["modules"].is_array()) {
    for (const Json& item : body["modules"]) {
      const std::string module = Member(item, "module", std::string());
      const bool known = std::find(asked.begin(), asked.end(), module) != asked.end();
      if (!known || !seen.insert(module).second) continue;
      if (!Member(item, "ok", false)) {
        answer.notes.push_back(module + " is not loaded ahead: importing it failed: " +
                               PrintableLine(Member(item, "error", std::string()), 400));
      } else if (const double threads = Member(item, "threads", 0.0); threads != 0) {
        answer.notes.push_back(module + " is not loaded ahead: importing it starts threads");
      } else {
        answer.preload.push_back(module);
      }
    }
  }
  for (const std::string& module : asked) {
    if (!seen.contains(module))
      answer.notes.push_back(module + " is not loaded ahead: importing it did not end");
  }
  for (std::string& path : Strings(body, "files", kMaxSourceFiles)) {
    if (IsPlainSourcePath(path)) answer.files.push_back(std::move(path));
  }
  return answer;
}

}  // namespace hutch
