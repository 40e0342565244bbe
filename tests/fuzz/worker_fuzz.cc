// SPDX-License-Identifier: Apache-2.0

// libFuzzer over what a hostile worker may say to the agent: each input is a run of frames from a
// warden that has shown the right token, with the pool's own wishes between them. The worker must
// believe none that does not fit, keep its books, and at worst be given up.
//
// An input is a sequence of: u8 how, u16 length, bytes. `how` % 4: 0 sends the bytes as they are; 1
// and 3 with the right magic and version, and the id of the cell whose number stands there; 2 is a
// wish of the pool's.
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "pool/worker.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/steps.h"
#include "tests/fuzz/tally.h"
#include "wire/channel.h"

namespace hutch {
namespace {

// A pool that takes what is reported to it, and checks that nothing is reported twice.
class Books : public Worker::Listener {
 public:
  void OnWorkerReady(Worker& worker) override {
    if (ready || dead) std::abort();
    ready = true;
    worker.cells().AddSlot();
  }
  void OnCellReady(Worker&, uint64_t cell) override {
    if (dead || !cells.emplace(cell, true).second) std::abort();
  }
  void OnCellGone(Worker&, uint64_t cell, const CellReport&) override {
    if (dead || gone.contains(cell)) std::abort();
    gone.emplace(cell, true);
    cells.erase(cell);
  }
  void OnSlotsChanged(Worker&) override {}
  void OnSessionEvent(Worker&, uint64_t, SessionEvent) override {}
  void OnWorkerDead(Worker&, const std::string&) override {
    if (dead || !cells.empty()) std::abort();  // every cell was said to be gone before
    dead = true;
  }

  bool ready = false;
  bool dead = false;
  std::map<uint64_t, bool> cells, gone;
};

struct Place {
  Place() {
    std::string made = std::filesystem::temp_directory_path() / "hutch-fuzz-XXXXXX";
    if (::mkdtemp(made.data()) == nullptr) std::abort();
    dir = made;
    std::atexit([] {
      std::error_code ignored;
      std::filesystem::remove_all(dir, ignored);
    });
  }
  static inline std::string dir;
};

class Run {
 public:
  Run()
      : podman_(Place::dir + "/no.sock"),
        background_(0),
        worker_(std::make_unique<Worker>(loop_, podman_, background_, books_, paths_, Launch(),
                                         Modules{})),
        warden_(ConnectTo(Place::dir + "/worker/" + kSocket)) {
    if (!warden_) std::abort();
    worker_->Configure(books_, PoolSpec{}, "");
    std::string hello(sizeof(FrameHeader), '\0');
    WithHeader(hello, [](FrameHeader& header) { header.kind = FrameKind::kHello; });
    Say(hello + "token");
    Turn();
  }

  void Step(uint8_t how, std::string bytes) {
    if (how % 4 == 2) {
      Wish(bytes.empty() ? 0 : static_cast<uint8_t>(bytes[0]));
    } else {
      if (how % 4 != 0) {
        WithHeader(bytes, [this](FrameHeader& header) {
          if (header.id < told_.size()) header.id = told_[header.id];
        });
      }
      Say(bytes);
    }
    Turn();
  }
  bool accepted() const { return books_.ready && !books_.dead; }
  void End() {
    warden_.reset();
    Turn();
    if (!books_.dead) std::abort();
    worker_.reset();
    Turn();
  }

 private:
  static constexpr char kSocket[] = "warden.sock";

  WorkerLaunch Launch() {
    WorkerLaunch launch;
    launch.name = "hutch-worker-fuzz";
    launch.token = "token";
    launch.uid = ::geteuid();
    launch.socket_dir = Place::dir + "/worker";
    return launch;
  }
  void Say(const std::string& bytes) {
    if (bytes.empty() || !warden_) return;
    const iovec part{const_cast<char*>(bytes.data()), bytes.size()};
    if (SendDatagram(warden_.get(), {&part, 1}) == SendStatus::kClosed) warden_.reset();
  }
  void Wish(uint8_t what) {
    if (!books_.ready || books_.dead) return;
    switch (what % 8) {
      case 0:
        if (worker_->cells().slots().alive() < 8) worker_->cells().AddSlot();
        return;
      case 1:
        return worker_->cells().EndFreeSlots(1);
      case 2:
        if (!books_.cells.empty()) worker_->cells().Kill(books_.cells.begin()->first);
        return;
      case 3:
        if (CellOrders* orders = AnyOrders()) orders->Arm(100, 0);
        return;
      case 4:
        return worker_->cells().MakeCells(4);
      case 5:
        if (!books_.cells.empty()) worker_->cells().Keep(books_.cells.begin()->first);
        return;
      case 6:
        if (CellOrders* orders = AnyOrders()) orders->RestartUser(0);
        return;
      default:
        if (!books_.cells.empty()) worker_->cells().Take(books_.cells.begin()->first);
        return;
    }
  }
  CellOrders* AnyOrders() {
    if (books_.cells.empty()) return nullptr;
    return worker_->cells().OrdersFor(books_.cells.begin()->first);
  }
  // Lets the loop do what there is, and hears what the warden is sent.
  void Turn() {
    for (int i = 0; i < 3; ++i) {
      loop_.Stop();
      loop_.Run();
    }
    alignas(FrameHeader) static char buffer[sizeof(FrameHeader) + kMaxPayload];
    while (warden_) {
      const ReceiveResult got = ReceiveDatagram(warden_.get(), buffer, nullptr, 0);
      if (got.status == ReceiveStatus::kNothing) return;
      if (got.status == ReceiveStatus::kClosed) return warden_.reset();
      FrameHeader header;
      if (got.size < sizeof header) std::abort();
      std::memcpy(&header, buffer, sizeof header);
      if (header.kind == FrameKind::kMakeCell) told_.push_back(header.id);
    }
  }

  Paths paths_;
  Books books_;
  Loop loop_;
  Podman podman_;
  Background background_;  // of no threads: no container is started
  std::unique_ptr<Worker> worker_;
  Fd warden_;
  std::vector<uint64_t> told_;  // the cells that the warden is asked for
};

}  // namespace
}  // namespace hutch

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  static const hutch::Place place;
  std::freopen("/dev/null", "w", stdout);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  hutch::Run run;
  hutch::ForEachStep(data, size,
                     [&](uint8_t how, std::string bytes) { run.Step(how, std::move(bytes)); });
  tally.Count(run.accepted());
  run.End();
  return 0;
}
