// SPDX-License-Identifier: Apache-2.0

#include "tests/faults/fake_warden.h"

#include <poll.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <random>

#include "wire/channel.h"

namespace hutch {
namespace {

void SendFrame(int socket, const FrameHeader& header, std::string_view payload = {}) {
  const iovec parts[] = {{const_cast<FrameHeader*>(&header), sizeof header},
                         {const_cast<char*>(payload.data()), payload.size()}};
  SendDatagram(socket, parts);
}

void SendExit(int socket, uint32_t slot, uint64_t id) {
  const CellReport report{.exit_code = 0, .end = kKilled, .wall_us = 7};
  SendFrame(socket, {.kind = FrameKind::kCellExit, .a = slot, .id = id},
            {reinterpret_cast<const char*>(&report), sizeof report});
}

}  // namespace

FakeWardens::FakeWardens(std::string worker_dir)
    : worker_dir_(std::move(worker_dir)),
      containers_([this](const std::string& name, const std::string& spec) {
        auto warden = std::make_unique<Warden>();
        warden->thread = std::thread([this, &self = *warden, way = way_.load(),
                                      token = TextMember(spec, "HUTCH_TOKEN"),
                                      socket = worker_dir_ + "/" + name + "/warden.sock"] {
          Run(self, socket, token, way);
        });
        const std::lock_guard lock(mutex_);
        wardens_.push_back(std::move(warden));
        return std::string();
      }) {}

FakeWardens::~FakeWardens() { KillAll(); }

std::string FakeWardens::last_frame() {
  const std::lock_guard lock(mutex_);
  return last_frame_;
}

std::string FakeWardens::last_config() {
  const std::lock_guard lock(mutex_);
  return last_config_;
}

void FakeWardens::KillAll() {
  std::vector<std::unique_ptr<Warden>> wardens;
  {
    const std::lock_guard lock(mutex_);
    wardens.swap(wardens_);
  }
  for (const auto& warden : wardens) warden->stop = true;
  for (const auto& warden : wardens) warden->thread.join();
}

void FakeWardens::Run(const Warden& warden, const std::string& socket_path,
                      const std::string& token, WardenWay way) {
  if (way == WardenWay::kNeverConnects) return;
  const Fd connection = ConnectTo(socket_path);
  if (!connection) return;
  ++connected;
  const int socket = connection.get();
  if (way != WardenWay::kNoHello) {
    FrameHeader hello{.kind = FrameKind::kHello, .a = kFrameVersion};
    if (way == WardenWay::kNoNamespaces) {
      hello.b = ENOSPC;
      hello.c = kNestedNamespaces;
    }
    SendFrame(socket, hello, way == WardenWay::kWrongToken ? std::string(32, 'f') : token);
  }
  if (way == WardenWay::kHelloForever) {
    while (!warden.stop) {
      FrameHeader header{.kind = FrameKind::kHello, .a = kFrameVersion};
      std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
      bytes += token;
      const iovec part{bytes.data(), bytes.size()};
      if (SendDatagram(socket, {&part, 1}) == SendStatus::kClosed) return;
    }
  }
  if (way == WardenWay::kNoHello || way == WardenWay::kReadyUnasked)
    SendFrame(socket, {.kind = FrameKind::kZygoteReady}, "{}");

  struct Cell {
    uint32_t slot;
    std::vector<Fd> ends;
  };
  std::map<uint64_t, Cell> cells;
  std::vector<char> buffer(sizeof(FrameHeader) + kMaxPayload);
  for (bool ordered = false; !warden.stop; ordered = true) {
    pollfd polled{socket, POLLIN, 0};
    while (!warden.stop && ::poll(&polled, 1, 5) <= 0) {
    }
    std::vector<Fd> descriptors;
    const ReceiveResult got = ReceiveDatagram(socket, buffer, &descriptors, 4);
    if (got.status == ReceiveStatus::kNothing) continue;
    if (got.status != ReceiveStatus::kData) {
      if (!ordered) ++turned_away;
      return;
    }
    FrameHeader header;
    std::memcpy(&header, buffer.data(), sizeof header);
    switch (header.kind) {
      case FrameKind::kConfigure: {
        const std::lock_guard lock(mutex_);
        last_config_.assign(buffer.data() + sizeof header, got.size - sizeof header);
      }
        ++configured;
        if (way == WardenWay::kZygoteDies)
          SendFrame(socket, {.kind = FrameKind::kZygoteDied}, "\xff\x1b[31m\"\\");
        SendFrame(socket, {.kind = FrameKind::kZygoteReady}, "{}");
        if (way == WardenWay::kNonsense) return Nonsense(warden, socket);
        break;
      case FrameKind::kMakeSlot:
        SendFrame(socket, {.kind = FrameKind::kSlotReady, .a = header.a});
        break;
      case FrameKind::kMakeCell:
        ++cells_made;
        if (way == WardenWay::kFailsCells) {
          SendFrame(socket, {.kind = FrameKind::kFailed, .a = header.a, .id = header.id, .b = 12},
                    "no memory");
        } else if (way == WardenWay::kEndsCellsUnready) {
          SendExit(socket, header.a, header.id);
        } else {
          cells[header.id] = {header.a, std::move(descriptors)};
          SendFrame(socket, {.kind = FrameKind::kCellReady, .a = header.a, .id = header.id});
        }
        break;
      case FrameKind::kEndSlot:
        ++slots_ended;
        SendFrame(socket, {.kind = FrameKind::kSlotGone, .a = header.a});
        break;
      case FrameKind::kArm:
        ++armed;
        break;
      case FrameKind::kKeep:
        SendFrame(socket, {.kind = FrameKind::kKept, .id = header.id});
        break;
      case FrameKind::kKill: {
        const auto found = cells.find(header.id);
        if (found == cells.end()) break;
        const uint32_t slot = found->second.slot;
        const ReceiveResult frame =
            ReceiveDatagram(found->second.ends[0].get(), buffer, nullptr, 0);
        if (frame.status == ReceiveStatus::kData) {
          const std::lock_guard lock(mutex_);
          last_frame_.assign(buffer.data(), frame.size);
        }
        cells.erase(found);
        ++cells_ended;
        SendExit(socket, slot, header.id);
        break;
      }
      case FrameKind::kPing:
        ++pings;
        if (way != WardenWay::kDeaf) SendFrame(socket, {.kind = FrameKind::kPong});
        break;
      case FrameKind::kRetire:
        ++retired;
        return;
      default:
        return;
    }
  }
}

// Orders are answered honestly at times, so that the nonsense meets every state of a worker.
void FakeWardens::Nonsense(const Warden& warden, int socket) {
  std::mt19937_64 random(seed++);
  const FrameKind kinds[] = {FrameKind::kHello,      FrameKind::kZygoteReady, FrameKind::kSlotReady,
                             FrameKind::kCellReady,  FrameKind::kCellExit,    FrameKind::kFailed,
                             FrameKind::kZygoteDied, FrameKind::kSlotGone,    FrameKind::kPong};
  std::vector<char> buffer(sizeof(FrameHeader) + kMaxPayload);
  std::vector<FrameHeader> orders;
  std::vector<Fd> descriptors;
  while (!warden.stop) {
    pollfd polled{socket, POLLIN, 0};
    ::poll(&polled, 1, 1);
    const ReceiveResult got = ReceiveDatagram(socket, buffer, &descriptors, 4);
    if (got.status == ReceiveStatus::kClosed) return;
    if (got.status == ReceiveStatus::kData) {
      orders.emplace_back();
      std::memcpy(&orders.back(), buffer.data(), sizeof(FrameHeader));
    }
    if (orders.empty()) continue;
    const auto chosen = orders.begin() + static_cast<std::ptrdiff_t>(random() % orders.size());
    const FrameHeader order = *chosen;
    if (random() % 10 != 0) orders.erase(chosen);  // else it is answered twice
    FrameHeader header{
        .kind = kinds[random() % std::size(kinds)], .a = order.a, .id = order.id, .b = random()};
    std::string payload;
    if (random() % 8 != 0) {  // what it should be
      header.kind = order.kind == FrameKind::kMakeSlot ? FrameKind::kSlotReady
                    : order.kind == FrameKind::kMakeCell
                        ? (random() % 2 != 0 ? FrameKind::kCellReady : FrameKind::kCellExit)
                        : FrameKind::kFailed;
      if (header.kind == FrameKind::kCellExit) payload.resize(sizeof(CellReport));
    }
    if (random() % 50 == 0) payload.append(random() % 20'000, '\xff');
    std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
    bytes += payload;
    if (random() % 40 == 0) bytes[random() % bytes.size()] = static_cast<char>(random());
    if (random() % 40 == 0) bytes.resize(random() % bytes.size() + 1);
    const iovec part{bytes.data(), bytes.size()};
    if (SendDatagram(socket, {&part, 1}) == SendStatus::kClosed) return;
  }
}

}  // namespace hutch
