// SPDX-License-Identifier: Apache-2.0

#include "client/output_pipes.h"

#include <unistd.h>

#include <cerrno>
#include <vector>

namespace hutch {
namespace {

constexpr size_t kReadChunk = 64 * 1024;

}  // namespace

void OutputPipes::Read(int stream, Output& output, const OutputHook& hook) {
  thread_local std::vector<char> buffer(kReadChunk);  // see Lease::OnFrame
  for (int i = 0; i < 4 && !ended_[stream]; ++i) {
    const ssize_t n = ::read(pipes_[stream].get(), buffer.data(), buffer.size());
    if (n < 0) {
      ended_[stream] = errno != EAGAIN && errno != EINTR;
      return;
    }
    if (n == 0) {
      ended_[stream] = true;
      return;
    }
    const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
    output.Add(stream, bytes);
    if (hook) hook(stream, bytes);
    if (bytes.size() < buffer.size()) return;
  }
}

void OutputPipes::ReadRest(Output& output, const OutputHook& hook) {
  for (const int stream : {0, 1}) {
    for (size_t before = 0, now = 1; now != before;) {
      before = output.size(stream);
      Read(stream, output, hook);
      now = output.size(stream);
    }
  }
}

}  // namespace hutch
