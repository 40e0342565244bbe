// SPDX-License-Identifier: Apache-2.0

#include "agent/exposition.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "wire/json_text.h"
#include "wire/paths.h"

namespace hutch {
namespace {

using nlohmann::json;
using Labels = std::vector<std::pair<std::string, std::string>>;

constexpr size_t kShort = 12;        // hex digits of a key or a digest: enough to tell them apart
constexpr size_t kMaxNames = 120;    // length of the requirement names in a label, in bytes
constexpr unsigned kFirstBound = 5;  // 2^5 us = 32 us ...
constexpr unsigned kLastBound = 27;  // ... to 2^27 us = 134 s

std::string Utf8(const std::string& text) {
  return json::parse(JsonText(json(text))).get<std::string>();
}

json Milliseconds(const std::optional<double>& us) { return us ? json(*us / 1000) : json(nullptr); }

json PoolJson(const PoolState& pool) {
  json outcomes = json::object();
  for (size_t i = 1; i < kEndings; ++i) {
    if (pool.metrics.endings[i] == 0) continue;
    const auto ending = static_cast<Ending>(i);
    const std::string limit = LimitOf(ending);
    outcomes[limit.empty() ? StatusOf(ending) : "limit:" + limit] = pool.metrics.endings[i];
  }
  const uint64_t served = pool.metrics.hits + pool.metrics.misses;
  const json hit_rate =
      served == 0 ? json(nullptr)
                  : json(static_cast<double>(pool.metrics.hits) / static_cast<double>(served));
  return {{"key", pool.key},
          {"digest", pool.digest},
          {"requirements", pool.requirements},
          {"labels", pool.labels},
          {"memory_mb", pool.memory_mb},
          {"isolation", pool.isolation},
          {"workers", pool.stats.worker_names},
          {"slots", pool.stats.slots},
          {"ready", pool.stats.ready},
          {"depth", pool.stats.depth},
          {"leased", pool.stats.leased},
          {"sessions", pool.stats.sessions},
          {"waiting", pool.stats.waiting},
          {"calls", pool.metrics.calls()},
          {"outcomes", outcomes},
          {"calls_per_sec", pool.calls_per_sec},
          {"hit_rate", hit_rate},
          {"p50_ms", Milliseconds(pool.recent.Quantile(0.5))},
          {"p99_ms", Milliseconds(pool.recent.Quantile(0.99))},
          {"refused", pool.metrics.refused},
          {"cells_made", pool.stats.cells_made},
          {"worker_starts", pool.stats.worker_starts},
          {"worker_failures", pool.stats.worker_failures},
          {"rotations", pool.stats.rotations},
          {"start_failures", pool.stats.start_failures},
          {"last_failure", pool.stats.last_failure}};
}

// Adds families and their samples.
class Collector {
 public:
  void Family(std::string name, std::string type, std::string help) {
    families_.push_back({std::move(name), std::move(type), std::move(help), {}});
  }
  void Sample(Labels labels, double value) {
    families_.back().samples.push_back({"", std::move(labels), value});
  }
  void Sample(Labels labels, uint64_t value) {
    Sample(std::move(labels), static_cast<double>(value));
  }
  void One(std::string name, std::string type, std::string help, double value) {
    Family(std::move(name), std::move(type), std::move(help));
    Sample({}, value);
  }
  void Buckets(const Labels& labels, const Histogram& histogram) {
    auto& samples = families_.back().samples;
    const auto add = [&](const char* suffix, double value) {
      samples.push_back({suffix, labels, value});
    };
    for (unsigned exponent = kFirstBound; exponent <= kLastBound; ++exponent) {
      add("_bucket", static_cast<double>(histogram.CountUpTo(exponent)));
      samples.back().labels.emplace_back("le",
                                         Number(std::ldexp(1e-6, static_cast<int>(exponent))));
    }
    add("_bucket", static_cast<double>(histogram.count()));
    samples.back().labels.emplace_back("le", "+Inf");
    add("_sum", static_cast<double>(histogram.sum_us()) / 1e6);
    add("_count", static_cast<double>(histogram.count()));
  }
  std::vector<hutch::Family> Take() { return std::move(families_); }

  static std::string Number(double value) {
    char text[40];
    return {text, std::to_chars(text, text + sizeof text, value).ptr};
  }

 private:
  std::vector<hutch::Family> families_;
};

// A user's label as a valid Prometheus label name.
std::string LabelName(const std::string& name) {
  std::string taken = "label_" + name;
  for (char& c : taken) {
    if (!((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'))) c = '_';
  }
  return taken;
}

Labels InfoOf(const PoolState& pool, Labels labels) {
  labels.emplace_back("memory_mb", std::to_string(pool.memory_mb));
  std::set<std::string> taken;
  for (const auto& [name, value] : pool.labels) {
    const std::string label = LabelName(name);
    if (taken.insert(label).second) labels.emplace_back(label, value);  // the first one is kept
  }
  return labels;
}

Labels With(Labels labels, std::string name, std::string value) {
  labels.emplace_back(std::move(name), std::move(value));
  return labels;
}

void CollectAgent(Collector& c, const AgentState& agent) {
  c.Family("hutch_agent_info", "gauge", "Always 1; its labels say which agent this is.");
  c.Sample({{"version", kHutchVersion},
            {"wire_version", std::to_string(kWireVersion)},
            {"generation", agent.generation}},
           uint64_t{1});
  const auto number = [](uint64_t n) { return static_cast<double>(n); };
  c.One("hutch_clients", "gauge", "Connected client processes.", number(agent.clients));
  c.One("hutch_leases", "gauge", "Cells that clients hold, in use or ahead of a call.",
        number(agent.leases));
  c.One("hutch_sessions", "gauge", "Sessions that are open.", number(agent.sessions));
  c.One("hutch_sessions_max", "gauge", "Sessions that may be open at once; 0: no bound.",
        number(agent.most_sessions));
  c.One("hutch_spare_workers", "gauge", "Workers started ahead that belong to no pool yet.",
        number(agent.spares));
  c.Family("hutch_builds_total", "counter",
           "Environment builds since the agent started, by result.");
  c.Sample({{"result", "ok"}}, agent.builds);
  c.Sample({{"result", "failed"}}, agent.builds_failed);
  c.One("hutch_build_seconds_total", "counter", "Time spent on builds that succeeded.",
        agent.build_sec);
  c.One("process_start_time_seconds", "gauge", "When the agent started, in seconds since 1970.",
        agent.started_sec);
  c.One("process_cpu_seconds_total", "counter", "CPU time of the agent's own process.",
        agent.process.cpu_sec);
  c.One("process_resident_memory_bytes", "gauge", "Memory of the agent's own process.",
        number(agent.process.resident_bytes));
  c.One("process_open_fds", "gauge", "Descriptors that the agent has open.",
        number(agent.process.open_descriptors));
  c.One("process_max_fds", "gauge", "Descriptors that the agent may have open.",
        number(agent.process.max_descriptors));
}

}  // namespace

std::string NamesOf(const std::vector<std::string>& requirements) {
  std::string names;
  for (const std::string& requirement : requirements) {
    const size_t end = requirement.find_first_of(" <>=!~;[@(");
    if (!names.empty()) names += ' ';
    names += requirement.substr(0, end);
  }
  if (names.size() > kMaxNames) names = names.substr(0, kMaxNames - 3) + "...";
  return names;
}

ProcessState ReadProcessState() {
  ProcessState state;
  std::ifstream statm("/proc/self/statm");
  uint64_t size = 0;
  uint64_t resident = 0;
  if (statm >> size >> resident)
    state.resident_bytes = resident * static_cast<uint64_t>(::sysconf(_SC_PAGESIZE));
  std::error_code error;
  const std::filesystem::directory_iterator open("/proc/self/fd", error);
  if (!error)  // without the one of this iterator
    state.open_descriptors = static_cast<uint64_t>(std::distance(begin(open), end(open))) - 1;
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) state.max_descriptors = limit.rlim_cur;
  rusage usage{};
  if (::getrusage(RUSAGE_SELF, &usage) == 0) {
    const auto seconds = [](const timeval& t) {
      return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) / 1e6;
    };
    state.cpu_sec = seconds(usage.ru_utime) + seconds(usage.ru_stime);
  }
  return state;
}

std::string StatusJson(const AgentState& agent) {
  json pools = json::array();
  for (const PoolState& pool : agent.pools) pools.push_back(PoolJson(pool));
  return JsonText(json{{"version", kHutchVersion},
                       {"wire_version", kWireVersion},
                       {"generation", agent.generation},
                       {"pid", ::getpid()},
                       {"uptime_sec", agent.uptime_sec},
                       {"calls", agent.calls},
                       {"clients", agent.clients},
                       {"leases", agent.leases},
                       {"sessions", agent.sessions},
                       {"sessions_max", agent.most_sessions},
                       {"spares", agent.spares},
                       {"pressure", agent.pressure},
                       {"builds", agent.builds},
                       {"builds_failed", agent.builds_failed},
                       {"memory_bytes", agent.process.resident_bytes},
                       {"descriptors", agent.process.open_descriptors},
                       {"enforcement", agent.enforcement},
                       {"enforcement_note", agent.enforcement_note},
                       {"stopping", agent.stopping},
                       {"pools", pools}});
}

std::string SessionsJson(const std::vector<SessionState>& sessions) {
  json list = json::array();
  for (const SessionState& one : sessions) {
    list.push_back({{"id", one.id},
                    {"lease", one.lease},
                    {"uid", one.caller.uid},
                    {"pid", one.caller.pid},
                    {"worker", one.worker},
                    {"pool", one.pool.substr(0, kShort)},
                    {"age_sec", one.age_sec},
                    {"unused_sec", one.unused_sec},
                    {"idle_sec", one.idle_sec == 0 ? json(nullptr) : json(one.idle_sec)},
                    {"calls", one.calls},
                    {"state", one.state}});
  }
  return JsonText(list);
}

std::string EnvironmentsJson(const std::vector<EnvironmentInfo>& environments) {
  json list = json::array();
  for (const EnvironmentInfo& info : environments) {
    list.push_back({{"digest", info.digest},
                    {"requirements", info.requirements},
                    {"bytes", info.bytes},
                    {"packages", info.packages},
                    {"python", info.python_version},
                    {"base", info.base_id},
                    {"created", info.created_sec},
                    {"last_used", info.last_used_sec}});
  }
  return JsonText(list);
}

std::vector<Family> FamiliesOf(const AgentState& agent) {
  Collector c;
  CollectAgent(c, agent);
  const auto each = [&](const auto& add) {
    for (const PoolState& pool : agent.pools) {
      add(pool, Labels{{"pool", pool.key.substr(0, kShort)},
                       {"environment", pool.digest.substr(0, kShort)},
                       {"requirements", NamesOf(pool.requirements)}});
    }
  };
  const auto numbers = [&](std::string name, std::string type, std::string help,
                           const std::function<uint64_t(const PoolState&)>& get) {
    c.Family(std::move(name), std::move(type), std::move(help));
    each([&](const PoolState& pool, const Labels& labels) { c.Sample(labels, get(pool)); });
  };
  c.Family("hutch_pool_info", "gauge",
           "Always 1; its labels say what the pool is for, with the labels= of its calls.");
  each([&](const PoolState& pool, const Labels& labels) {
    c.Sample(InfoOf(pool, labels), uint64_t{1});
  });
  c.Family("hutch_calls_total", "counter", "Calls that ended, by status and limit.");
  each([&](const PoolState& pool, const Labels& labels) {
    for (size_t i = 1; i < kEndings; ++i) {
      const auto ending = static_cast<Ending>(i);
      c.Sample(With(With(labels, "status", StatusOf(ending)), "limit", LimitOf(ending)),
               pool.metrics.endings[i]);
    }
  });
  c.Family(
      "hutch_call_leases_total", "counter",
      "Calls by whether their client already held a cell (ahead) or had to ask for one (asked).");
  each([&](const PoolState& pool, const Labels& labels) {
    c.Sample(With(labels, "lease", "ahead"), pool.metrics.hits);
    c.Sample(With(labels, "lease", "asked"), pool.metrics.misses);
  });
  c.Family("hutch_call_seconds", "histogram", "Whole calls, as their clients saw them.");
  each([&](const PoolState& pool, const Labels& labels) { c.Buckets(labels, pool.metrics.total); });
  c.Family("hutch_call_stage_seconds", "histogram",
           "The stages of calls: queue (until the call has a cell), send, run, receive.");
  each([&](const PoolState& pool, const Labels& labels) {
    c.Buckets(With(labels, "stage", "queue"), pool.metrics.queue);
    c.Buckets(With(labels, "stage", "send"), pool.metrics.send);
    c.Buckets(With(labels, "stage", "run"), pool.metrics.run);
    c.Buckets(With(labels, "stage", "receive"), pool.metrics.receive);
  });
  numbers("hutch_refused_total", "counter", "Calls that got no cell in time.",
          [](const PoolState& pool) { return pool.metrics.refused; });
  numbers("hutch_cells_made_total", "counter", "Cells made ahead of calls.",
          [](const PoolState& pool) { return pool.stats.cells_made; });
  numbers("hutch_worker_starts_total", "counter", "Workers started.",
          [](const PoolState& pool) { return pool.stats.worker_starts; });
  numbers("hutch_worker_failures_total", "counter", "Workers that did not start.",
          [](const PoolState& pool) { return pool.stats.worker_failures; });
  numbers("hutch_worker_rotations_total", "counter", "Workers replaced by a fresh one.",
          [](const PoolState& pool) { return pool.stats.rotations; });
  numbers("hutch_workers", "gauge", "Workers of the pool.",
          [](const PoolState& pool) { return pool.stats.workers; });
  numbers("hutch_slots", "gauge", "Places for cells in those workers.",
          [](const PoolState& pool) { return pool.stats.slots; });
  numbers("hutch_queue_length", "gauge", "Calls that wait for a cell.",
          [](const PoolState& pool) { return pool.stats.waiting; });
  c.Family("hutch_cells", "gauge",
           "Cells by state: parked cells wait for a client, leased cells have one.");
  each([&](const PoolState& pool, const Labels& labels) {
    c.Sample(With(labels, "state", "parked"), pool.stats.ready);
    c.Sample(With(labels, "state", "leased"), pool.stats.leased);
  });
  return c.Take();
}

namespace {

void AppendEscaped(std::string& text, const std::string& value) {
  for (const char c : Utf8(value)) {
    if (c == '\\' || c == '"') {
      text += '\\';
      text += c;
    } else if (c == '\n') {
      text += "\\n";
    } else {
      text += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? ' ' : c;
    }
  }
}

}  // namespace

std::string PrometheusText(const std::vector<Family>& families) {
  std::string text;
  for (const Family& family : families) {
    text += "# HELP " + family.name + " " + family.help + "\n";
    text += "# TYPE " + family.name + " " + family.type + "\n";
    for (const Family::Sample& sample : family.samples) {
      text += family.name + sample.suffix;
      char before = '{';
      for (const auto& [name, value] : sample.labels) {
        text += before + name + "=\"";
        AppendEscaped(text, value);
        text += '"';
        before = ',';
      }
      text += (sample.labels.empty() ? " " : "} ") + Collector::Number(sample.value) + "\n";
    }
  }
  return text;
}

std::string MetricsJson(const std::vector<Family>& families) {
  json all = json::array();
  for (const Family& family : families) {
    json samples = json::array();
    for (const Family::Sample& sample : family.samples) {
      json labels = json::object();
      for (const auto& [name, value] : sample.labels) labels[name] = value;
      samples.push_back(
          {{"name", family.name + sample.suffix}, {"labels", labels}, {"value", sample.value}});
    }
    all.push_back({{"name", family.name},
                   {"type", family.type},
                   {"help", family.help},
                   {"samples", samples}});
  }
  return JsonText(all);
}

}  // namespace hutch
