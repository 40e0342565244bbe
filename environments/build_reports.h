// SPDX-License-Identifier: Apache-2.0

// Reads what the steps of a build report: lines of JSON, each an item.
//
// All of it is untrusted, as packages could have written it: it is bounded in depth and in values,
// names are checked, text is made printable. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "wire/error.h"

namespace hutch {

// One line for the user, without control characters, of at most `max` bytes.
std::string PrintableLine(std::string_view text, size_t max);

struct BuildProgress {
  std::string stage;  // base resolve download install compile import
  std::string text;
  double done = 0;
  double total = 0;  // 0: not known

  bool operator==(const BuildProgress&) const = default;
};

// An item of the install step, or of the one that reads its tree again.
struct InstallItem {
  std::optional<Error> failure;
  std::optional<BuildProgress> progress;
  struct End {
    std::vector<std::string> packages;             // name==version
    std::vector<std::string> modules, uncompiled;  // for import; of those, without bytecode
    uint64_t bytes = 0, files = 0;
  };
  std::optional<End> end;  // it is the last one
};
// Never throws. What is malformed is left out.
InstallItem ReadInstallItem(const std::string& line);

struct ProbeAnswer {
  std::vector<std::string> preload, notes, files;
};

// What the import step reported. Packages could have written it: modules that were not asked for,
// paths that are not relative and normal, and anything malformed are dropped. Never throws.
ProbeAnswer ReadProbeAnswer(const std::string& text, const std::vector<std::string>& asked);

}  // namespace hutch
