// SPDX-License-Identifier: Apache-2.0

// libFuzzer over what the egress process tells the agent, which may be hostile, for its parsers
// face strangers: a message or an error of the protocol.
//
// An input is the JSON text. Mutants are made of its values, each mostly by one of its own type,
// so that most are still messages. The one file of the fuzzers that includes nlohmann's JSON.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include "agent/egress/control.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/choices.h"
#include "tests/fuzz/tally.h"
#include "wire/channel.h"
#include "wire/error.h"
#include "wire/memfd.h"

namespace {

using nlohmann::json;

// Every value in `value`, itself included.
void Collect(json& value, std::vector<json*>& all) {
  all.push_back(&value);
  if (value.is_structured()) {
    for (json& inner : value) Collect(inner, all);
  }
}

void MutateValue(json& value, hutch::Choices& choose) {
  constexpr std::string_view kText = "abcXYZ019.-_*: /\"\\\n\x01\xc3\xbc";
  constexpr uint64_t kNumbers[] = {0, 1, 255, 256, 65535, 65536, 1ull << 32, 1ull << 63, ~0ull};
  static const json kOthers[] = {nullptr,       true,          -1, 1.5, 1e300, "text",
                                 json::array(), json::object()};
  if (choose.OneIn(40)) {
    value = choose.Of(kOthers);
  } else if (value.is_string()) {
    auto text = value.get<std::string>();
    for (size_t i = 1 + choose.Below(4); i > 0; --i) choose.Tweak(text, kText);
    value = text;
  } else if (value.is_number()) {
    value = choose.OneIn(2) ? choose.Of(kNumbers) : choose.Below(256);
  } else if (value.is_boolean()) {
    value = !value.get<bool>();
  } else if (value.is_array()) {
    const size_t size = value.size();
    if (size == 0) return value.push_back(choose.Of(kOthers));
    const size_t at = choose.Below(size);
    if (choose.OneIn(2)) {
      value.push_back(json(value[at]));
    } else {
      value.erase(at);
    }
  } else if (value.is_object() && choose.OneIn(16) && !value.empty()) {
    value.erase(std::next(value.begin(), static_cast<ptrdiff_t>(choose.Below(value.size()))));
  } else if (value.is_object()) {
    value["more"] = choose.Of(kOthers);
  }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  hutch::Choices choose(seed);
  std::string text(reinterpret_cast<const char*>(data), size);
  json message = json::parse(text, nullptr, false);
  if (message.is_discarded() && choose.OneIn(2)) {
    message = {{"is", "closed"}, {"cell", 1}, {"records", json::array()}};
  }
  if (message.is_discarded() || choose.OneIn(24)) {
    hutch::MutateBlindly(text);
    return hutch::PutMutant(text, data, size, max_size);
  }
  std::vector<json*> values;
  Collect(message, values);
  // What it is stays mostly what it is: of another kind it would want for everything.
  json& value = *choose.Of(values);
  if (!message.is_object() || &value != &message["is"] || choose.OneIn(16))
    MutateValue(value, choose);
  return hutch::PutMutant(message.dump(-1, ' ', false, json::error_handler_t::replace), data, size,
                          max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  auto [agents, theirs] = hutch::MakeSocketPair();
  const hutch::Fd memfd = hutch::MakeSealedMemfd("fuzz", data, size);
  const int fd = memfd.get();
  char mark = 'J';
  const iovec part{&mark, 1};
  if (hutch::SendDatagram(theirs.get(), {&part, 1}, {&fd, 1}) != hutch::SendStatus::kSent)
    std::abort();
  bool accepted = false;
  try {
    const auto received = hutch::ReceiveEgress(agents.get());
    if (!received) std::abort();
    accepted = true;
    // What was read can be said again, and is the same then.
    if (!hutch::SendEgress(theirs.get(), received->message)) std::abort();
    const auto again = hutch::ReceiveEgress(agents.get());
    if (!again || again->message.index() != received->message.index()) std::abort();
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
  }
  tally.Count(accepted);
  return 0;
}
