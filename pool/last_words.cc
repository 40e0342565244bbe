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

// How much of the text's beginning is the end of the value, where the rest was cut off. All of it,
// where it is from the middle of the value.
size_t CutAtStart(std::string_view text, std::string_view value) {
  if (value.find(text) != std::string_view::npos) return text.size();
  for (size_t size = std::min(text.size(), value.size() - 1); size > 0; --size) {
    if (text.starts_with(value.substr(value.size() - size))) return size;
  }
  return 0;
}

size_t CutAtEnd(std::string_view text, std::string_view value) {
  for (size_t size = std::min(text.size(), value.size() - 1); size > 0; --size) {
    if (text.ends_with(value.substr(0, size))) return size;
  }
  return 0;
}

}  // namespace

void LastWords::HideValues(const std::map<std::string, std::string>& env) {
  for (const auto& [name, value] : env) {
    if (value.size() >= kShortestHidden) hidden_.push_back(value);
  }
}

std::string LastWords::Hidden(std::string_view text) const {
  std::vector<bool> hides(text.size());
  const auto hide = [&](size_t at, size_t size) {
    std::fill_n(hides.begin() + static_cast<ptrdiff_t>(at), size, true);
  };
  for (const std::string& value : hidden_) {
    for (size_t at = 0; (at = text.find(value, at)) != std::string_view::npos; ++at) {
      hide(at, value.size());
    }
    const size_t before = CutAtStart(text, value);
    if (before >= ShortestPart(value.size())) hide(0, before);
    const size_t after = CutAtEnd(text, value);
    if (after >= ShortestPart(value.size())) hide(text.size() - after, after);
  }
  std::string shown;
  for (size_t at = 0; at < text.size(); ++at) {
    if (!hides[at]) {
      shown += text[at];
    } else if (at == 0 || !hides[at - 1]) {
      shown += kReplacement;
    }
  }
  return shown;
}

void LastWords::Log(const std::string& worker, uint32_t status, std::string_view text) {
  if (entries_ == kMostEntries) return;
  ++entries_;
  const std::string shown = Hidden(text);
  if (status == 0) {
    LogWarn("a zygote's last words", {{"worker", worker}, TailField("stderr", shown)});
  } else {
    LogWarn("a zygote died",
            {{"worker", worker}, {"why", HowItEnded(status)}, TailField("stderr", shown)});
  }
}

}  // namespace hutch
