// SPDX-License-Identifier: Apache-2.0

#include "agent/audit.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/ceiling.h"
#include "agent/limits.h"
#include "agent/metrics.h"
#include "wire/fd.h"
#include "wire/json_text.h"
#include "wire/log.h"

namespace hutch {
namespace {

using nlohmann::ordered_json;

constexpr auto kWriteAfter = std::chrono::milliseconds(200);
constexpr size_t kMostPolicies = 4096;  // of which it is remembered that they were written

std::string Hex(uint64_t value) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

double Now() {
  timespec now;
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

double Sec(uint64_t us) { return static_cast<double>(us) / 1e6; }

// The host that a secret goes to and the header it goes in; never its value.
std::vector<std::string> SecretNames(const PoolSpec& spec) {
  std::vector<std::string> names;
  for (const SecretRule& secret : spec.secrets) names.push_back(secret.host + " " + secret.header);
  return names;
}

ordered_json MountsOf(const PoolSpec& spec) {
  ordered_json mounts = ordered_json::array();
  for (const MountSpec& mount : spec.mounts) {
    mounts.push_back({{"destination", mount.destination},
                      {"source", mount.source},
                      {"writable", mount.writable},
                      {"as_caller", mount.as_caller}});
  }
  return mounts;
}

}  // namespace

std::string AuditLine(const AuditEntry& entry) {
  const CallStats& note = entry.note;
  ordered_json line = {
      {"event", "call"},
      {"time", entry.time_sec},
      {"call_id", note.call_id == 0 ? "" : Hex(note.call_id)},
      {"uid", entry.caller.uid},
      {"pid", entry.caller.pid},
      {"labels", entry.pool->labels},
      {"digest", entry.pool->digest},
      {"code", note.function[0] == 0 ? "" : Hex(note.function[0]) + Hex(note.function[1])},
      {"policy", note.policy == 0 ? "" : Hex(note.policy)},
      {"status", StatusOf(note.ending)},
      {"limit", LimitOf(note.ending)},
      {"calls", note.calls},
      {"pool", entry.pool->key.substr(0, 12)},
      {"worker", entry.worker},
  };
  if (!entry.session.empty()) {
    line["session"] = entry.session;
    line["number"] = entry.number;
  }
  if (!entry.pool->tenant.empty()) line["tenant"] = entry.pool->tenant;
  ordered_json usage = {
      {"queue_sec", Sec(note.queue_us)},
      {"wall_sec", Sec(note.run_us)},
  };
  if (entry.report && entry.report->memory_limit_kb != 0) {
    usage["cpu_sec"] = Sec(entry.report->cpu_us);
    if (entry.report->peak_kb != 0)  // 0: it ended before it was first measured
      usage["peak_memory_bytes"] = entry.report->peak_kb * 1024;
    if (note.ending == Ending::kDied) {
      line["signal"] = entry.report->signal;
      line["exit_code"] = entry.report->exit_code;
    }
  }
  line["usage"] = std::move(usage);
  ordered_json network = ordered_json::array();
  for (const NetworkRecord& one : entry.network) {
    ordered_json fields = {{"host", one.host},
                           {"port", one.port},
                           {"allowed", one.allowed},
                           {"bytes", one.bytes_sent + one.bytes_received},
                           {"count", one.count}};
    if (!one.allowed) fields["reason"] = one.reason;
    network.push_back(std::move(fields));
  }
  line["network"] = std::move(network);
  return JsonText(line);
}

std::string PolicyLine(const Prepare& prepare) {
  const PoolSpec& spec = prepare.spec;
  ordered_json line = {{"event", "policy"}, {"time", Now()}, {"policy", Hex(prepare.policy)}};
  for (const LimitField& limit : kLimitFields) {
    const double asked = limit.asked(prepare);
    if (limit.can_be_none && asked == 0) {
      line[limit.name] = nullptr;
    } else if (limit.whole) {
      line[limit.name] = static_cast<uint64_t>(asked);
    } else {
      line[limit.name] = asked;
    }
  }
  line["isolation"] = NameOf(IsolationOf(prepare));
  line["allow_network"] = spec.allow_network;
  line["secrets"] = SecretNames(spec);
  line["mounts"] = MountsOf(spec);
  line["allow_sdists"] = spec.allow_sdists;
  line["hard_limits"] = prepare.hard_limits;
  return JsonText(line);
}

// The files of the log. One thread at a time opens, writes and rotates them.
struct AuditLog::Files {
  std::string dir;
  std::atomic<bool> done = false;  // the last batch was written, or could not be
  Fd file;
  uint64_t size = 0;
  bool complained = false;  // since it was last written

  std::string Name(uint64_t number) const {
    std::string name = dir + "/audit.jsonl";
    if (number != 0) name.append(".").append(std::to_string(number));
    return name;
  }

  bool Open() {
    if (file) return true;
    ::mkdir(dir.c_str(), 0700);
    file =
        Fd(::open(Name(0).c_str(), O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0600));
    struct stat st{};
    if (!file || ::fstat(file.get(), &st) != 0) return false;
    size = static_cast<uint64_t>(st.st_size);
    return true;
  }

  void Rotate(uint64_t files) {
    file.reset();
    size = 0;
    ::unlink(Name(files - 1).c_str());
    for (uint64_t n = files - 1; n > 0; --n) ::rename(Name(n - 1).c_str(), Name(n).c_str());
  }

  // `text` is whole lines. False: none of it was written.
  bool Write(const std::string& text, const AuditSettings& settings) {
    if (!Open()) return Complain();
    if (size != 0 && size + text.size() > settings.file_mb << 20) {
      Rotate(settings.files);
      if (!Open()) return Complain();
    }
    size_t written = 0;
    while (written < text.size()) {
      const ssize_t n = ::write(file.get(), text.data() + written, text.size() - written);
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) file.reset();  // no half lines
        return Complain();
      }
      written += static_cast<size_t>(n);
    }
    size += text.size();
    complained = false;
    return true;
  }

  bool Complain() {
    if (!std::exchange(complained, true)) {
      LogError("the audit log cannot be written",
               {{"file", Name(0)}, {"why", std::strerror(errno)}});
    }
    return false;
  }
};

std::string AuditLog::Batch::Text() const {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  for (const AuditEntry& entry : entries) text += AuditLine(entry) + "\n";
  if (dropped != 0)
    text +=
        JsonText(ordered_json{{"event", "dropped"}, {"time", Now()}, {"calls", dropped}}) + "\n";
  return text;
}

AuditLog::AuditLog(Loop& loop, std::string dir, AuditSettings settings)
    : loop_(loop), settings_(settings), files_(std::make_shared<Files>()) {
  files_->dir = std::move(dir);
}

AuditLog::~AuditLog() {
  *alive_ = false;
  loop_.Cancel(timer_);
  thread_.reset();  // finishes the batch that it has begun
  std::string text;
  if (writing_ && !files_->done) text += writing_->Text();
  text += waiting_.Text();
  if (!text.empty()) files_->Write(text, settings_);
}

void AuditLog::Append(AuditEntry entry) {
  if (!settings_.enabled) return;
  if (waiting_.entries.size() >= settings_.most_waiting) {
    ++waiting_.dropped;
    ++dropped_in_all_;
    return;
  }
  if (entry.time_sec == 0) entry.time_sec = Now();
  waiting_.entries.push_back(std::move(entry));
  FlushSoon();
}

void AuditLog::NotePolicy(const Prepare& prepare) {
  if (!settings_.enabled || noted_.size() >= kMostPolicies || prepare.policy == 0) return;
  if (!noted_.insert(prepare.policy).second) return;
  waiting_.lines.push_back(PolicyLine(prepare));
  FlushSoon();
}

void AuditLog::FlushSoon() {
  if (timer_ != 0 || writing_) return;
  timer_ = loop_.After(kWriteAfter, [this] {
    timer_ = 0;
    Flush();
  });
}

void AuditLog::Flush() {
  if (thread_ == nullptr) thread_ = std::make_unique<Background>(1);
  writing_ = std::make_shared<Batch>(std::exchange(waiting_, {}));
  files_->done = false;
  thread_->Post([this, alive = alive_, files = files_, settings = settings_, batch = writing_,
                 &loop = loop_] {
    const uint64_t lost =
        files->Write(batch->Text(), settings) ? 0 : batch->entries.size() + batch->dropped;
    files->done = true;
    loop.Post([this, alive, lost] {
      if (!*alive) return;
      writing_.reset();
      waiting_.dropped += lost;
      dropped_in_all_ += lost;
      if (!waiting_.entries.empty() || !waiting_.lines.empty()) FlushSoon();
    });
  });
}

}  // namespace hutch
