// Module _core: the client and the result decoder, as thin as it can be. What a user reads is the
// typed package on top; _core.pyi is this file's interface.
//
// Every wait releases the GIL and takes it back only to run the caller's callbacks and signal
// handlers.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <sys/eventfd.h>

#include <array>
#include <atomic>
#include <csignal>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "bindings/decode.h"
#include "client/client.h"
#include "wire/egress.h"
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

// Its descriptor is made when a wait first asks for it.
class CancelToken {
 public:
  void Cancel() {
    const std::lock_guard lock(mutex_);
    cancelled_ = true;
    if (fd_) Signal();
  }
  bool cancelled() const { return cancelled_; }
  int fd() const {
    const std::lock_guard lock(mutex_);
    if (!fd_) {
      fd_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!fd_) ThrowErrno("eventfd");
      if (cancelled_) Signal();
    }
    return fd_.get();
  }

 private:
  void Signal() const {
    const uint64_t one = 1;
    if (::write(fd_.get(), &one, sizeof one) < 0) return;  // a full counter is as readable
  }

  mutable std::mutex mutex_;
  mutable Fd fd_;
  std::atomic<bool> cancelled_{false};
};

struct FunctionBlob {
  explicit FunctionBlob(const py::bytes& data)
      : blob(std::string(data)), digest(Sha256Hex(std::string(data))) {
    for (size_t i = 0; i < code.size(); ++i)
      code[i] = std::stoull(digest.substr(16 * i, 16), nullptr, 16);
  }
  Blob blob;
  std::string digest;
  std::array<uint64_t, 2> code{};  // the digest's beginning
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

// What a caller may not look at is not made.
struct CallResult {
  CallRecord record;
  const char* status = "";
  const char* limit = "";
  py::object exit_code = py::none(), signal = py::none(), payload = py::none();
  // Known to the caller only: seconds until the pool was there, and of waits before this one.
  double environment_sec = 0, worker_sec = 0, queued_sec = 0;

  const CallOutcome& outcome() const { return record.outcome; }
  py::bytes Text(int stream) const { return py::bytes(outcome().output.text(stream)); }
  std::string CallId() const {
    char id[17];
    std::snprintf(id, sizeof id, "%016llx", static_cast<unsigned long long>(outcome().call_id));
    return id;
  }
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

py::dict UsageOf(const CallResult& result) {
  const CallRecord& record = result.record;
  const CallUsage& told = record.outcome.usage;
  const bool measured = FromWarden(record);
  py::dict usage;
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
  return usage;
}

py::list NetworkOf(const CallResult& result) {
  py::list told;
  for (const NetworkRecord& r : result.record.network) {
    told.append(py::make_tuple(r.host, r.port, r.allowed, r.reason, r.suggestion, r.bytes_sent,
                               r.bytes_received, r.count));
  }
  return told;
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
  result.record = std::move(record);
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

std::vector<MountSpec> GetMounts(const py::dict& from, const char* name) {
  std::vector<MountSpec> mounts;
  for (const auto& d : Get<std::vector<py::dict>>(from, name)) {
    mounts.push_back({Get<std::string>(d, "source"), Get<std::string>(d, "destination"),
                      Get<bool>(d, "writable"), Get<bool>(d, "as_caller"),
                      Get<std::string>(d, "copy"), Get<uint64_t>(d, "device"),
                      Get<uint64_t>(d, "inode")});
  }
  return mounts;
}

PoolSpec SpecFrom(const py::dict& d) {
  PoolSpec spec;
  spec.requirements = Get<std::vector<std::string>>(d, "requirements");
  spec.python_version = Get<std::string>(d, "python_version");
  spec.platform = Get<std::string>(d, "platform");
  spec.base_id = Get<std::string>(d, "base_id");
  spec.base = Get<std::string>(d, "base");
  spec.runtime_id = Get<std::string>(d, "runtime_id");
  const auto index = Get<py::dict>(d, "index");
  spec.index = {GetText(index, "index_url"),  GetText(index, "extra_index_urls"),
                GetText(index, "http_proxy"), GetText(index, "https_proxy"),
                GetText(index, "no_proxy"),   GetText(index, "ca_bundle"),
                GetText(index, "find_links"), GetText(index, "netrc")};
  spec.allow_sdists = Get<bool>(d, "allow_sdists");
  spec.allow_urls = Get<bool>(d, "allow_urls");
  spec.constraints = Get<std::vector<std::string>>(d, "constraints");
  spec.lock = Get<std::string>(d, "lock");
  spec.links = GetMounts(d, "links");
  spec.venv = GetMounts(d, "venv");
  spec.mounts = GetMounts(d, "mounts");
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
  spec.isolation = Get<std::string>(d, "isolation");
  spec.allow_network = Get<std::vector<std::string>>(d, "allow_network");
  for (const py::handle item : Get<py::list>(d, "secrets")) {
    const auto secret = py::cast<py::dict>(item);
    spec.secrets.push_back({Get<std::string>(secret, "host"), Get<std::string>(secret, "header"),
                            Get<std::string>(secret, "value"),
                            Get<std::vector<std::string>>(secret, "paths"),
                            Get<std::vector<std::string>>(secret, "methods")});
  }
  return spec;
}

// What holds for every call of a function.
struct CallTerms {
  CallLimits limits;
  uint64_t calls_of_cell = 0;  // 0: a fresh cell for each
  double age_of_cell_sec = 0;
  uint64_t policy = 0;
  bool network = false;
};

// A call's bytes, and the Python objects that own them.
struct CallBytes {
  CallBytes(const py::bytes& meta, const py::object& function, const py::bytes& arguments,
            const py::sequence& buffers, const CallTerms& terms, double begun)
      : owned{meta, function, arguments} {
    const auto& blob = function.cast<const FunctionBlob&>();
    request.begun = TimePoint(begun);
    request.meta = std::string_view(meta);
    request.function = &blob.blob;
    request.arguments = std::string_view(arguments);
    request.limits = terms.limits;
    request.policy = terms.policy;
    request.code = blob.code;
    request.network = terms.network;
    const std::hash<std::string_view> hash;
    request.key = (hash(request.meta) * 31 + hash(blob.digest)) | 1;
    if (terms.calls_of_cell != 0) {
      request.calls_of_cell = terms.calls_of_cell;
      request.age_of_cell = std::chrono::duration_cast<Clock::duration>(
          std::chrono::duration<double>(terms.age_of_cell_sec));
    }
    for (const py::handle item : buffers) {
      exported.push_back(py::reinterpret_borrow<py::buffer>(item).request());
      const py::buffer_info& info = exported.back();
      const std::string_view bytes(static_cast<const char*>(info.ptr),
                                   static_cast<size_t>(info.size * info.itemsize));
      request.buffers.emplace_back(bytes, SharedMemory::Of(bytes));
      request.buffers.back().is_bytes = PyBytes_CheckExact(info.view()->obj);
    }
  }

  CallRequest request;
  std::array<py::object, 3> owned;
  std::vector<py::buffer_info> exported;
};

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
  double pressure() const { return client_ ? client_->pressure() : 0; }

  py::dict Prepare(const py::dict& spec_dict, uint64_t timeout_ms, const py::object& progress) {
    hutch::Prepare prepare{0, timeout_ms, SpecFrom(spec_dict)};
    prepare.limits.timeout_ms = Get<uint64_t>(spec_dict, "timeout_ms");
    prepare.limits.cpu_ms = Get<uint64_t>(spec_dict, "cpu_ms");
    prepare.limits.output_bytes = Get<uint64_t>(spec_dict, "output_bytes");
    prepare.limits.result_bytes = Get<uint64_t>(spec_dict, "result_bytes");
    prepare.shared = Get<bool>(spec_dict, "shared");
    prepare.hard_limits = Get<bool>(spec_dict, "hard_limits");
    prepare.policy = Get<uint64_t>(spec_dict, "policy");
    Pending pending;
    const Prepared done = Wait(pending, [&](Client& client, const CallHooks& hooks) {
      return client.PreparePool(
          prepare,
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

  CallResult Call(const std::string& key, const py::bytes& meta, const py::object& function,
                  const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
                  const CancelToken* cancel, const py::object& output, double begun) {
    const CallBytes bytes(meta, function, arguments, buffers, terms, begun);
    Pending pending;
    CallRecord record = Wait(
        pending,
        [&](Client& client, CallHooks& hooks) {
          if (!output.is_none()) {
            hooks.output = [&](int stream, std::string_view text) {
              const py::gil_scoped_acquire gil;
              if (pending.error) return;
              try {
                output(stream, py::bytes(text.data(), text.size()));
              } catch (py::error_already_set& error) {
                pending.error = std::make_unique<py::error_already_set>(std::move(error));
              }
            };
          }
          return client.Call(key, bytes.request, hooks);
        },
        cancel);
    return MakeResult(std::move(record));
  }

  // ---- calls that nobody waits for one by one
  uint64_t Start(const std::string& key, const py::bytes& meta, const py::object& function,
                 const py::bytes& arguments, const py::sequence& buffers, const CallTerms& terms,
                 bool output, double begun) {
    if (!flying_) flying_ = Live();
    auto bytes = std::make_shared<CallBytes>(meta, function, arguments, buffers, terms, begun);
    CallRequest request = bytes->request;
    return flying_->flights().Start(key, std::move(request), std::move(bytes), output);
  }

  void Cancel(uint64_t flight) {
    if (flying_) flying_->flights().Cancel(flight);
  }

  py::list Next(double patience_sec) {
    const std::shared_ptr<Client> client = flying_;
    py::list told;
    if (!client) return told;
    std::vector<FlightEvent> events;
    {
      const py::gil_scoped_release no_gil;
      events = client->flights().Next(
          std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_sec)));
    }
    for (FlightEvent& event : events) told.append(Told(event));
    return told;
  }

  CallResult Conclude(OpenCall& open) {
    Pending pending;
    const std::shared_ptr<Client> client = flying_ ? flying_ : Live();
    CallRecord record = [&] {
      const py::gil_scoped_release no_gil;
      return client->Conclude(open);
    }();
    return MakeResult(std::move(record));
  }

  void Land() { flying_.reset(); }

  std::string Ask(const std::string& what, uint64_t timeout_ms) {
    Pending pending;
    return Wait(pending, [&](Client& client, const CallHooks& hooks) {
      return client.AskAgent(what, timeout_ms, hooks);
    });
  }

  void Abandon() {
    if (client_) client_->Abandon();
    if (flying_) flying_->Abandon();
  }
  void Close() {
    if (flying_) flying_->flights().Stop();
    client_.reset();
  }

 private:
  // (id, 0 or 1, what it printed), (id, 2, its CallResult), (id, 3, OpenCall), (id, 4, an Error).
  static py::tuple Told(FlightEvent& event) {
    if (event.stream >= 0) return py::make_tuple(event.id, event.stream, py::bytes(event.text));
    if (event.open) return py::make_tuple(event.id, 3, std::move(event.open));
    try {
      if (event.error) Raise(*event.error);
      return py::make_tuple(event.id, 2, MakeResult(std::move(*event.record)));
    } catch (const py::error_already_set& error) {
      return py::make_tuple(event.id, 4, error.value());
    }
  }

  std::shared_ptr<Client> client_;
  std::shared_ptr<Client> flying_;  // while calls may be under way that nobody waits for
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
  m.attr("FRAME_VERSION") = static_cast<int>(kFrameVersion);
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
      .def_property_readonly("detail", [](const CallResult& r) { return r.outcome().detail; })
      .def_readonly("exit_code", &CallResult::exit_code)
      .def_readonly("signal", &CallResult::signal)
      .def_readonly("payload", &CallResult::payload)
      .def_property_readonly("stdout", [](const CallResult& r) { return r.Text(0); })
      .def_property_readonly("stderr", [](const CallResult& r) { return r.Text(1); })
      .def_property_readonly("stdout_size",
                             [](const CallResult& r) { return r.outcome().output.size(0); })
      .def_property_readonly("stderr_size",
                             [](const CallResult& r) { return r.outcome().output.size(1); })
      .def_property_readonly("stdout_truncated",
                             [](const CallResult& r) { return r.outcome().output.truncated(0); })
      .def_property_readonly("stderr_truncated",
                             [](const CallResult& r) { return r.outcome().output.truncated(1); })
      .def_property_readonly("call_id", &CallResult::CallId)
      .def_property_readonly("worker_id", [](const CallResult& r) { return r.record.worker; })
      .def_property_readonly("may_have_run", [](const CallResult&) { return true; })
      .def_property_readonly("result_size",
                             [](const CallResult& r) { return r.outcome().result_size; })
      .def_property_readonly("network", &NetworkOf)
      .def_property_readonly("usage", &UsageOf)
      .def_property_readonly("timings", &TimingsOf)
      .def_property_readonly(
          "ended",
          [](const CallResult& r) { return Seconds(r.outcome().ended.time_since_epoch()); })
      .def_readwrite("environment_sec", &CallResult::environment_sec)
      .def_readwrite("worker_sec", &CallResult::worker_sec)
      .def_readwrite("queued_sec", &CallResult::queued_sec);

  py::class_<CallTerms>(m, "Terms")
      .def(py::init([](uint64_t timeout_ms, uint64_t cpu_ms, uint64_t output_bytes,
                       uint64_t result_bytes, uint64_t queue_ms, uint64_t calls_of_cell,
                       double age_of_cell_sec, uint64_t policy, bool network) {
             return CallTerms{{timeout_ms, cpu_ms, output_bytes, result_bytes, queue_ms},
                              calls_of_cell,
                              age_of_cell_sec,
                              policy,
                              network};
           }),
           py::kw_only(), py::arg("timeout_ms"), py::arg("cpu_ms"), py::arg("output_bytes"),
           py::arg("result_bytes"), py::arg("queue_ms"), py::arg("calls_of_cell") = 0,
           py::arg("age_of_cell_sec") = 0.0, py::arg("policy") = 0, py::arg("network") = false)
      .def_property_readonly("timeout_ms", [](const CallTerms& t) { return t.limits.timeout_ms; })
      .def_property_readonly("cpu_ms", [](const CallTerms& t) { return t.limits.cpu_ms; })
      .def_property_readonly("output_bytes",
                             [](const CallTerms& t) { return t.limits.output_bytes; })
      .def_property_readonly("result_bytes",
                             [](const CallTerms& t) { return t.limits.result_bytes; })
      .def_readonly("calls_of_cell", &CallTerms::calls_of_cell)
      .def_readonly("policy", &CallTerms::policy);

  py::class_<OpenCall, std::shared_ptr<OpenCall>>(m, "OpenCall");

  py::class_<PyClient>(m, "Client")
      .def(py::init<std::string, long>(), py::arg("socket"), py::arg("connect_uid") = -1)
      .def_property_readonly("pid", &PyClient::pid)
      .def_property_readonly("pressure", &PyClient::pressure)
      .def("prepare", &PyClient::Prepare, py::arg("spec"), py::arg("timeout_ms"),
           py::arg("progress") = py::none())
      .def("warm", &PyClient::Warm, py::arg("key"), py::arg("cells"), py::arg("timeout_ms"))
      .def("call", &PyClient::Call, py::arg("key"), py::arg("meta"), py::arg("function"),
           py::arg("arguments"), py::arg("buffers"), py::arg("terms"),
           py::arg("cancel") = py::none(), py::arg("output") = py::none(), py::arg("begun") = 0.0)
      .def("start", &PyClient::Start, py::arg("key"), py::arg("meta"), py::arg("function"),
           py::arg("arguments"), py::arg("buffers"), py::arg("terms"), py::arg("output"),
           py::arg("begun"))
      .def("cancel", &PyClient::Cancel, py::arg("flight"))
      .def("next", &PyClient::Next, py::arg("patience_sec"))
      .def("conclude", &PyClient::Conclude, py::arg("open"))
      .def("land", &PyClient::Land)
      .def("status", [](PyClient& c) { return c.Ask("status", 10'000); })
      .def(
          "metrics",
          [](PyClient& c, bool as_json) {
            return c.Ask(as_json ? "metrics json" : "metrics", 10'000);
          },
          py::arg("as_json") = false)
      .def("reload", [](PyClient& c) { c.Ask("reload", 10'000); })
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

  m.def("egress_rule", [](const std::string& text) { return ToString(ParseEgressRule(text)); });
  m.def("normal_host",
        [](const std::string& name) { return NormalHost(name).value_or(std::string()); });
  m.def("paths", &PathsDict);
  BindDecode(m);
}
