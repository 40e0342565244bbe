// Module _core: the client and the result decoder, as thin as it can be. What a user reads is the
// typed package on top; _core.pyi is this file's interface.
//
// Every wait releases the GIL and takes it back only to run the caller's callbacks and signal
// handlers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/eventfd.h>

#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "bindings/decode.h"
#include "client/client.h"
#include "wire/paths.h"
#include "wire/sha256.h"

namespace py = pybind11;

namespace hutch {
namespace {

py::object& ErrorType() {
  static auto* type = new py::object();
  return *type;
}

[[noreturn]] void Raise(const Error& error) {
  PyErr_SetObject(ErrorType().ptr(),
                  py::make_tuple(std::string(CodeName(error.code())), std::string(error.what()),
                                 error.hint(), error.may_have_run(), error.figures())
                      .ptr());
  throw py::error_already_set();
}

// What happened in a callback on the way: kept until the wait is over, then raised.
struct Pending {
  std::unique_ptr<py::error_already_set> error;
};

bool Interrupted(Pending& pending) {
  const py::gil_scoped_acquire gil;
  if (pending.error) return true;
  if (PyErr_CheckSignals() == 0) return false;
  pending.error = std::make_unique<py::error_already_set>();
  return true;
}

class CancelToken {
 public:
  CancelToken() : fd_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    if (!fd_) ThrowErrno("eventfd");
  }
  void Cancel() {
    cancelled_ = true;
    const uint64_t one = 1;
    if (::write(fd_.get(), &one, sizeof one) < 0)
      cancelled_ = true;  // a full counter is as readable
  }
  bool cancelled() const { return cancelled_; }
  int fd() const { return fd_.get(); }

 private:
  Fd fd_;
  std::atomic<bool> cancelled_{false};
};

struct FunctionBlob {
  explicit FunctionBlob(const py::bytes& data)
      : blob(std::string(data)), digest(Sha256Hex(std::string(data))) {}
  Blob blob;
  std::string digest;
};

// Memory of `hutch.empty`. The arrays that start in one are found by address, under the GIL.
class SharedMemory {
 public:
  explicit SharedMemory(size_t size) : size_(size) {
    try {
      segment_ = std::make_shared<Segment>(size);
      data_ = segment_->Map();
    } catch (const Error& error) {
      Raise(error);
    }
    Places()[data_] = this;
  }
  ~SharedMemory() { Places().erase(data_); }
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  char* data() const { return data_; }
  size_t size() const { return size_; }

  // The segment that holds these bytes and no others, so that lending it shows a cell nothing else.
  static std::shared_ptr<Segment> Of(std::string_view bytes) {
    const auto found = Places().find(bytes.data());
    if (found == Places().end() || found->second->size_ != bytes.size()) return nullptr;
    return found->second->segment_;
  }

 private:
  static std::unordered_map<const char*, SharedMemory*>& Places() {
    static auto* places = new std::unordered_map<const char*, SharedMemory*>();
    return *places;
  }

  size_t size_;
  std::shared_ptr<Segment> segment_;
  char* data_ = nullptr;
};

struct PyPayload {
  std::unique_ptr<Payload> payload;
};

struct CallResult {
  std::string status, limit, worker_id, call_id, detail;
  py::object exit_code = py::none(), signal = py::none(), payload = py::none();
  py::bytes out, err;
  uint64_t stdout_size = 0, stderr_size = 0, result_size = 0;
  bool stdout_truncated = false, stderr_truncated = false, may_have_run = true;
  py::dict usage, timings;
  double ended = 0;
};

double Seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

// What Python's time.monotonic() said; 0: nothing.
Clock::time_point TimePoint(double monotonic_sec) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(monotonic_sec)));
}

const char* LimitName(uint32_t limit) {
  switch (limit) {
    case kLimitTime:
      return "time";
    case kLimitCpuTime:
      return "cpu_time";
    case kLimitMemory:
      return "memory";
    case kLimitPids:
      return "pids";
    case kLimitDisk:
      return "disk";
    default:
      return "";
  }
}

// False when the agent had to speak for a warden that is gone.
bool FromWarden(const CallRecord& record) {
  return record.report && record.report->memory_limit_kb != 0;
}

void SetUsage(CallResult& result, const CallRecord& record) {
  const CallUsage& told = record.outcome.usage;
  const bool measured = FromWarden(record);
  py::dict& usage = result.usage;
  if (measured) {
    usage["wall_sec"] = Seconds(record.run());
    usage["cpu_sec"] = static_cast<double>(record.report->cpu_us) / 1e6;
    // Short of the warden's first look there is only what the cell says.
    const uint64_t peak = record.report->peak_kb != 0 ? record.report->peak_kb : told.peak_kb;
    usage["peak_memory_bytes"] = peak * 1024;
    usage["memory_limit_bytes"] = record.report->memory_limit_kb * 1024;
    usage["pids_peak"] = record.report->pids_peak;
  } else {
    const bool replied = told.wall_us != 0;
    usage["wall_sec"] = replied ? static_cast<double>(told.wall_us) / 1e6 : Seconds(record.run());
    usage["cpu_sec"] = static_cast<double>(told.cpu_us) / 1e6;
    usage["peak_memory_bytes"] = told.peak_kb * 1024;
    usage["memory_limit_bytes"] = 0;
    usage["pids_peak"] = 0;
  }
  usage["minor_faults"] = told.minor_faults;
  usage["waited_sec"] = Seconds(record.queue);
  usage["source"] = measured ? "warden" : "cell";
  py::dict& timings = result.timings;
  timings["queue"] = Seconds(record.queue - record.worker_start);
  timings["environment"] = 0.0;
  timings["worker"] = Seconds(record.worker_start);
  timings["send"] = Seconds(record.send());
  timings["run"] = Seconds(record.run());
  timings["receive"] = 0.0;
  result.ended = Seconds(record.outcome.ended.time_since_epoch());
}

// The cell's end of the socket closed without a reply: what the warden says became of it.
void SetEnded(CallResult& result, const CallRecord& record) {
  const CellReport report = record.report.value_or(CellReport{});
  if (report.limit != kNoLimit) {
    result.status = "limit";
    result.limit = LimitName(report.limit);
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
      result.detail = outcome.detail;
      break;
    case CallStatus::kEnded:
      SetEnded(result, record);
      break;
  }
  if (outcome.status == CallStatus::kRaised && outcome.usage.limit != kNoLimit) {
    result.status = "limit";
    result.limit = LimitName(outcome.usage.limit);
  }
  if (outcome.payload) result.payload = py::cast(PyPayload{std::move(outcome.payload)});
  result.out = py::bytes(outcome.output.text(0));
  result.err = py::bytes(outcome.output.text(1));
  result.stdout_size = outcome.output.size(0);
  result.stderr_size = outcome.output.size(1);
  result.stdout_truncated = outcome.output.truncated(0);
  result.stderr_truncated = outcome.output.truncated(1);
  result.result_size = outcome.result_size;
  result.worker_id = record.worker;
  char id[17];
  std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(outcome.call_id));
  result.call_id = id;
  SetUsage(result, record);
  return result;
}

template <class T>
T Get(const py::dict& from, const char* name) {
  if (!from.contains(name)) {
    throw py::value_error(std::string("missing field: ") + name);
  }
  try {
    return from[name].cast<T>();
  } catch (const py::cast_error&) {
    throw py::value_error(std::string("wrong type of field: ") + name);
  }
}

std::string GetText(const py::dict& from, const char* name) {
  return from.contains(name) ? from[name].cast<std::string>() : std::string();
}

PoolSpec SpecFrom(const py::dict& d) {
  PoolSpec spec;
  spec.requirements = Get<std::vector<std::string>>(d, "requirements");
  spec.python_version = Get<std::string>(d, "python_version");
  spec.platform = Get<std::string>(d, "platform");
  spec.base_id = Get<std::string>(d, "base_id");
  spec.runtime_id = Get<std::string>(d, "runtime_id");
  const auto index = Get<py::dict>(d, "index");
  spec.index = {GetText(index, "index_url"),  GetText(index, "extra_index_urls"),
                GetText(index, "http_proxy"), GetText(index, "https_proxy"),
                GetText(index, "no_proxy"),   GetText(index, "ca_bundle")};
  spec.allow_sdists = Get<bool>(d, "allow_sdists");
  const py::object preload = d["preload"];
  spec.preload_given = !preload.is_none();
  if (spec.preload_given) spec.preload = preload.cast<std::vector<std::string>>();
  spec.nonce = Get<std::string>(d, "nonce");
  spec.setup = Get<std::string>(d, "setup");
  spec.modules = Get<std::map<std::string, std::string>>(d, "modules");
  spec.memory_mb = Get<uint64_t>(d, "memory_mb");
  spec.disk_mb = Get<uint64_t>(d, "disk_mb");
  spec.pids = Get<uint64_t>(d, "pids");
  spec.cpus = Get<double>(d, "cpus");
  spec.env = Get<std::map<std::string, std::string>>(d, "env");
  spec.labels = Get<std::map<std::string, std::string>>(d, "labels");
  spec.max_calls = Get<uint64_t>(d, "max_calls");
  spec.max_age_sec = Get<double>(d, "max_age_sec");
  spec.warm = Get<int64_t>(d, "warm");
  spec.max_cells = Get<uint64_t>(d, "max_cells");
  spec.idle_sec = Get<double>(d, "idle_sec");
  return spec;
}

CallLimits LimitsFrom(const py::dict& d) {
  return {Get<uint64_t>(d, "timeout_ms"), Get<uint64_t>(d, "cpu_ms"),
          Get<uint64_t>(d, "output_bytes"), Get<uint64_t>(d, "result_bytes"),
          Get<uint64_t>(d, "queue_ms")};
}

class PyClient {
 private:
  std::shared_ptr<Client> Live() const {
    if (!client_) Raise(Error(Code::kUnavailable, "this connection is closed"));
    return client_;
  }

  template <class Work>
  auto Wait(Pending& pending, const Work& work, const CancelToken* cancel = nullptr) {
    const std::shared_ptr<Client> client = Live();
    CallHooks hooks;
    hooks.cancel_fd = cancel == nullptr ? -1 : cancel->fd();
    hooks.interrupted = [&] { return Interrupted(pending); };
    try {
      const auto run = [&] {
        const py::gil_scoped_release no_gil;
        return work(*client, hooks);
      };
      auto result = run();
      if (pending.error) throw py::error_already_set(std::move(*pending.error));
      return result;
    } catch (const Error& error) {
      if (pending.error) throw py::error_already_set(std::move(*pending.error));
      Raise(error);
    }
  }

 public:
  PyClient(const std::string& socket, long uid) {
    const py::gil_scoped_release no_gil;
    client_ = std::make_shared<Client>(socket, uid);
  }

  int pid() const { return Live()->pid(); }

  py::dict Prepare(const py::dict& spec_dict, uint64_t timeout_ms, const py::object& progress) {
    const PoolSpec spec = SpecFrom(spec_dict);
    Pending pending;
    const Prepared done = Wait(pending, [&](Client& client, const CallHooks& hooks) {
      return client.PreparePool(
          spec, timeout_ms,
          [&](const Progress& step) {
            const py::gil_scoped_acquire gil;
            if (pending.error || progress.is_none()) return;
            try {
              progress(step.stage, step.text, step.done, step.total);
            } catch (py::error_already_set& error) {
              pending.error = std::make_unique<py::error_already_set>(std::move(error));
            }
          },
          hooks);
    });
    py::dict result;
    result["key"] = done.key;
    result["digest"] = done.digest;
    result["lock"] = done.lock;
    result["notes"] = done.notes;
    result["built"] = done.built;
    result["build_sec"] = done.build_sec;
    result["worker_sec"] = done.worker_sec;
    result["enforcement"] = done.enforcement;
    return result;
  }

  uint64_t Warm(const std::string& key, int64_t cells, uint64_t timeout_ms) {
    Pending pending;
    return Wait(pending, [&](Client& client, const CallHooks& hooks) {
      return client.WarmPool(key, cells, timeout_ms, hooks);
    });
  }

  CallResult Call(const std::string& key, const py::bytes& meta, const FunctionBlob& function,
                  const py::bytes& arguments, const py::sequence& buffers, const py::dict& limits,
                  const CancelToken* cancel, const py::object& on_stdout,
                  const py::object& on_stderr, double begun) {
    CallRequest request;
    request.begun = TimePoint(begun);
    request.meta = std::string_view(meta);
    request.function = &function.blob;
    request.arguments = std::string_view(arguments);
    request.limits = LimitsFrom(limits);
    std::vector<py::buffer_info>
        held;  // keeps the caller's buffers exported until the call is over
    for (const py::handle item : buffers) {
      held.push_back(py::reinterpret_borrow<py::buffer>(item).request());
      const py::buffer_info& info = held.back();
      const std::string_view bytes(static_cast<const char*>(info.ptr),
                                   static_cast<size_t>(info.size * info.itemsize));
      request.buffers.emplace_back(bytes, SharedMemory::Of(bytes));
      request.buffers.back().is_bytes = PyBytes_CheckExact(info.view()->obj);
    }
    Pending pending;
    CallRecord record = Wait(
        pending,
        [&](Client& client, CallHooks& hooks) {
          if (!on_stdout.is_none() || !on_stderr.is_none()) {
            hooks.output = [&](int stream, std::string_view bytes) {
              const py::object& callback = stream == 0 ? on_stdout : on_stderr;
              const py::gil_scoped_acquire gil;
              if (pending.error || callback.is_none()) return;
              try {
                callback(py::bytes(bytes.data(), bytes.size()));
              } catch (py::error_already_set& error) {
                pending.error = std::make_unique<py::error_already_set>(std::move(error));
              }
            };
          }
          return client.Call(key, request, hooks);
        },
        cancel);
    return MakeResult(std::move(record));
  }

  std::string Ask(const std::string& what, uint64_t timeout_ms) {
    Pending pending;
    return Wait(pending, [&](Client& client, const CallHooks& hooks) {
      return client.AskAgent(what, timeout_ms, hooks);
    });
  }

  void Abandon() {
    if (client_) client_->Abandon();
  }
  void Close() { client_.reset(); }

 private:
  std::shared_ptr<Client> client_;
};

py::dict PathsDict() {
  try {
    const Paths paths = FindPaths();
    py::dict d;
    d["service_user"] = paths.service_user;
    d["uid"] = paths.uid;
    d["gid"] = paths.gid;
    d["home"] = paths.home;
    d["run_dir"] = paths.run_dir;
    d["state_dir"] = paths.state_dir;
    d["instance"] = paths.instance;
    d["agent_socket"] = paths.agent_socket;
    d["agent_container"] = paths.agent_container();
    return d;
  } catch (const Error& error) {
    Raise(error);
  }
}

}  // namespace
}  // namespace hutch

PYBIND11_MODULE(_core, m) {
  using namespace hutch;
  m.attr("WIRE_VERSION") = kWireVersion;
  ErrorType() = py::reinterpret_steal<py::object>(
      PyErr_NewException("hutch._core.Error", PyExc_Exception, nullptr));
  m.attr("Error") = ErrorType();
  // By value, as pybind11 asks. NOLINTNEXTLINE(performance-unnecessary-value-param)
  py::register_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const Error& error) {
      try {
        Raise(error);
      } catch (py::error_already_set& raised) {
        raised.restore();
      }
    }
  });

  py::class_<CancelToken>(m, "Cancel")
      .def(py::init<>())
      .def("cancel", &CancelToken::Cancel)
      .def_property_readonly("cancelled", &CancelToken::cancelled);

  py::class_<FunctionBlob>(m, "Function")
      .def(py::init<py::bytes>())
      .def_property_readonly("sha256", [](const FunctionBlob& f) { return f.digest; });

  py::class_<SharedMemory>(m, "SharedMemory", py::buffer_protocol())
      .def(py::init<size_t>(), py::arg("size"))
      .def_buffer([](SharedMemory& s) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(s.data()),
                               static_cast<py::ssize_t>(s.size()), false);
      });

  py::class_<PyPayload>(m, "Payload", py::buffer_protocol())
      .def_property_readonly("body_size", [](const PyPayload& p) { return p.payload->body_size(); })
      .def("__len__", [](const PyPayload& p) { return p.payload->size(); })
      .def_buffer([](PyPayload& p) {
        return py::buffer_info(reinterpret_cast<uint8_t*>(p.payload->data()),
                               static_cast<py::ssize_t>(p.payload->size()), false);
      });

  py::class_<CallResult>(m, "CallResult")
      .def_readonly("status", &CallResult::status)
      .def_readonly("limit", &CallResult::limit)
      .def_readonly("detail", &CallResult::detail)
      .def_readonly("exit_code", &CallResult::exit_code)
      .def_readonly("signal", &CallResult::signal)
      .def_readonly("payload", &CallResult::payload)
      .def_readonly("stdout", &CallResult::out)
      .def_readonly("stderr", &CallResult::err)
      .def_readonly("stdout_size", &CallResult::stdout_size)
      .def_readonly("stderr_size", &CallResult::stderr_size)
      .def_readonly("stdout_truncated", &CallResult::stdout_truncated)
      .def_readonly("stderr_truncated", &CallResult::stderr_truncated)
      .def_readonly("call_id", &CallResult::call_id)
      .def_readonly("worker_id", &CallResult::worker_id)
      .def_readonly("may_have_run", &CallResult::may_have_run)
      .def_readonly("result_size", &CallResult::result_size)
      .def_readonly("usage", &CallResult::usage)
      .def_readonly("timings", &CallResult::timings)
      .def_readonly("ended", &CallResult::ended);

  py::class_<PyClient>(m, "Client")
      .def(py::init<std::string, long>(), py::arg("socket"), py::arg("connect_uid") = -1)
      .def_property_readonly("pid", &PyClient::pid)
      .def("prepare", &PyClient::Prepare, py::arg("spec"), py::arg("timeout_ms"),
           py::arg("progress") = py::none())
      .def("warm", &PyClient::Warm, py::arg("key"), py::arg("cells"), py::arg("timeout_ms"))
      .def("call", &PyClient::Call, py::arg("key"), py::arg("meta"), py::arg("function"),
           py::arg("arguments"), py::arg("buffers"), py::arg("limits"),
           py::arg("cancel") = py::none(), py::arg("on_stdout") = py::none(),
           py::arg("on_stderr") = py::none(), py::arg("begun") = 0.0)
      .def("status", [](PyClient& c) { return c.Ask("status", 10'000); })
      .def(
          "metrics",
          [](PyClient& c, bool as_json) {
            return c.Ask(as_json ? "metrics json" : "metrics", 10'000);
          },
          py::arg("as_json") = false)
      .def("environments", [](PyClient& c) { return c.Ask("environments", 30'000); })
      .def("remove_environment",
           [](PyClient& c, const std::string& digest) {
             return c.Ask("remove " + digest, 60'000) == "removed";
           })
      .def(
          "stop_agent",
          [](PyClient& c, uint64_t drain_ms) { c.Ask("stop " + std::to_string(drain_ms), 10'000); })
      .def("abandon", &PyClient::Abandon)
      .def("close", &PyClient::Close);

  m.def("paths", &PathsDict);
  BindDecode(m);
}
