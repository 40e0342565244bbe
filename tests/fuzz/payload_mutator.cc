// SPDX-License-Identifier: Apache-2.0

#include "tests/fuzz/payload_mutator.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <random>
#include <string_view>
#include <vector>

namespace hutch {
namespace {

constexpr size_t kMagicSize = 2;
constexpr size_t kMaxMutated = 4096;

enum class Form : uint8_t { kScalar, kText, kRaw, kNumber, kMark, kBuffer, kArray, kMap };

// A MessagePack value in the body. Those inside it follow it in the list of nodes.
struct Node {
  Form form;
  size_t begin;
  size_t content;  // where its bytes, or its first item, begin
  size_t end = 0;
  uint32_t items = 0;  // of an array; of a map, keys and values
  size_t parent = 0;
  bool marked = false;  // an array that begins with a mark
};

uint64_t BigEndian(std::string_view bytes) {
  uint64_t value = 0;
  for (char c : bytes) value = value << 8 | static_cast<uint8_t>(c);
  return value;
}

// The nodes of the body in order, as far as it is well formed; node 0 is the value itself.
class Scanner {
 public:
  explicit Scanner(std::string_view body) : body_(body) {}

  std::vector<Node> Scan() {
    size_t at = kMagicSize;
    std::vector<std::pair<size_t, uint32_t>> open;  // node, items that are still to come
    do {
      Node node{.form = Form::kScalar, .begin = at, .content = at};
      if (nodes_.size() == kMaxMutated || !Read(node)) return {};
      if (!open.empty()) {
        node.parent = open.back().first;
        --open.back().second;
        Node& parent = nodes_[node.parent];
        if (node.form == Form::kMark && parent.content == node.begin) parent.marked = true;
      }
      at = node.end;
      nodes_.push_back(node);
      if (node.items > 0) open.emplace_back(nodes_.size() - 1, node.items);
      while (!open.empty() && open.back().second == 0) {
        nodes_[open.back().first].end = at;
        open.pop_back();
      }
    } while (!open.empty());
    return nodes_;
  }

 private:
  // Sets what the header tells; the end of a container is the end of its header for now.
  bool Read(Node& node) {
    if (node.begin >= body_.size()) return false;
    const auto head = static_cast<uint8_t>(body_[node.begin]);
    if (head >= 0x80 && head <= 0x8f) return Container(node, Form::kMap, 1, 2u * (head & 15));
    if (head >= 0x90 && head <= 0x9f) return Container(node, Form::kArray, 1, head & 15);
    if (head >= 0xa0 && head <= 0xbf) return Content(node, Form::kText, 1, head & 31);
    if (head < 0x80 || head >= 0xe0 || (head >= 0xc0 && head <= 0xc3 && head != 0xc1))
      return Content(node, Form::kScalar, 1, 0);
    switch (head) {
      case 0xc4:
      case 0xc5:
      case 0xc6:
        return Counted(node, Form::kRaw, size_t{1} << (head - 0xc4), 0);
      case 0xc7:
      case 0xc8:
      case 0xc9:
        return Counted(node, Form::kRaw, size_t{1} << (head - 0xc7), 1);
      case 0xca:
        return Content(node, Form::kNumber, 1, 4);
      case 0xcb:
        return Content(node, Form::kNumber, 1, 8);
      case 0xcc:
      case 0xcd:
      case 0xce:
      case 0xcf:
        return Content(node, Form::kNumber, 1, size_t{1} << (head - 0xcc));
      case 0xd0:
      case 0xd1:
      case 0xd2:
      case 0xd3:
        return Content(node, Form::kNumber, 1, size_t{1} << (head - 0xd0));
      case 0xd4:
        return Content(node, Form::kMark, 2, 1);
      case 0xd7:
        return Content(node, Form::kBuffer, 2, 8);
      case 0xd9:
      case 0xda:
      case 0xdb:
        return Counted(node, Form::kText, size_t{1} << (head - 0xd9), 0);
      case 0xdc:
      case 0xdd:
      case 0xde:
      case 0xdf: {
        const size_t width = head % 2 == 0 ? 2 : 4;
        if (body_.size() - node.begin < 1 + width) return false;
        const uint64_t count = BigEndian(body_.substr(node.begin + 1, width));
        if (count > kMaxMutated) return false;
        const bool map = head >= 0xde;
        return Container(node, map ? Form::kMap : Form::kArray, 1 + width,
                         static_cast<uint32_t>(map ? 2 * count : count));
      }
      default:
        return false;
    }
  }
  bool Container(Node& node, Form form, size_t header, uint32_t items) {
    node.items = items;
    return Content(node, form, header, 0);
  }
  bool Counted(Node& node, Form form, size_t width, size_t more) {
    if (body_.size() - node.begin < 1 + width) return false;
    const uint64_t size = BigEndian(body_.substr(node.begin + 1, width));
    return Content(node, form, 1 + width + more, size);
  }
  bool Content(Node& node, Form form, size_t header, uint64_t size) {
    const size_t left = body_.size() - node.begin;
    if (header > left || size > left - header) return false;
    node.form = form;
    node.content = node.begin + header;
    node.end = node.content + size;
    return true;
  }

  std::string_view body_;
  std::vector<Node> nodes_;
};

std::string ArrayHeader(uint32_t items, bool map) {
  const uint32_t count = map ? items / 2 : items;
  if (count < 16) return std::string(1, static_cast<char>((map ? 0x80 : 0x90) | count));
  return {static_cast<char>(map ? 0xde : 0xdc), static_cast<char>(count >> 8),
          static_cast<char>(count)};
}

using namespace std::string_view_literals;
constexpr std::array kFresh = {
    "\xc0"sv,
    "\xc2"sv,
    "\xc3"sv,
    "\x00"sv,
    "\x7f"sv,
    "\xff"sv,
    "\xcf\xff\xff\xff\xff\xff\xff\xff\xff"sv,
    "\xd3\x80\0\0\0\0\0\0\0"sv,
    "\xcb\x7f\xf8\0\0\0\0\0\0"sv,
    "\xcb\x80\0\0\0\0\0\0\0"sv,
    "\xa0"sv,
    "\xa1y"sv,
    "\xa2\xc3\xbc"sv,
    "\xc4\0"sv,
    "\xc4\x02\0\xff"sv,
    "\x90"sv,
    "\x80"sv,
    "\x92\xd4\x01\x03\x05"sv,                 // frozenset({5})
    "\xc7\x09\x03\0\0\0\0\0\0\0\0\x01"sv,     // 2^64
    "\xc7\x03\x04\xed\xa0\x80"sv,             // "\ud800"
    "\x94\xd4\x01\x07\x00\x09\x02"sv,         // range(0, 9, 2)
    "\x94\xd4\x01\x10\xcd\x07\xe8\x02\x1d"sv  // date(2024, 2, 29)
};

class Mutation {
 public:
  Mutation(FuzzedPayload& payload, std::minstd_rand& random)
      : body_(payload.body), buffers_(payload.buffers), random_(random) {}

  void Apply() {
    nodes_ = Scanner(body_).Scan();
    if (nodes_.empty()) return;
    const size_t chosen = Below(nodes_.size());
    const Node& node = nodes_[chosen];
    // What stands in a field of a kind is mostly left to be what it is.
    const bool in_field =
        chosen != 0 && nodes_[node.parent].form == Form::kArray && nodes_[node.parent].marked;
    const bool list_item = chosen != 0 && nodes_[node.parent].form == Form::kArray && !in_field;
    switch (Below(8)) {
      case 0:
        if (in_field && Below(4) != 0) return Tweak(node);
        return Replace(node, std::string(kFresh[Below(kFresh.size())]));
      case 1: {
        const Node& other = nodes_[Below(nodes_.size())];
        if (other.form == Form::kMark || node.form == Form::kMark) return Tweak(node);
        if (in_field && other.form != node.form) return Tweak(node);
        return Replace(node, Bytes(other));
      }
      case 2:
        if (!list_item || node.form == Form::kMark) return Tweak(node);
        return Resize(nodes_[node.parent], node.begin, Bytes(node), 0, 1);
      case 3:
        if (!list_item) return Tweak(node);
        return Resize(nodes_[node.parent], node.begin, "", node.end - node.begin, -1);
      case 4:
        if (node.form == Form::kMark || (in_field && Below(4) != 0)) return Tweak(node);
        return Wrap(node);
      case 5:
        if (!buffers_.empty()) {
          buffers_[Below(buffers_.size())] = static_cast<char>(Below(256));
          return;
        }
        return Tweak(node);
      default:
        return Tweak(node);
    }
  }

 private:
  size_t Below(size_t n) { return random_() % n; }
  std::string Bytes(const Node& node) const {
    return body_.substr(node.begin, node.end - node.begin);
  }
  void Replace(const Node& node, const std::string& by) {
    if (node.form != Form::kMark) body_.replace(node.begin, node.end - node.begin, by);
  }

  // Other content of the same size.
  void Tweak(const Node& node) {
    const size_t size = node.end - node.content;
    switch (node.form) {
      case Form::kText:
        if (size != 0) body_[node.content + Below(size)] = static_cast<char>(' ' + Below(95));
        return;
      case Form::kRaw:
        if (size != 0) body_[node.content + Below(size)] = static_cast<char>(Below(256));
        return;
      case Form::kNumber:
        body_[node.content + Below(size)] = static_cast<char>(Below(256));
        return;
      case Form::kScalar:
        if (static_cast<uint8_t>(body_[node.begin]) < 0x80)
          body_[node.begin] = static_cast<char>(Below(128));
        return;
      case Form::kMark: {
        // Kinds of one shape for one another; any kind at all now and then.
        auto& kind = body_[node.content];
        if (kind >= 0x01 && kind <= 0x03) {
          kind = static_cast<char>(1 + Below(3));
        } else if (Below(8) == 0) {
          kind = static_cast<char>(Below(0x62));
        }
        return;
      }
      case Form::kBuffer:
        if (Below(4) == 0) body_[node.content + Below(8)] ^= static_cast<char>(1 << Below(8));
        return;
      case Form::kArray:
      case Form::kMap:
        return;
    }
  }

  // Puts `with` in place of `size` bytes at `at`, inside `list`, which then has `more` items more.
  void Resize(const Node& list, size_t at, const std::string& with, size_t size, int more) {
    body_.replace(at, size, with);
    body_.replace(list.begin, list.content - list.begin,
                  ArrayHeader(list.items + static_cast<uint32_t>(more), false));
  }

  void Wrap(const Node& node) {
    const std::string inner = Bytes(node);
    switch (Below(4)) {
      case 0:
        return Replace(node, "\x91" + inner);
      case 1:
        return Replace(node, "\x93\xd4\x01\x01" + inner + inner);
      case 2:
        return Replace(node, "\x81\xa1k" + inner);
      default: {
        std::string deep;
        for (size_t i = Below(40); i > 0; --i) deep += '\x91';
        return Replace(node, deep + inner);
      }
    }
  }

  std::string& body_;
  std::string& buffers_;
  std::minstd_rand& random_;
  std::vector<Node> nodes_;
};

}  // namespace

FuzzedPayload FuzzedPayload::From(const uint8_t* data, size_t size) {
  uint32_t body = 0;
  if (size < sizeof body) return {};
  std::memcpy(&body, data, sizeof body);
  const std::string_view rest(reinterpret_cast<const char*>(data) + sizeof body,
                              size - sizeof body);
  const size_t cut = std::min<size_t>(body, rest.size());
  return {std::string(rest.substr(0, cut)), std::string(rest.substr(cut))};
}

std::string FuzzedPayload::Text() const {
  const auto size = static_cast<uint32_t>(body.size());
  std::string text(sizeof size, '\0');
  std::memcpy(text.data(), &size, sizeof size);
  return text + body + buffers;
}

void Mutate(FuzzedPayload& payload, uint32_t seed,
            const std::function<void(std::string&)>& blindly) {
  std::minstd_rand random(seed);
  random.discard(3);
  // The buffers begin where the body's end is rounded up to: what they hold is moved with it.
  const size_t before = payload.body.size();
  if (random() % 12 == 0) {
    blindly(payload.body);
  } else {
    for (size_t i = 1 + random() % 3; i > 0; --i) Mutation(payload, random).Apply();
  }
  if (payload.buffers.empty()) return;
  const auto padding = [](size_t body) { return (64 - body % 64) % 64; };
  const size_t had = std::min(padding(before), payload.buffers.size());
  payload.buffers.replace(0, had, std::string(padding(payload.body.size()), '\0'));
}

}  // namespace hutch
