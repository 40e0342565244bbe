// SPDX-License-Identifier: Apache-2.0

#include "bindings/client.h"

#include <cstring>
#include <limits>
#include <unordered_map>

#include "bindings/gil.h"

namespace hutch {
// An error raised by a callback during a wait: kept until the wait is over, then raised.
struct Pending {
  std::unique_ptr<py::error_already_set> error;

  // Runs Python code, unless an earlier call of it has raised.
  template <class Work>
  void Run(const Work& work) {
    const WithGil gil;
    if (error) return;
    try {
      work();
    } catch (py::error_already_set& raised) {
      error = std::make_unique<py::error_already_set>(std::move(raised));
    }
  }
};

namespace {

bool Interrupted(Pending& pending) {
  const WithGil gil;
  if (pending.error) return true;
  if (PyErr_CheckSignals() == 0) return false;
  pending.error = std::make_unique<py::error_already_set>();
  return true;
}

double SecondsLeft(Clock::duration left) {
  return left == Clock::duration::max() ? std::numeric_limits<double>::infinity() : Seconds(left);
}

// Of what Python gives; none of None.
Dialogue DialogueOf(Pending& pending, const py::object& dialogue) {
  if (dialogue.is_none()) return nullptr;
  return [&](bool asks, const std::string& data, size_t body_size,
             const StopClock& stop_clock) -> std::optional<std::string> {
    std::optional<std::string> pickled;
    pending.Run([&] {
      const auto clock = std::make_shared<const StopClock*>(&stop_clock);
      const py::cpp_function stop([clock](bool begin) {
        if (*clock == nullptr) return 0.0;  // the message is answered
        const WithoutGil no_gil;
        return SecondsLeft((**clock)(begin));
      });
      const auto forget = std::shared_ptr<void>(nullptr, [&](void*) { *clock = nullptr; });
      const py::object reply = dialogue(asks, py::bytes(data), body_size, stop);
      if (py::isinstance<py::bytes>(reply)) pickled = reply.cast<std::string>();
    });
    return pickled;
  };
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

void Read(const py::dict& from, const char* name, IndexSettings& index) {
  const auto d = Get<py::dict>(from, name);
  index = {GetText(d, "index_url"),    GetText(d, "extra_index_urls"),
           GetText(d, "http_proxy"),   GetText(d, "https_proxy"),
           GetText(d, "no_proxy"),     GetText(d, "ca_bundle"),
           GetText(d, "find_links"),   GetText(d, "netrc"),
           GetText(d, "npm_sources"),  GetText(d, "npm_credentials"),
           GetText(d, "npm_ca_bundle")};
}

void Read(const py::dict& from, const char* name, std::vector<MountSpec>& mounts) {
  for (const auto& d : Get<std::vector<py::dict>>(from, name)) {
    mounts.push_back({Get<std::string>(d, "source"), Get<std::string>(d, "destination"),
                      Get<bool>(d, "writable"), Get<bool>(d, "as_caller"),
                      Get<std::string>(d, "copy"), Get<uint64_t>(d, "device"),
                      Get<uint64_t>(d, "inode")});
  }
}

void Read(const py::dict& from, const char* name, std::vector<SecretRule>& secrets) {
  for (const auto& d : Get<std::vector<py::dict>>(from, name)) {
    secrets.push_back({Get<std::string>(d, "host"), Get<std::string>(d, "header"),
                       Get<std::string>(d, "value"), Get<std::vector<std::string>>(d, "paths"),
                       Get<std::vector<std::string>>(d, "methods")});
  }
}

void Read(const py::dict& from, const char* name, Isolation& isolation) {
  const auto found = IsolationFrom(Get<std::string>(from, name));
  if (!found) throw py::value_error(std::string("wrong value of field: ") + name);
  isolation = *found;
}

template <class T>
void Read(const py::dict& from, const char* name, T& value) {
  value = Get<T>(from, name);
}

PoolSpec SpecFrom(const py::dict& d) {
  PoolSpec spec;
  ForEachField(spec, [&](const char* name, auto& member) { Read(d, name, member); });
  return spec;
}

template <class Work>
auto Wait(const std::shared_ptr<Client>& client, Pending& pending, const Work& work,
          const CancelToken* cancel = nullptr) {
  CallHooks hooks;
  hooks.cancel_fd = cancel == nullptr ? -1 : cancel->fd();
  hooks.interrupted = [&] { return Interrupted(pending); };
  try {
    const auto run = [&] {
      const WithoutGil no_gil;
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

// Both outlive the wait.
void SetOutput(CallHooks& hooks, Pending& pending, const PyOutput& output) {
  if (!output) return;
  hooks.output = [&](int stream, std::string_view text) {
    pending.Run([&] { output(stream, py::bytes(text.data(), text.size())); });
  };
}

// (id, 0 or 1, what it printed), (id, 2, its CallResult), (id, 3, OpenCall), (id, 4, an Error).
py::tuple ToTuple(CallEvent& event) {
  if (event.stream >= 0) return py::make_tuple(event.id, event.stream, py::bytes(event.text));
  if (event.open) return py::make_tuple(event.id, 3, std::move(event.open));
  try {
    if (event.error) Raise(*event.error);
    return py::make_tuple(event.id, 2, MakeResult(std::move(*event.record)));
  } catch (const py::error_already_set& error) {
    return py::make_tuple(event.id, 4, error.value());
  }
}

}  // namespace

Clock::time_point TimePoint(double monotonic_sec) {
  return Clock::time_point(
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(monotonic_sec)));
}

FunctionBlob::FunctionBlob(const py::bytes& data)
    : blob(std::string(data)), digest(Sha256(blob.bytes())) {
  for (size_t i = 0; i < 8 * code.size(); ++i) code[i / 8] = code[i / 8] << 8 | digest[i];
}

const Sha256Digest& FunctionBlob::IdentityWith(const py::bytes& meta, uint64_t policy,
                                               bool shared) const {
  for (const Known& one : known_) {
    if (one.meta.is(meta) && one.policy == policy && one.shared == shared) return one.identity;
  }
  if (known_.size() == kMostKnown) known_.erase(known_.begin());
  const Sha256Digest identity = IdentityOf(std::string_view(meta), digest, policy, shared);
  known_.push_back({meta, policy, shared, identity});
  return known_.back().identity;
}

CallBytes::CallBytes(const py::bytes& meta, const py::object& function, const py::bytes& arguments,
                     const py::sequence& buffers, const CallTerms& terms, Clock::time_point begun,
                     bool of_session)
    : owned{meta, function, arguments} {
  const auto& blob = function.cast<const FunctionBlob&>();
  request.begun = begun;
  request.meta = std::string_view(meta);
  request.function = &blob.blob;
  request.arguments = std::string_view(arguments);
  request.limits = terms.limits;
  request.policy = terms.policy;
  request.code = blob.code;
  request.network = terms.network;
  if (!of_session)
    request.identity = blob.IdentityWith(meta, terms.policy, terms.calls_of_cell != 0);
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

PyClient::PyClient(const std::string& socket, long uid) {
  const WithoutGil no_gil;
  client_ = std::make_shared<Client>(socket, uid);
}

std::shared_ptr<Client> PyClient::Live() const {
  if (!client_) Raise(Error(Code::kUnavailable, "this connection is closed"));
  return client_;
}

py::dict PyClient::Prepare(const py::dict& spec, uint64_t timeout_ms, const py::object& progress,
                           bool no_pool) {
  hutch::Prepare prepare{0, timeout_ms, SpecFrom(spec)};
  prepare.limits.timeout_ms = Get<uint64_t>(spec, "timeout_ms");
  prepare.limits.cpu_ms = Get<uint64_t>(spec, "cpu_ms");
  prepare.limits.output_bytes = Get<uint64_t>(spec, "output_bytes");
  prepare.limits.result_bytes = Get<uint64_t>(spec, "result_bytes");
  prepare.shared = Get<bool>(spec, "shared");
  prepare.hard_limits = Get<bool>(spec, "hard_limits");
  prepare.policy = Get<uint64_t>(spec, "policy");
  prepare.no_pool = no_pool;
  Pending pending;
  const PoolReady done = Wait(Live(), pending, [&](Client& client, const CallHooks& hooks) {
    return client.PreparePool(
        prepare,
        [&](const Progress& step) {
          if (progress.is_none()) return;
          pending.Run([&] { progress(step.stage, step.text, step.done, step.total); });
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

uint64_t PyClient::Warm(const std::string& key, int64_t cells, uint64_t timeout_ms) {
  Pending pending;
  return Wait(Live(), pending, [&](Client& client, const CallHooks& hooks) {
    return client.WarmPool(key, cells, timeout_ms, hooks);
  });
}

CallRecord PyClient::Call(const std::string& key, const CallRequest& request,
                          const CancelToken* cancel, const PyOutput& output) {
  Pending pending;
  return Wait(
      Live(), pending,
      [&](Client& client, CallHooks& hooks) {
        SetOutput(hooks, pending, output);
        return client.Call(key, request, hooks);
      },
      cancel);
}

CallRecord PyClient::CallWithDialogue(const std::string& key, CallRequest request,
                                      const CancelToken* cancel, const PyOutput& output,
                                      const py::object& dialogue) {
  Pending pending;
  const Dialogue answer = DialogueOf(pending, dialogue);
  if (answer) request.dialogue = &answer;
  return Wait(
      Live(), pending,
      [&](Client& client, CallHooks& hooks) {
        SetOutput(hooks, pending, output);
        return client.Call(key, request, hooks);
      },
      cancel);
}

std::unique_ptr<PySession> PyClient::MakeSession(const std::string& key, uint64_t idle_ms,
                                                 const std::string& id) const {
  return std::make_unique<PySession>(Live(), key, idle_ms, id);
}

struct PyTurns::Begun {
  std::unique_ptr<CallBytes> bytes;
  PyOutput output;
  py::object told;  // the caller's dialogue
  Pending pending{};
  Dialogue dialogue{};
};

PyTurns::PyTurns(std::shared_ptr<Client> client) : client_(std::move(client)) {}

PyTurns::~PyTurns() = default;

void PyTurns::Forget() { begun_.reset(); }

void PyTurns::Begin(std::unique_ptr<CallBytes> bytes, PyOutput output, const py::object& dialogue,
                    const CancelToken* cancel) {
  auto begun = std::make_unique<Begun>(Begun{std::move(bytes), std::move(output), dialogue});
  begun->dialogue = DialogueOf(begun->pending, begun->told);
  if (begun->dialogue) begun->bytes->request.dialogue = &begun->dialogue;
  Wait(
      client_, begun->pending,
      [&](Client&, CallHooks& hooks) {
        SetOutput(hooks, begun->pending, begun->output);
        turns().Begin(begun->bytes->request, hooks);
        return 0;
      },
      cancel);
  begun_ = std::move(begun);
}

py::object PyTurns::Turn() {
  std::optional<Question> asked;
  const bool over = [&] {
    const WithoutGil no_gil;
    return turns().Turn(asked);
  }();
  if (over) return py::none();
  if (asked) return py::make_tuple(py::bytes(asked->data), asked->body_size, asked->number);
  if (begun_->pending.error && Cancel()) return py::none();
  return py::float_(Seconds(std::max(Clock::duration{}, turns().next() - Clock::now())));
}

bool PyTurns::Answer(uint64_t number, const py::object& answer) {
  std::optional<std::string> sent;
  if (!answer.is_none()) sent = answer.cast<std::string>();
  const WithoutGil no_gil;
  return turns().Answer(number, sent);
}

bool PyTurns::Cancel() {
  const WithoutGil no_gil;
  return turns().Cancel();
}

int PyTurns::turn_fd() {
  try {
    return turns().fd();
  } catch (const Error& error) {
    Raise(error);
  }
}

CallRecord PyTurns::End() {
  const std::unique_ptr<Begun> begun = std::move(begun_);
  if (!begun) Raise(Error(Code::kWorkerFailed, "no call is under way"));
  return Wait(client_, begun->pending, [&](Client&, CallHooks&) { return turns().End(); });
}

PyCall::~PyCall() {
  Close();
  if (owner_ != ::getpid()) {
    [[maybe_unused]] const PoolCall* parents = call_.release();
  }
}

void PyCall::Close() {
  if (owner_ != ::getpid()) return;  // locks may be held by threads that are not here
  {
    const WithoutGil no_gil;
    call_->Close();
  }
  Forget();
}

PySession::PySession(const std::shared_ptr<Client>& client, const std::string& key,
                     uint64_t idle_ms, const std::string& id)
    : PyTurns(client), session_(client->MakeSession(key, idle_ms, id)) {}

CallRecord PySession::Call(CallRequest request, const CancelToken* cancel, const PyOutput& output,
                           const py::object& dialogue) {
  Pending pending;
  const Dialogue answer = DialogueOf(pending, dialogue);
  if (answer) request.dialogue = &answer;
  return Wait(
      client(), pending,
      [&](Client&, CallHooks& hooks) {
        SetOutput(hooks, pending, output);
        return session_->Call(request, hooks);
      },
      cancel);
}

py::object PySession::Exchange(const py::bytes& answer) {
  const auto sent = answer.cast<std::string>();
  const std::optional<Question> asked = [&] {
    const WithoutGil no_gil;
    return session_->Exchange(sent);
  }();
  if (!asked) return py::none();
  return py::make_tuple(py::bytes(asked->data), asked->body_size);
}

double PySession::TimeLeft() const { return SecondsLeft(session_->TimeLeft()); }

bool PySession::HasEnded() {
  const WithoutGil no_gil;
  return session_->HasEnded();
}

bool PySession::IsUnsettled() {
  const WithoutGil no_gil;
  return session_->IsUnsettled();
}

void PySession::Settle() {
  const WithoutGil no_gil;
  session_->Settle();
}

bool PySession::Restart() {
  const WithoutGil no_gil;
  return session_->Restart();
}

void PySession::TellCommand(uint64_t id, const std::string& ending, const std::string& limit,
                            double run_sec, double cpu_sec, uint64_t policy) {
  CallStats stats{.ending = Ending::kDied, .call_id = id, .policy = policy};
  if (ending == "returned") stats.ending = Ending::kReturned;
  if (ending == "raised") stats.ending = Ending::kRaised;
  if (ending == "cancelled") stats.ending = Ending::kCancelled;
  for (uint32_t known = kLimitTime; known <= kLimitDisk; ++known) {
    if (ending == "limit" && limit == NameOfLimit(known)) stats.ending = EndingOfLimit(known);
  }
  stats.run_us = static_cast<uint64_t>(run_sec * 1e6);
  const WithoutGil no_gil;
  session_->TellCommand(stats, static_cast<uint64_t>(std::clamp(cpu_sec, 0.0, 1e9) * 1e6));
}

std::optional<std::pair<CallResult, bool>> PySession::LastEnd(uint64_t since) {
  const std::optional<Session::End> end = session_->LastEnd(since);
  if (!end) return std::nullopt;
  CallRecord record;
  record.report = end->report;
  record.worker = session_->worker();
  record.begun = record.outcome.sent = record.outcome.ended = Clock::now();
  return std::pair(MakeResult(std::move(record)), end->during_call);
}

void PySession::Close() {
  {
    const WithoutGil no_gil;
    session_->Close();
  }
  Forget();  // what may refer to this
}

uint64_t PyClient::Start(const std::string& key, const py::bytes& meta, const py::object& function,
                         const py::bytes& arguments, const py::sequence& buffers,
                         const CallTerms& terms, bool output, double begun) {
  if (!background_) background_ = Live();
  auto bytes =
      std::make_shared<CallBytes>(meta, function, arguments, buffers, terms, TimePoint(begun));
  CallRequest request = bytes->request;
  return background_->in_flight().Start(key, std::move(request), std::move(bytes), output);
}

void PyClient::Cancel(uint64_t call) {
  if (background_) background_->in_flight().Cancel(call);
}

py::list PyClient::Next(double patience_sec) {
  const std::shared_ptr<Client> client = background_;
  py::list list;
  if (!client) return list;
  std::vector<CallEvent> events;
  {
    const WithoutGil no_gil;
    events = client->in_flight().Next(
        std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(patience_sec)));
  }
  for (CallEvent& event : events) list.append(ToTuple(event));
  return list;
}

CallResult PyClient::Conclude(OpenCall& open) {
  const std::shared_ptr<Client> client = background_ ? background_ : Live();
  CallRecord record = [&] {
    const WithoutGil no_gil;
    return client->Conclude(open);
  }();
  return MakeResult(std::move(record));
}

std::string PyClient::Ask(const std::string& what, uint64_t timeout_ms) {
  Pending pending;
  return Wait(Live(), pending, [&](Client& client, const CallHooks& hooks) {
    return client.AskAgent(what, timeout_ms, hooks);
  });
}

void PyClient::Abandon() {
  if (client_) client_->Abandon();
  if (background_) background_->Abandon();
}

void PyClient::Close() {
  if (background_) background_->in_flight().Stop();
  client_.reset();
}

PyStopNotice::PyStopNotice(const std::string& socket, long uid) {
  const WithoutGil no_gil;
  notice_ = std::make_unique<StopNotice>(socket, uid);
}

py::object PyStopNotice::Read() {
  const auto left = notice_->Read();
  return left ? py::int_(left->count()) : py::object(py::none());
}

}  // namespace hutch
