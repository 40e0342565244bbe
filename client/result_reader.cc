// SPDX-License-Identifier: Apache-2.0

#include "client/result_reader.h"

#include <cstring>
#include <memory>

#include "wire/error.h"

namespace hutch {

void ResultReader::AddPart(const FrameHeader& header, std::string_view payload, uint64_t most) {
  if (parts_.empty()) {
    parts_size_ = header.c;
    if (parts_size_ <= most) parts_.reserve(parts_size_);
  }
  if (payload.empty() || header.c != parts_size_ || parts_size_ > most ||
      payload.size() > parts_size_ - parts_.size()) {
    throw Error(Code::kProtocol, "the parts of the cell's reply contradict each other", "", true);
  }
  parts_.append(payload);
}

void ResultReader::Take(const FrameHeader& header, std::string_view payload, CallOutcome& outcome) {
  if (payload.size() < sizeof(CallUsage))
    throw Error(Code::kProtocol, "the cell's reply is too short", "", true);
  std::memcpy(&outcome.usage, payload.data(), sizeof(CallUsage));
  if (outcome.usage.limit != kNoLimit && !IsReportedByCell(outcome.usage.limit))
    throw Error(Code::kProtocol, "the cell reports a limit that is measured outside", "", true);
  payload.remove_prefix(sizeof(CallUsage));
  outcome.result_size = header.c;
  if (header.b > header.c || header.a > kFlagInParts || (header.a != 0 && !payload.empty()))
    throw Error(Code::kProtocol, "the cell's reply contradicts itself", "", true);
  if (header.a == kFlagInParts) {
    if (header.c != parts_.size())
      throw Error(Code::kProtocol, "parts of the cell's reply are missing", "", true);
    outcome.payload = std::make_unique<Payload>(TakeParts(), header.b);
    return;
  }
  if (header.a == kFlagInMemfd) {
    if (!given_.has_result() || header.c > given_.result_size()) {
      throw Error(Code::kProtocol, "the cell's reply is not where it says", "", true);
    }
    outcome.payload = std::make_unique<Payload>(given_.TakeResult(header.c), header.b);
    return;
  }
  if (header.c != payload.size())
    throw Error(Code::kProtocol, "the cell's reply has another size", "", true);
  outcome.payload = std::make_unique<Payload>(std::string(payload), header.b);
}

}  // namespace hutch
