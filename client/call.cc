// SPDX-License-Identifier: Apache-2.0

#include "client/call.h"

#include <sched.h>

namespace hutch {

uint64_t ThisCpu() { return static_cast<uint64_t>(::sched_getcpu()) + 1; }

Blob::Blob(std::string bytes) : bytes_(std::move(bytes)), size_(bytes_.size()) {
  if (bytes_.size() > kInlineSection) {
    memfd_ = MakeSealedMemfd("hutch-function", bytes_.data(), bytes_.size());
    HoldSharedLocks(memfd_.get());
  }
}

Sha256Digest IdentityOf(std::string_view meta, const Sha256Digest& code, uint64_t policy,
                        bool shared) {
  // Each part but the last has a fixed size, so that different parts give different bytes.
  std::string parts = "hutch: what is loaded for a call";
  parts.append(reinterpret_cast<const char*>(code.data()), code.size());
  parts.append(reinterpret_cast<const char*>(&policy), sizeof policy);
  parts.push_back(shared ? 1 : 0);
  return Sha256(parts.append(meta));
}

std::string LoadFrame(const CallRequest& request, bool quick) {
  const std::string& function = request.function->bytes();
  if (request.identity == Sha256Digest{} || request.meta.size() > kInlineSection ||
      function.size() > kInlineSection)
    return {};
  FrameHeader header{.kind = FrameKind::kLoad, .a = 4};
  if (quick) header.c = ThisCpu();
  const uint32_t lengths[4] = {static_cast<uint32_t>(request.meta.size()),
                               static_cast<uint32_t>(function.size()), 0, 0};
  std::string frame;
  frame.reserve(sizeof header + kIdentitySize + sizeof lengths + request.meta.size() +
                function.size());
  frame.append(reinterpret_cast<const char*>(&header), sizeof header);
  frame.append(reinterpret_cast<const char*>(request.identity.data()), kIdentitySize);
  frame.append(reinterpret_cast<const char*>(lengths), sizeof lengths);
  return frame.append(request.meta).append(function);
}

}  // namespace hutch
