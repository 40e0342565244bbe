// SPDX-License-Identifier: Apache-2.0

// What a call printed: at most `limit` bytes of both streams together are kept, the beginning and
// the end; all are counted.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hutch {

// Half of the budget goes to the beginnings of both streams as they come, a quarter to the end of
// each. Owned by one call; not thread-safe.
class Output {
 public:
  explicit Output(uint64_t limit) : head_left_(limit / 2), tail_limit_(limit / 4) {}

  void Add(int stream, std::string_view bytes);  // stream 0: stdout, 1: stderr

  uint64_t size(int stream) const { return streams_[stream].size; }
  bool truncated(int stream) const;
  // The beginning and the end, with a line between them that says how much is left out.
  std::string text(int stream) const;

 private:
  struct Stream {
    std::string head;
    std::string tail;  // may hold up to twice tail_limit_ until it is cut
    uint64_t size = 0;
    bool head_full = false;
  };
  std::string_view KeptTail(const Stream& stream) const;

  uint64_t head_left_;
  uint64_t tail_limit_;
  Stream streams_[2];
};

}  // namespace hutch
