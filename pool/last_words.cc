// SPDX-License-Identifier: Apache-2.0

#include "pool/last_words.h"

#include <sys/wait.h>

#include <algorithm>

#include "wire/log.h"

namespace hutch {
namespace {

constexpr std::string_view kReplacement = "[env]";

std::string HowItEnded(uint32_t status) {
  const auto raw = static_cast<int>(status);
  if (WIFSIGNALED(raw)) return "signal " + std::to_string(WTERMSIG(raw));
  return "exit code " + std::to_string(WEXITSTATUS(raw));
}

}  // namespace

void LastWords::HideValues(const std::map<std::string, std::string>& env) {
  for (const auto& [name, value] : env) {
    if (value.size() >= kShortestHidden) hidden_.push_back(value);
  }
  std::ranges::sort(hidden_, {}, [](const std::string& value) { return ~value.size(); });
}

void LastWords::Log(const std::string& worker, uint32_t status, std::string_view text) {
  if (entries_ == kMostEntries) return;
  ++entries_;
  std::string shown(text);
  for (const std::string& value : hidden_) {
    for (size_t at = 0; (at = shown.find(value, at)) != std::string::npos;) {
      shown.replace(at, value.size(), kReplacement);
      at += kReplacement.size();
    }
  }
  if (status == 0) {
    LogWarn("a zygote's last words", {{"worker", worker}, TailField("stderr", shown)});
  } else {
    LogWarn("a zygote died",
            {{"worker", worker}, {"why", HowItEnded(status)}, TailField("stderr", shown)});
  }
}

}  // namespace hutch
