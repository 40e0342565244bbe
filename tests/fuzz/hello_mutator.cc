// SPDX-License-Identifier: Apache-2.0

#include "tests/fuzz/hello_mutator.h"

#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/fuzz/choices.h"

namespace hutch {
namespace {

constexpr unsigned kServerName = 0;
constexpr std::string_view kNameAlphabet = "abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-._*~!";

struct Extension {
  unsigned kind = 0;
  std::string data;
};

struct Hello {
  std::string version = "\x03\x03";
  std::string random = std::string(32, '\0');
  std::string session;
  std::string ciphers = "\x13\x01\xc0\x2f";
  std::string compressions = std::string(1, '\0');
  bool extended = true;
  std::vector<Extension> extensions;
};

std::string Number(size_t value, int size) {
  std::string text;
  for (int i = size - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}
std::string Vector(const std::string& data, int size) { return Number(data.size(), size) + data; }

std::string NameData(const std::string& name) { return Vector(Number(0, 1) + Vector(name, 2), 2); }

Hello Fresh() {
  Hello hello;
  hello.extensions = {{kServerName, NameData("api.example.org")},
                      {43, {"\x04\x03\x04\x03\x03", 5}},
                      {10, {"\x00\x02\x00\x1d", 4}},
                      {13, {"\x00\x04\x08\x04\x04\x03", 6}}};
  return hello;
}

class Reader {
 public:
  explicit Reader(std::string_view text) : left_(text) {}
  std::string_view Bytes(size_t size) {
    ok_ = ok_ && size <= left_.size();
    if (!ok_) return {};
    const std::string_view taken = left_.substr(0, size);
    left_.remove_prefix(size);
    return taken;
  }
  size_t Number(int size) {
    size_t value = 0;
    for (const char c : Bytes(static_cast<size_t>(size)))
      value = value << 8 | static_cast<uint8_t>(c);
    return value;
  }
  std::string_view Vector(int size) { return Bytes(Number(size)); }
  bool ok() const { return ok_; }
  bool empty() const { return left_.empty(); }

 private:
  std::string_view left_;
  bool ok_ = true;
};

std::optional<Hello> Parse(std::string_view body) {
  Reader in(body);
  Hello hello;
  hello.version = in.Bytes(2);
  hello.random = in.Bytes(32);
  hello.session = in.Vector(1);
  hello.ciphers = in.Vector(2);
  hello.compressions = in.Vector(1);
  hello.extended = !in.empty();
  Reader extensions(hello.extended ? body.substr(body.size() - in.Vector(2).size()) : "");
  while (in.ok() && extensions.ok() && !extensions.empty()) {
    Extension extension;
    extension.kind = static_cast<unsigned>(extensions.Number(2));
    extension.data = extensions.Vector(2);
    hello.extensions.push_back(std::move(extension));
  }
  if (!in.ok() || !in.empty() || !extensions.ok()) return std::nullopt;
  return hello;
}

std::string Text(const Hello& hello) {
  std::string extensions;
  for (const Extension& e : hello.extensions) extensions += Number(e.kind, 2) + Vector(e.data, 2);
  return hello.version + hello.random + Vector(hello.session, 1) + Vector(hello.ciphers, 2) +
         Vector(hello.compressions, 1) + (hello.extended ? Vector(extensions, 2) : "");
}

void MutateName(std::string& data, Choices& choose) {
  Reader outer(data);
  Reader names(outer.Vector(2));
  names.Number(1);
  std::string name(names.Vector(2));
  if (!outer.ok() || !names.ok() || choose.OneIn(8)) name = "api.example.org";
  switch (choose.Below(16)) {
    case 0:
      name = std::string(1 + choose.Below(255), 'a');
      break;
    case 1:
      name += choose.Byte();
      break;
    case 2:  // a second name behind it
      data =
          Vector(Number(0, 1) + Vector(name, 2) + Number(choose.Below(2), 1) + Vector(name, 2), 2);
      return;
    case 3:
      data = Vector(Number(choose.Below(3), 1) + Vector(name, 2), 2);
      return;
    default:
      for (size_t i = 1 + choose.Below(3); i > 0; --i) choose.Tweak(name, kNameAlphabet);
  }
  data = NameData(name);
}

void MutateExtension(Hello& hello, Choices& choose) {
  std::vector<Extension>& all = hello.extensions;
  if (all.empty()) {
    hello.extended = !choose.OneIn(4);
    all = Fresh().extensions;
    return;
  }
  const size_t at = choose.Below(all.size());
  switch (choose.Below(6)) {
    case 0:
      all.erase(all.begin() + static_cast<ptrdiff_t>(at));
      return;
    case 1:
      all.push_back(all[at]);
      if (!choose.OneIn(8)) all.back().kind = static_cast<unsigned>(1 + choose.Below(60));
      return;
    case 2:
      std::swap(all[at], all[choose.Below(all.size())]);
      return;
    case 3:
      all[at].kind = static_cast<unsigned>(choose.Below(choose.OneIn(2) ? 60 : 65536));
      return;
    default:
      if (all[at].kind == kServerName && !choose.OneIn(8)) return MutateName(all[at].data, choose);
      MutateBlindly(all[at].data);
  }
}

}  // namespace

void MutateHello(std::string& body, uint32_t seed) {
  Choices choose(seed);
  std::optional<Hello> parsed = Parse(body);
  if (!parsed && choose.OneIn(2)) return MutateBlindly(body);
  Hello hello = parsed ? std::move(*parsed) : Fresh();
  switch (choose.Below(10)) {
    case 0:
      hello.session = std::string(choose.Below(33), choose.Byte());
      break;
    case 1:
      MutateBlindly(hello.ciphers);
      break;
    case 2:
      hello.version[1] = static_cast<char>(choose.Below(5));
      break;
    case 3:
      hello.random[choose.Below(32)] = choose.Byte();
      break;
    case 4:
      hello.compressions = std::string(1 + choose.Below(3), '\0');
      break;
    case 5: {
      for (Extension& e : hello.extensions) {
        if (e.kind == kServerName) MutateName(e.data, choose);
      }
      break;
    }
    default:
      MutateExtension(hello, choose);
  }
  body = Text(hello);
  if (choose.OneIn(12)) MutateBlindly(body);
}

}  // namespace hutch
