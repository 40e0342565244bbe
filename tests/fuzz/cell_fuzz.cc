// SPDX-License-Identifier: Apache-2.0

// libFuzzer over one cell's channel in the egress process, whose forwarder may be hostile: frames,
// and bytes on the streams that it is given. Nothing is looked up or dialled here: what is asked
// for is decided, and the decision is in the records; no descriptor is left over.
//
// An input is a sequence of: u8 how, u16 length, bytes. `how` % 4: 0 sends the bytes as a frame, 1
// with magic, version, kind and the next number put right, 2 writes them on the newest stream, 3
// ends that stream.
#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "agent/egress/cell.h"
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

void Turn(hutch::Loop& loop) {
  for (int i = 0; i < 2; ++i) {
    loop.Stop();
    loop.Run();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  static hutch::Loop loop;
  static hutch::Resolver resolver(loop,
                                  [](const std::string&) -> hutch::Resolved { std::abort(); });
  static hutch::EgressShared shared{loop, resolver, nullptr, "there are no certificates", {}};
  shared.limits.lookups_asked = 0;
  shared.limits.connections = 8;
  shared.limits.all_connections = 32;
  shared.limits.bytes = 1 << 16;
  static const auto policy = std::make_shared<const hutch::EgressPolicy>(
      std::vector<std::string>{"a.org", "a.org:80", "*.b.org"},
      std::vector<hutch::SecretRule>{{"s.org", "X-Key", "value", {}, {}}});
  const int before = LowestFree();
  bool accepted = false;
  {
    auto [ours, theirs] = hutch::MakeSocketPair();
    hutch::EgressCell cell(shared, policy, std::move(theirs), [] {});
    hutch::Fd stream;
    uint64_t last = 0;
    hutch::ForEachStep(data, size, [&, &end = ours](uint8_t how, std::string bytes) {
      if (how % 4 == 1)
        hutch::WithHeader(bytes, [&](hutch::FrameHeader& header) {
          header.kind = hutch::FrameKind::kOpenStream;
          header.id = ++last;
          header.b = header.c = 0;
        });
      if (how % 4 <= 1) {
        const iovec part{bytes.data(), bytes.size()};
        hutch::SendDatagram(end.get(), {&part, 1});
      } else if (stream && how % 4 == 2) {
        // A write that finds no room, or nobody, is lost.
        if (::send(stream.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) > 0)
          accepted = true;
      } else if (stream) {
        ::shutdown(stream.get(), SHUT_WR);
      }
      Turn(loop);
      char buffer[sizeof(hutch::FrameHeader) + 1];
      std::vector<hutch::Fd> taken;
      while (true) {
        const auto got = hutch::ReceiveDatagram(end.get(), buffer, &taken, 2);
        if (got.status != hutch::ReceiveStatus::kData) break;
        if (got.size != sizeof(hutch::FrameHeader) || taken.size() > 1) std::abort();
        if (!taken.empty()) stream = std::move(taken[0]);
        taken.clear();
      }
      if (cell.streams() > shared.limits.connections) std::abort();
    });
    cell.Tick(hutch::Clock::now() + std::chrono::hours(1));
    Turn(loop);
    for (const hutch::NetworkRecord& record : cell.Close()) {
      if (record.bytes_received != 0) std::abort();  // there was nobody to receive from
    }
  }
  Turn(loop);
  if (LowestFree() != before) std::abort();
  tally.Count(accepted);
  return 0;
}
