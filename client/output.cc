// SPDX-License-Identifier: Apache-2.0

#include "client/output.h"

#include <algorithm>

namespace hutch {

void Output::Add(int index, std::string_view bytes) {
  Stream& stream = streams_[index];
  stream.size += bytes.size();
  if (!stream.head_full) {
    const auto taken = static_cast<size_t>(std::min<uint64_t>(bytes.size(), head_left_));
    stream.head.append(bytes.substr(0, taken));
    head_left_ -= taken;
    bytes.remove_prefix(taken);
    stream.head_full = !bytes.empty();
  }
  if (bytes.empty()) return;
  if (bytes.size() > tail_limit_)
    bytes.remove_prefix(bytes.size() - static_cast<size_t>(tail_limit_));
  stream.tail.append(bytes);
  // Cut only when it has doubled, so that each byte is moved once on average.
  if (stream.tail.size() > 2 * tail_limit_)
    stream.tail.erase(0, stream.tail.size() - static_cast<size_t>(tail_limit_));
}

std::string_view Output::KeptTail(const Stream& stream) const {
  std::string_view tail = stream.tail;
  if (tail.size() > tail_limit_) tail.remove_prefix(tail.size() - static_cast<size_t>(tail_limit_));
  return tail;
}

bool Output::truncated(int index) const {
  const Stream& stream = streams_[index];
  return stream.head.size() + KeptTail(stream).size() < stream.size;
}

std::string Output::text(int index) const {
  const Stream& stream = streams_[index];
  const std::string_view tail = KeptTail(stream);
  std::string text = stream.head;
  if (truncated(index)) {
    text += "\n[... " + std::to_string(stream.size - stream.head.size() - tail.size()) +
            " bytes left out ...]\n";
  }
  return text.append(tail);
}

}  // namespace hutch
