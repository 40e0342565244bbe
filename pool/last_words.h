// SPDX-License-Identifier: Apache-2.0

// What a worker's zygote wrote on stderr before it died, as entries of the agent's log.
//
// The bytes are a stranger's: they are escaped and cut (wire/log.h), never parsed, and a worker
// gets few entries, however often its zygote dies. The values of the pool's env= are replaced,
// because a traceback may quote one: also a part of one at either end, since only the last bytes
// are kept, and a zygote may die, or its text be taken, while it writes. Belongs to the loop's
// thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace hutch {

class LastWords {
 public:
  // Shorter values are not replaced: "1" or "true" stands in any text.
  static constexpr size_t kShortestHidden = 6;
  // Of a value at an end of the text, likewise.
  static constexpr size_t ShortestPart(size_t size) {
    return std::min(kShortestHidden, (size + 1) / 2);
  }
  static constexpr unsigned kMostEntries = 4;

  void HideValues(const std::map<std::string, std::string>& env);

  // `status`: the zygote's wait status, 0 while it lives.
  void Log(const std::string& worker, uint32_t status, std::string_view text);

 private:
  std::string Hidden(std::string_view text) const;

  std::vector<std::string> hidden_;
  unsigned entries_ = 0;
};

}  // namespace hutch
