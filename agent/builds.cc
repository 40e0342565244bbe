// SPDX-License-Identifier: Apache-2.0

#include "agent/builds.h"

#include <algorithm>
#include <ctime>
#include <utility>
#include <vector>

#include "agent/exposition.h"
#include "agent/validate.h"
#include "wire/log.h"

namespace hutch {
namespace {

// An environment that was used this recently may be about to get a pool.
constexpr int64_t kJustUsedSec = 120;

}  // namespace

void Builds::Get(EnvironmentSpec spec, Clock::time_point deadline,
                 std::shared_ptr<const std::atomic<bool>> unwanted,
                 std::function<void(const BuildProgress&)> progress,
                 std::function<void(const Error*, const Environment&)> done) {
  threads_.Post([this, spec = std::move(spec), deadline, unwanted = std::move(unwanted),
                 progress = std::move(progress), done = std::move(done)] {
    const auto fail = [&](const Error& error, bool counted) {
      loop_.Post([this, error, counted, done] {
        if (counted) ++counts_.failed;
        done(&error, {});
      });
    };
    try {
      Environment environment = store_.Get(
          spec, deadline,
          [&](const BuildProgress& step) { loop_.Post([progress, step] { progress(step); }); },
          [&] { return closing_ || *unwanted; });
      loop_.Post([this, environment = std::move(environment), done] {
        if (environment.built_now) {
          ++counts_.built;
          counts_.seconds += environment.build_sec;
        }
        done(nullptr, environment);
      });
    } catch (const Error& error) {
      fail(error, error.code() != Code::kCancelled);
    } catch (const std::exception& error) {
      fail(Error(Code::kInternal, error.what()), false);
    }
  });
}

void Builds::Trim(uint64_t most_bytes, std::set<std::string> used) {
  threads_.Post([this, most_bytes, used = std::move(used)] {
    std::vector<EnvironmentInfo> all = store_.List();
    std::ranges::sort(all, {}, &EnvironmentInfo::last_used_sec);
    uint64_t bytes = 0;
    for (const EnvironmentInfo& one : all) bytes += one.bytes;
    for (const EnvironmentInfo& one : all) {
      if (bytes <= most_bytes) return;
      if (used.contains(one.digest) || one.last_used_sec + kJustUsedSec > std::time(nullptr))
        continue;
      if (!store_.Remove(one.digest)) continue;
      bytes -= std::min(bytes, one.bytes);
      LogInfo("an environment was removed: the store held more than environment_disk_mb",
              {{"environment", one.digest.substr(0, 12)}});
    }
  });
}

void Builds::List(std::function<void(std::string)> done) {
  threads_.Post([this, done = std::move(done)] {
    loop_.Post([text = EnvironmentsJson(store_.List()), done] { done(text); });
  });
}

void Builds::Remove(std::string digest, std::function<void(bool)> done) {
  threads_.Post([this, digest = std::move(digest), done = std::move(done)] {
    const bool removed = IsHex(digest, 64) && store_.Remove(digest);
    loop_.Post([done, removed] { done(removed); });
  });
}

}  // namespace hutch
