// SPDX-License-Identifier: Apache-2.0

#include "pool/spares.h"

#include <algorithm>
#include <filesystem>

#include "environments/environment.h"
#include "pool/pressure.h"
#include "pool/rotation.h"
#include "wire/log.h"

namespace hutch {

namespace fs = std::filesystem;

namespace {

// From the taking of a spare to the start of the next one, which would disturb the taker's first
// call.
constexpr auto kRefill = std::chrono::milliseconds(300);
// A spare takes some 20 MB: on a host with less available memory than this there is none.
constexpr uint64_t kWantedMemoryKb = 512 * 1024;
constexpr auto kLookAgain = std::chrono::seconds(30);

}  // namespace

Spares::Spares(Context context) : context_(std::move(context)) {}

Spares::~Spares() { Retire(); }

void Spares::Keep(const std::string& base_id, const std::string& runtime_id) {
  if (base_id == base_id_ && runtime_id == runtime_id_) return;
  Retire();
  base_id_ = base_id;
  runtime_id_ = runtime_id;
  Make();
}

std::unique_ptr<Worker> Spares::Take(const std::string& base_id, const std::string& runtime_id) {
  if (base_id != base_id_ || runtime_id != runtime_id_ || spare_ == nullptr) return nullptr;
  failures_ = 0;
  MakeLater(kRefill);
  // Its warden must be able to enter the directory, which launchers of earlier versions close.
  std::error_code ignored;
  fs::permissions(context_.paths.environment_dir(), kFindable, ignored);
  return std::move(spare_);
}

void Spares::Look(unsigned worth) {
  if (spare_ != nullptr) spare_->Look(worth);
}

void Spares::Retire() {
  if (timer_ != 0) context_.loop.Cancel(std::exchange(timer_, 0));
  spare_.reset();
  base_id_.clear();
  runtime_id_.clear();
}

void Spares::OnWorkerDead(Worker& worker, const std::string& why) {
  LogWarn("a spare worker died", {{"worker", worker.name()}, {"why", why}});
  ++failures_;
  const bool host_forbids = worker.failure() == Code::kPlatform;
  // On the next turn: this is a call of the worker's.
  context_.loop.Post([dead = std::shared_ptr<Worker>(std::move(spare_))] {});
  if (host_forbids) return;  // A pool that starts a worker of its own reports it.
  MakeLater(std::max<Clock::duration>(kRefill, StartBackoff(failures_)));
}

void Spares::MakeLater(Clock::duration delay) {
  if (timer_ != 0) return;
  timer_ = context_.loop.After(delay, [this] {
    timer_ = 0;
    Make();
  });
}

void Spares::Make() {
  if (base_id_.empty() || spare_ != nullptr) return;
  if (AvailableMemoryKb() < kWantedMemoryKb) return MakeLater(kLookAgain);
  try {
    WorkerLaunch launch = NewLaunch(context_.paths, context_.generation, context_.worker_uid(),
                                    base_id_, runtime_id_, "spare");
    launch.any_environment = true;
    spare_ = std::make_unique<Worker>(context_.loop, context_.podman, context_.background, *this,
                                      context_.paths, std::move(launch), Modules{});
  } catch (const std::exception& error) {  // The disk is full; a pool will report that to a caller.
    LogWarn("a spare worker could not be made", {{"why", error.what()}});
    ++failures_;
    MakeLater(std::max<Clock::duration>(kRefill, StartBackoff(failures_)));
  }
}

}  // namespace hutch
