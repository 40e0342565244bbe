// SPDX-License-Identifier: Apache-2.0

#include "bindings/result.h"

#include <algorithm>
#include <csignal>
#include <string_view>

#include "bindings/printed_text.h"

namespace hutch {
namespace {

constexpr char kClaimed[] = "claimed";  // an Outcome's limit is what the cell said

// False when the warden was gone, and the agent reported in its place.
bool FromWarden(const CallRecord& record) {
  return record.report && record.report->memory_limit_kb != 0;
}

// The cell closed its socket without a reply: the warden reports how it ended.
void SetEnded(CallResult& result, const CallRecord& record) {
  const CellReport report = record.report.value_or(CellReport{});
  if (report.limit != kNoLimit) {
    result.status = "limit";
    result.limit = NameOfLimit(report.limit);
  } else if (report.signal != 0) {
    result.status = "died";
    result.signal = py::int_(report.signal);
  } else if (report.exit_code >= 0) {
    result.status = "died";
    result.exit_code = py::int_(report.exit_code);
  } else if (FromWarden(record) && report.end != kLost) {
    result.status =
        "died";  // it closed its end of the socket and lived on, until it was killed for it
    result.signal = py::int_(SIGKILL);
  } else {
    Raise(Error(Code::kWorkerFailed, "the worker was lost during the call",
                "the call may have run; repeat it only if that does no harm", true));
  }
}

// Makes the object without a call of __init__.
py::object New(const py::object& type) {
  auto* const made = reinterpret_cast<PyTypeObject*>(type.ptr());
  PyObject* const object = made->tp_new(made, py::tuple().ptr(), nullptr);
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

template <size_t size>
struct Name {
  // Implicit, as template arguments are. NOLINTNEXTLINE(google-explicit-constructor)
  constexpr Name(const char (&name)[size]) { std::copy_n(name, size, text); }
  char text[size];
};

// The object of each name is made once, and never released.
template <Name name>
void Set(const py::object& object, const py::handle& value) {
  static PyObject* const kInterned = PyUnicode_InternFromString(name.text);
  if (PyObject_SetAttr(object.ptr(), kInterned, value.ptr()) != 0) throw py::error_already_set();
}

struct Used {
  double wall_sec = 0, cpu_sec = 0, cpu_wait_sec = 0;
  uint64_t peak_kb = 0, memory_limit_kb = 0, pids_peak = 0;
  const char* source = "";
};

Used UsedBy(const CallRecord& record) {
  if (FromWarden(record)) {
    const CellReport& report = *record.report;  // peak_kb 0: it ended before it was measured
    return {.wall_sec = Seconds(record.run()),
            .cpu_sec = static_cast<double>(report.cpu_us) / 1e6,
            .cpu_wait_sec = static_cast<double>(report.cpu_wait_us) / 1e6,
            .peak_kb = report.peak_kb,
            .memory_limit_kb = report.memory_limit_kb,
            .pids_peak = report.pids_peak,
            .source = "warden"};
  }
  const CallUsage& reported = record.outcome.usage;
  const bool replied = reported.wall_us != 0;
  return {.wall_sec = replied ? static_cast<double>(reported.wall_us) / 1e6 : Seconds(record.run()),
          .cpu_sec = static_cast<double>(reported.cpu_us) / 1e6,
          .cpu_wait_sec = static_cast<double>(reported.cpu_wait_us) / 1e6,
          .peak_kb = reported.peak_kb,
          .source = "cell"};
}

py::dict TimingsOf(const CallResult& result) {
  const CallRecord& record = result.record;
  py::dict timings;
  timings["queue"] = Seconds(record.queue - record.worker_start) + result.queued_sec;
  timings["environment"] = result.environment_sec;
  timings["worker"] = Seconds(record.worker_start) + result.worker_sec;
  timings["send"] = Seconds(record.send());
  timings["run"] = Seconds(record.run());
  timings["receive"] = 0.0;
  return timings;
}

}  // namespace

py::object& CoreError() {
  static auto* type = new py::object();
  return *type;
}

[[noreturn]] void Raise(const Error& error) {
  PyErr_SetObject(CoreError().ptr(),
                  py::make_tuple(std::string(CodeName(error.code())), std::string(error.what()),
                                 error.hint(), error.may_have_run(), error.figures())
                      .ptr());
  throw py::error_already_set();
}

py::dict UsageOf(const CallResult& result) {
  const Used used = UsedBy(result.record);
  py::dict usage;
  usage["wall_sec"] = used.wall_sec;
  usage["cpu_sec"] = used.cpu_sec;
  usage["cpu_wait_sec"] = used.cpu_wait_sec;
  usage["peak_memory_bytes"] = used.peak_kb * 1024;
  usage["memory_limit_bytes"] = used.memory_limit_kb * 1024;
  usage["pids_peak"] = used.pids_peak;
  usage["minor_faults"] = result.outcome().usage.minor_faults;
  usage["waited_sec"] = Seconds(result.record.queue);
  usage["source"] = used.source;
  return usage;
}

py::list NetworkOf(const CallResult& result) {
  py::list records;
  for (const NetworkRecord& r : result.record.network) {
    records.append(py::make_tuple(r.host, r.port, r.allowed, r.reason, r.suggestion, r.bytes_sent,
                                  r.bytes_received, r.count, r.lost));
  }
  return records;
}

py::object OutcomeOf(const CallResult& result, const py::object& outcome_type,
                     const py::object& usage_type, const py::object& enforcement) {
  const Used used = UsedBy(result.record);
  const py::object usage = New(usage_type);
  Set<"wall_sec">(usage, py::float_(used.wall_sec));
  Set<"cpu_sec">(usage, py::float_(used.cpu_sec));
  Set<"cpu_wait_sec">(usage, py::float_(used.cpu_wait_sec));
  Set<"peak_memory_bytes">(usage, py::int_(used.peak_kb * 1024));
  Set<"waited_sec">(usage, py::float_(Seconds(result.record.queue)));
  Set<"enforcement">(usage, result.outcome().claimed ? py::str(kClaimed) : enforcement);
  Set<"source">(usage, py::str(used.source));
  Set<"suggested">(usage, py::dict());
  Set<"background_cpu_sec">(usage, py::float_(Seconds(result.record.background)));
  const py::object outcome = New(outcome_type);
  const std::string_view status = result.status;
  const std::string_view limit = result.limit;
  const Output& output = result.outcome().output;
  const py::none none;
  Set<"status">(outcome, py::str(status == "unencodable" ? "raised" : status));
  Set<"value">(outcome, none);
  Set<"error">(outcome, none);
  Set<"limit">(outcome, limit.empty() ? py::object(none) : py::str(limit));
  Set<"signal">(outcome, result.signal);
  Set<"exit_code">(outcome, result.exit_code);
  Set<"usage">(outcome, usage);
  Set<"timings">(outcome, TimingsOf(result));
  Set<"network">(outcome, py::list());
  Set<"stdout">(outcome, PrintedText(output.text(0)));
  Set<"stderr">(outcome, PrintedText(output.text(1)));
  Set<"stdout_size">(outcome, py::int_(output.size(0)));
  Set<"stderr_size">(outcome, py::int_(output.size(1)));
  Set<"stdout_truncated">(outcome, py::bool_(output.truncated(0)));
  Set<"stderr_truncated">(outcome, py::bool_(output.truncated(1)));
  Set<"display">(outcome, py::list());
  Set<"call_id">(outcome, py::str(result.CallId()));
  Set<"worker_id">(outcome, py::str(result.record.worker));
  Set<"may_have_run">(outcome, py::bool_(true));
  Set<"restarted">(outcome, py::bool_(false));
  Set<"rolled_back">(outcome, py::bool_(false));
  Set<"files">(outcome, py::dict());
  Set<"_failure">(outcome, none);
  return outcome;
}

CallResult MakeResult(CallRecord record) {
  CallResult result;
  CallOutcome& outcome = record.outcome;
  switch (outcome.status) {
    case CallStatus::kReturned:
      result.status = "returned";
      break;
    case CallStatus::kRaised:
      result.status = "raised";
      break;
    case CallStatus::kUnencodable:
      result.status = "unencodable";
      break;
    case CallStatus::kTooLarge:
      result.status = "limit";
      result.limit = "result";
      break;
    case CallStatus::kOutOfMemory:
      result.status = "limit";
      result.limit = "memory";
      break;
    case CallStatus::kTimedOut:
      result.status = "limit";
      result.limit = "time";
      break;
    case CallStatus::kCancelled:
    case CallStatus::kInterrupted:
      result.status = "cancelled";
      break;
    case CallStatus::kBroken:
      result.status = "died";
      result.signal = py::int_(SIGKILL);  // which is what it gets for it
      break;
    case CallStatus::kEnded:
      SetEnded(result, record);
      break;
  }
  if (outcome.status == CallStatus::kRaised && outcome.usage.limit != kNoLimit) {
    result.status = "limit";
    result.limit = NameOfLimit(outcome.usage.limit);
  }
  if (outcome.payload) result.payload = py::cast(PyPayload{std::move(outcome.payload)});
  result.record = std::move(record);
  return result;
}

}  // namespace hutch
