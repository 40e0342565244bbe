// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the reader of HTTP requests: whatever a cell sends, it is requests with bodies or
// a Refusal, the same in whatever pieces it comes; and a head that was taken means the same when it
// is written and read again, which is what the server does.
//
// An input is u8 the size of the pieces (0: one), bytes.
#include <cstdlib>
#include <string>
#include <vector>

#include "agent/egress/http.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/tally.h"

namespace {

using hutch::BodyReader;
using hutch::HeadReader;
using hutch::RequestHead;

void RequireTheSameAgain(const RequestHead& head) {
  const std::string text = head.ToText();
  HeadReader reader;
  std::string_view in = text;
  if (!reader.Feed(in) || !in.empty()) std::abort();
  const RequestHead again = reader.Take();
  if (again.ToText() != text || again.body != head.body || again.length != head.length ||
      again.upgrade != head.upgrade)
    std::abort();
}

struct Read {
  std::string heads;
  std::string bodies;
  std::string refusal;
  size_t requests = 0;
};

// Of a body that is refused, how much came before depends on the pieces.
bool IsTheSame(const Read& whole, const Read& pieces) {
  return pieces.heads == whole.heads && pieces.refusal == whole.refusal &&
         pieces.bodies.starts_with(whole.bodies) &&
         (!whole.refusal.empty() || pieces.bodies == whole.bodies);
}

Read ReadAll(std::string_view bytes, size_t piece) {
  Read read;
  HeadReader heads;
  std::optional<BodyReader> body;
  try {
    for (size_t at = 0; at < bytes.size(); at += piece) {
      std::string_view in = bytes.substr(at, piece);
      while (!in.empty()) {
        if (body && !body->done()) {
          const size_t passed = body->Feed(in);
          if (passed == 0 || passed > in.size()) std::abort();
          read.bodies += in.substr(0, passed);
          in.remove_prefix(passed);
        } else if (heads.Feed(in)) {
          const RequestHead head = heads.Take();
          RequireTheSameAgain(head);
          read.heads += head.ToText();
          body.emplace(head);
          ++read.requests;
        } else if (!in.empty()) {
          std::abort();
        }
      }
    }
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
    const hutch::Refusal refusal = hutch::RefusalOf(error);
    if (refusal.status < 400 || refusal.status > 599) std::abort();
    read.refusal = refusal.reason;
  }
  return read;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const Read whole = ReadAll(bytes, SIZE_MAX);
  if (data[0] != 0 && !IsTheSame(whole, ReadAll(bytes, data[0]))) std::abort();
  tally.Count(whole.requests > 0);
  return 0;
}
