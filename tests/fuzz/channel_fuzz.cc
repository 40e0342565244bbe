// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the two receivers of frames with descriptors, the agent's and the warden's: every
// datagram gives a frame or a refusal, and no descriptor is left over.
//
// An input is a sequence of: u8 how, u16 length, bytes: `how` & 1 puts the right magic and version
// into them, and `how` >> 1 descriptors (at most 16) go with them.
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "images/warden/channel.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/tally.h"
#include "wire/channel.h"

namespace {

int LowestFree() {
  const int fd = ::dup(0);
  ::close(fd);
  return fd;
}

bool SendWith(int fd, const std::string& bytes, int descriptors) {
  const std::vector<int> some(static_cast<size_t>(descriptors), fd);
  const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
  return hutch::SendDatagram(fd, {&part, 1}, some) == hutch::SendStatus::kSent;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  const int before = LowestFree();
  bool accepted = false;
  {
    auto [ours, theirs] = hutch::MakeSocketPair();
    hutch::ForEachStep(
        data, size, [&, &end = theirs, &our_end = ours](uint8_t how, std::string bytes) {
          if (how % 2 != 0) hutch::WithHeader(bytes, [](hutch::FrameHeader&) {});
          const int descriptors = std::min(how >> 1, 16);
          if (bytes.empty()) bytes = " ";
          if (SendWith(end.get(), bytes, descriptors)) {
            hutch::Datagram datagram;
            const hutch::Receiving got = hutch::Receive(our_end.get(), &datagram);
            if (got == hutch::Receiving::kDatagram) {
              accepted = true;
              if (datagram.size + sizeof(hutch::FrameHeader) != bytes.size()) std::abort();
              if (datagram.count != std::min(descriptors, hutch::kMaxDescriptors)) std::abort();
              datagram.CloseDescriptors();
            } else if (got != hutch::Receiving::kMalformed || datagram.count != 0) {
              std::abort();
            }
          }
          if (SendWith(end.get(), bytes, descriptors)) {
            std::vector<char> buffer(sizeof(hutch::FrameHeader) + hutch::kMaxPayload);
            std::vector<hutch::Fd> taken;
            const auto got = hutch::ReceiveDatagram(our_end.get(), buffer, &taken, 4);
            if (got.status == hutch::ReceiveStatus::kData && got.size != bytes.size()) std::abort();
            if (taken.size() > 4) std::abort();
          }
        });
  }
  if (LowestFree() != before) std::abort();
  tally.Count(accepted);
  return 0;
}
