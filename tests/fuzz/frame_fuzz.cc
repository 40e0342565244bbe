// libFuzzer over what a hostile cell may send: each input is a run of datagrams, put on a real
// socket before its end closes; the lease must end the call with an outcome or an error of the
// protocol.
//
// An input is a sequence of: u8 shape, u16 length, bytes. An even shape sends the bytes as they
// are; an odd one puts the right magic, version and call id into them, so that the fuzzer gets past
// the first check at once.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>

#include "client/lease.h"
#include "wire/channel.h"
#include "wire/error.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr uint64_t kCallId = 77;
  auto [ours, theirs] = hutch::MakeSocketPair();
  auto [out_read, out_write] = hutch::MakePipe();
  auto [err_read, err_write] = hutch::MakePipe();
  hutch::Lease lease(1, "worker", std::move(ours), std::move(out_read), std::move(err_read));
  const hutch::Blob function{std::string("f")};
  hutch::CallRequest request;
  request.function = &function;
  request.limits.result_bytes = 1 << 20;
  if (!lease.Send(request, kCallId)) std::abort();
  while (size >= 3) {
    const uint8_t shape = data[0];
    const size_t length = std::min<size_t>(data[1] | data[2] << 8, size - 3);
    std::string bytes(reinterpret_cast<const char*>(data + 3), length);
    data += 3 + length;
    size -= 3 + length;
    if (shape % 2 != 0 && bytes.size() >= sizeof(hutch::FrameHeader)) {
      hutch::FrameHeader header;
      std::memcpy(&header, bytes.data(), sizeof header);
      header.magic = hutch::kFrameMagic;
      header.version = hutch::kFrameVersion;
      header.id = kCallId;
      std::memcpy(bytes.data(), &header, sizeof header);
    }
    if (bytes.empty()) continue;
    const iovec part{bytes.data(), bytes.size()};
    hutch::SendDatagram(theirs.get(), {&part, 1});
  }
  theirs.reset();
  out_write.reset();
  err_write.reset();
  try {
    const hutch::CallOutcome outcome = lease.Await(request, {}, [] {});
    if (outcome.payload && outcome.payload->body_size() > outcome.payload->size()) std::abort();
  } catch (const hutch::Error& error) {
    if (error.code() != hutch::Code::kProtocol) std::abort();
  }
  return 0;
}
