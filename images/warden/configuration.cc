// SPDX-License-Identifier: Apache-2.0

#include "images/warden/configuration.h"

#include <stdlib.h>
#include <string.h>

#include <algorithm>

namespace hutch {

bool Configuration::Take(const char* text, size_t size) {
  if (taken() || size == 0 || size > sizeof text_ || text[size - 1] != '\0') return false;
  memcpy(text_, text, size);
  size_ = size;
  memory_kb_ = Number("HUTCH_MEMORY_KB", memory_kb_);
  watch_kb_ = Number("HUTCH_WATCH_KB", memory_kb_);
  pids_ = Number("HUTCH_PIDS", pids_);
  cpus_ = Number("HUTCH_CPUS", cpus_);
  // A package, or the caller's setup function, may load much; it may not eat the host.
  worker_kb_ = Number("HUTCH_WORKER_KB", std::max<uint64_t>(4 << 20, 2 * memory_kb_));
  single_cell_ = Number("HUTCH_SINGLE_CELL", 0) != 0;
  gvisor_ = Number("HUTCH_GVISOR", 0) != 0;
  // As many as in a cell's scratch. Podman mounts none with such a limit.
  if (single_cell_) files_ = std::clamp<uint64_t>(Number("HUTCH_DISK_KB", 0) / 8, 1024, 65536);
  return true;
}

const char* Configuration::Text(const char* key) const {
  const size_t size = strlen(key);
  for (size_t at = 0; at < size_; at += strlen(text_ + at) + 1) {
    if (strncmp(text_ + at, key, size) == 0 && text_[at + size] == '=')
      return text_ + at + size + 1;
  }
  return "";
}

uint64_t Configuration::Number(const char* key, uint64_t otherwise) const {
  const char* text = Text(key);
  return *text == '\0' ? otherwise : strtoull(text, nullptr, 10);
}

}  // namespace hutch
