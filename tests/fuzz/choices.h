// SPDX-License-Identifier: Apache-2.0

// What the mutators that know a form share: choices that one seed makes, libFuzzer's own changes,
// which know none, and the way back into its buffer. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <string_view>

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace hutch {

class Choices {
 public:
  explicit Choices(uint32_t seed) : random_(seed) { random_.discard(3); }

  size_t Below(size_t n) { return random_() % n; }
  bool OneIn(size_t n) { return Below(n) == 0; }
  char Byte() { return static_cast<char>(Below(256)); }
  template <class List>
  const auto& Of(const List& list) {
    return list[Below(std::size(list))];
  }

  // Changes, adds or takes away one character; what comes in is one of `alphabet`.
  void Tweak(std::string& text, std::string_view alphabet) {
    const char c = alphabet[Below(alphabet.size())];
    switch (Below(4)) {
      case 0:
        text.insert(Below(text.size() + 1), 1, c);
        return;
      case 1:
        if (!text.empty()) text.erase(Below(text.size()), 1);
        return;
      default:
        if (!text.empty()) text[Below(text.size())] = c;
    }
  }

 private:
  std::minstd_rand random_;
};

inline void MutateBlindly(std::string& text) {
  const size_t had = text.size();
  text.resize(had + 64);
  text.resize(LLVMFuzzerMutate(reinterpret_cast<uint8_t*>(text.data()), had, text.size()));
}

// The size of what is in `data` then: `text`, or what was there when that has no room.
inline size_t PutMutant(const std::string& text, uint8_t* data, size_t size, size_t max_size) {
  if (text.size() > max_size || text.empty()) return size;
  std::memcpy(data, text.data(), text.size());
  return text.size();
}

}  // namespace hutch
