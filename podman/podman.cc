// SPDX-License-Identifier: Apache-2.0

#include "podman/podman.h"

// The only file that includes cpp-httplib. Podman's replies are not trusted: they are bounded in
// bytes and time.
#include <httplib.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <semaphore>
#include <thread>
#include <utility>

#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

using Json = nlohmann::json;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kPrefix[] = "/v4.0.0/libpod";  // the oldest API we know; newer Podmans serve it too
constexpr size_t kMaxReply = 16u << 20;       // a list of 2,000 containers is about 4 MB
constexpr milliseconds kUsual = seconds(30);
constexpr milliseconds kSlow = seconds(120);  // create and start queue behind Podman's locks
constexpr milliseconds kImport = seconds(600);
constexpr milliseconds kLook(100);
// After so long without an answer the service is pinged, and has the same time, twice, to answer:
// a request may take minutes on a busy machine, a ping does not.
constexpr milliseconds kSilence(2000);
constexpr int kUnheard = 2;
constexpr int kTransientRetries = 8;
constexpr int kRemoveRetries = 12;
constexpr int kParallelStarts = 2;  // more of them only queue in Podman and make every one slower

struct Reply {
  int status = 0;
  std::string body;
  std::string api_version;  // "4.3.1"
  bool ok() const { return status >= 200 && status < 300; }
};

// Ends a request at its deadline, or when it is cancelled, whatever the peer does
// (httplib's own timeouts count from byte to byte).
class Watchdog {
 public:
  // `pings`: whether the service answers at all; nullptr: not to be asked.
  Watchdog(httplib::Client* client, milliseconds timeout, const std::function<bool()>& stopped,
           const std::function<bool()>& pings)
      : thread_([this, client, timeout, &stopped, &pings] {
          const auto deadline = Clock::now() + timeout;
          const auto done = [this] { return done_; };
          std::unique_lock lock(mutex_);
          while (stopped != nullptr && !stopped_ && Clock::now() + kLook < deadline) {
            if (changed_.wait_for(lock, kLook, done)) return;
            stopped_ = stopped();
          }
          for (int unheard = 0; pings != nullptr && !stopped_ && Clock::now() < deadline;) {
            if (changed_.wait_until(lock, std::min(deadline, Clock::now() + kSilence), done))
              return;
            lock.unlock();
            unheard = pings() ? 0 : unheard + 1;
            lock.lock();
            if (done_) return;
            if (unheard < kUnheard) continue;
            silent_ = true;
            client->stop();
            return;
          }
          if (!stopped_ && changed_.wait_until(lock, deadline, done)) return;
          expired_ = !stopped_;
          client->stop();
        }) {}
  ~Watchdog() {
    {
      const std::lock_guard lock(mutex_);
      done_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  bool expired() const { return expired_; }
  bool stopped() const { return stopped_; }
  bool silent() const { return silent_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool done_ = false;
  std::atomic<bool> expired_ = false;
  std::atomic<bool> stopped_ = false;
  std::atomic<bool> silent_ = false;
  std::thread thread_;
};

// httplib writes without MSG_NOSIGNAL: a service that dies in the middle of a request would end
// this process by SIGPIPE. So the signal is blocked for the calling thread, and consumed if it
// came.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    if (::sigismember(&before_, SIGPIPE) != 0) return;
    const timespec at_once{};
    while (::sigtimedwait(&pipe_, nullptr, &at_once) > 0) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

std::string Encode(const std::string& text) {
  constexpr char kHex[] = "0123456789ABCDEF";
  std::string out;
  for (const unsigned char c : text) {
    if (std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.' || c == '~') {
      out += static_cast<char>(c);
    } else {
      out += '%';
      out += kHex[c >> 4];
      out += kHex[c & 15];
    }
  }
  return out;
}

// A container's id or name as Podman itself defines one; nothing else may enter a path.
std::string CheckName(const std::string& name) {
  const auto valid = [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '_' || c == '.' || c == '-';
  };
  if (name.empty() || name.size() > 255 || std::isalnum(static_cast<unsigned char>(name[0])) == 0 ||
      !std::all_of(name.begin(), name.end(), valid)) {
    throw Error(Code::kInvalidArgument,
                "this is not the name of a container: \"" + name.substr(0, 64) + "\"");
  }
  return name;
}

// Podman's message for a failure, cut to one line.
std::string Reason(const Reply& reply) {
  const Json body = Json::parse(reply.body, nullptr, false);
  std::string text;
  if (body.is_object()) {
    for (const char* key : {"cause", "message"}) {
      if (body.contains(key) && body[key].is_string()) text = body[key].get<std::string>();
    }
  }
  if (text.empty()) text = reply.body;
  text = text.substr(0, 2000);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return std::to_string(reply.status) + ": " + text;
}

bool Mentions(const Reply& reply, std::string_view words) {
  return reply.body.find(words) != std::string::npos;
}
// Whether to ask again is safe and helps: the database was busy, so that nothing was done; or,
// where nothing is changed, a process ended while Podman read about it (before 4.4, Podman takes
// ESRCH of /proc/PID/cgroup for a failure of `inspect`: its issue 16383).
bool IsTransient(const std::string& method, const Reply& reply) {
  if (reply.status != 500) return false;
  return Mentions(reply, "database is locked") ||
         (method == "GET" && Mentions(reply, "/proc/") && Mentions(reply, "no such "));
}

// A service that is killed while it removes a container leaves one without storage: it is still
// listed and has to be removed, but can no longer be inspected.
bool IsHalfRemoved(const Reply& reply) {
  return reply.status == 500 && Mentions(reply, "container not known");
}

[[noreturn]] void Refuse(const std::string& what, const Reply& reply) {
  throw Error(Code::kPodman, "cannot " + what + ": Podman answered " + Reason(reply));
}

Json Parse(const std::string& what, const Reply& reply) {
  if (!reply.ok()) Refuse(what, reply);
  Json body = Json::parse(reply.body, nullptr, false);
  if (body.is_discarded())
    throw Error(Code::kPodman, "cannot " + what + ": Podman's answer is not valid JSON");
  return body;
}

// The member as text, "" when it is absent or of another type: shapes differ between Podman's
// versions.
std::string Text(const Json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int Number(const Json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer()
             ? static_cast<int>(found->get<int64_t>())
             : 0;
}

const Json& Member(const Json& object, const char* key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::map<std::string, std::string> Labels(const Json& object) {
  std::map<std::string, std::string> labels;
  if (!object.is_object()) return labels;
  for (const auto& [key, value] : object.items()) {
    if (value.is_string()) labels[key] = value.get<std::string>();
  }
  return labels;
}

milliseconds Backoff(int attempt) { return milliseconds(std::min(20 << attempt, 1000)); }

}  // namespace

struct Podman::Impl {
  std::string socket_path;
  mutable std::mutex helper_mutex;
  mutable std::string helper;  // "": not known yet
  mutable std::counting_semaphore<kParallelStarts> starts{kParallelStarts};

  using Source = std::function<size_t(char*, size_t)>;
  // A reply that is read as it comes, and may be cancelled.
  struct Stream {
    std::function<void(std::string_view)> heard;
    std::function<bool()> stopped;
  };

  bool Listens() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    socket_path.copy(address.sun_path, sizeof address.sun_path - 1);
    const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
           errno == EAGAIN;  // too many wait, but it runs
  }

  bool Pings(milliseconds timeout) const {
    try {
      return Send("GET", "/_ping", timeout, {}, nullptr, 4096, {}, false).ok();
    } catch (const std::exception&) {  // every failure is the same answer here
      return false;
    }
  }

  // One request on a connection of its own. Throws kUnavailable (nobody answers), kTimeout, kPodman
  // (a broken reply), kCancelled.
  Reply Send(const std::string& method, const std::string& path, milliseconds timeout,
             const std::string& json = {}, const Source& source = nullptr,
             size_t max_reply = kMaxReply, const Stream& stream = {}, bool watched = true) const {
    httplib::Client client(socket_path);
    client.set_address_family(AF_UNIX);
    client.set_url_encode(false);
    client.set_decompress(false);
    client.set_follow_location(false);
    client.set_connection_timeout(std::min<milliseconds>(timeout, seconds(10)));
    client.set_read_timeout(timeout + seconds(5));  // the watchdog is first, and knows what it was
    client.set_write_timeout(timeout + seconds(5));

    httplib::Request request;
    request.method = method;
    request.path = std::string(kPrefix) + path;
    request.set_header("Host",
                       "localhost");  // httplib would send the socket's path, which Podman refuses
    request.set_header("Accept", "application/json");
    if (!json.empty()) {
      request.body = json;
      request.set_header("Content-Type", "application/json");
    } else if (source != nullptr) {
      request.set_header("Content-Type", "application/x-tar");
      request.set_header("Transfer-Encoding", "chunked");
      request.is_chunked_content_provider_ = true;
      request.content_provider_ = [&source, buffer = std::vector<char>(256 << 10)](
                                      size_t, size_t, httplib::DataSink& sink) mutable {
        const size_t n = source(buffer.data(), buffer.size());
        if (n == 0) {
          sink.done();
          return true;
        }
        return sink.write(buffer.data(), n);
      };
    }
    Reply reply;
    bool too_long = false;
    request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
      if (reply.body.size() + size > max_reply) {
        too_long = true;
        return false;
      }
      reply.body.append(data, size);
      if (stream.heard) stream.heard({data, size});
      return true;
    };

    std::exception_ptr thrown;
    httplib::Error error = httplib::Error::Success;
    bool expired = false;
    bool stopped = false;
    bool silent = false;
    // Neither for a stream, which its reader watches, nor for the ping itself.
    std::function<bool()> pings;
    if (watched && source == nullptr && !stream.stopped) pings = [this] { return Pings(kSilence); };
    {
      const NoBrokenPipe no_broken_pipe;
      const Watchdog watchdog(&client, timeout, stream.stopped, pings);
      try {
        const httplib::Result result = client.send(request);
        error = result.error();
        if (result) {
          reply.status = result->status;
          reply.api_version = result->get_header_value("Libpod-API-Version");
        }
      } catch (...) {  // `source` threw, or httplib met something it does not expect
        thrown = std::current_exception();
      }
      expired = watchdog.expired();
      stopped = watchdog.stopped();
      silent = watchdog.silent();
    }
    const std::string what = "Podman's answer to " + method + " " + path.substr(0, path.find('?'));
    if (thrown) {
      try {
        std::rethrow_exception(thrown);
      } catch (const Error&) {
        throw;
      } catch (const std::exception& e) {
        throw Error(Code::kPodman, what + " could not be read: " + e.what());
      }
    }
    if (stopped) throw Error(Code::kCancelled, what + " was not waited for: it is wanted no more");
    if (too_long) throw Error(Code::kPodman, what + " is longer than is accepted");
    if (error == httplib::Error::Success) return reply;
    // A killed service cuts off its answers. Asking again is safe where nothing is changed.
    const bool died = method == "GET" && error == httplib::Error::Read && !expired && !Listens();
    if (error == httplib::Error::Connection || died || silent) {
      throw Error(Code::kPodmanDown, "Podman's service does not answer on " + socket_path);
    }
    if (expired) throw Error(Code::kTimeout, what + " did not come in time");
    throw Error(Code::kPodman, what + " broke off (" + httplib::to_string(error) + ")");
  }

  // Repeats a request that Podman refused only temporarily.
  Reply SendPatiently(const std::string& method, const std::string& path, milliseconds timeout,
                      const std::string& json = {}) const {
    for (int attempt = 0;; ++attempt) {
      Reply reply = Send(method, path, timeout, json);
      if (!IsTransient(method, reply) || attempt == kTransientRetries) return reply;
      std::this_thread::sleep_for(Backoff(attempt));
    }
  }

  // The container that a lost or refused create left behind, if it is the requested one.
  std::optional<std::string> Existing(const Podman& podman, const Json& spec) const {
    const std::string name = Text(spec, "name");
    if (name.empty()) return std::nullopt;
    const std::optional<ContainerInfo> found = podman.Inspect(name);
    if (!found || found->name != name) return std::nullopt;
    for (const auto& [key, value] : Labels(Member(spec, "labels"))) {
      const auto label = found->labels.find(key);
      if (label == found->labels.end() || label->second != value) return std::nullopt;
    }
    return found->id;
  }
};

namespace {

std::vector<ContainerInfo> ContainersOf(const Reply& reply) {
  const Json body = Parse("list containers", reply);
  std::vector<ContainerInfo> containers;
  if (!body.is_array()) return containers;  // "null" where there is none
  for (const Json& item : body) {
    ContainerInfo info;
    info.id = Text(item, "Id");
    const Json& names = Member(item, "Names");
    if (names.is_array() && !names.empty() && names[0].is_string())
      info.name = names[0].get<std::string>();
    info.state = Text(item, "State");
    info.exit_code = Number(item, "ExitCode");
    info.labels = Labels(Member(item, "Labels"));
    if (!info.id.empty()) containers.push_back(std::move(info));
  }
  return containers;
}

std::optional<ContainerInfo> Listed(const Podman& podman, const std::string& id_or_name) {
  for (ContainerInfo& info : podman.List("")) {
    if (info.id == id_or_name || info.name == id_or_name) return std::move(info);
  }
  return std::nullopt;
}

// Removes what a service left under that name. Returns whether there was anything.
bool FreeName(Podman* podman, const std::string& name) {
  for (const ContainerInfo& left : podman->ListRemains()) {
    if (left.name != name) continue;
    podman->RemoveRemains(left.id);
    return true;
  }
  return false;
}

class Turn {
 public:
  explicit Turn(std::counting_semaphore<kParallelStarts>* turns) : turns_(turns) {
    turns_->acquire();
  }
  ~Turn() { turns_->release(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  std::counting_semaphore<kParallelStarts>* turns_;
};

}  // namespace

Podman::Podman(std::string socket_path) : impl_(std::make_unique<Impl>()) {
  impl_->socket_path = std::move(socket_path);
}
Podman::~Podman() = default;

bool Podman::Ping(milliseconds timeout) const { return impl_->Pings(timeout); }

PodmanVersion Podman::Version() const {
  const Json info =
      Parse("ask Podman about the host", impl_->SendPatiently("GET", "/info", kUsual));
  const Json& host = Member(info, "host");
  PodmanVersion version;
  version.podman = Text(Member(info, "version"), "Version");
  version.api = Text(Member(info, "version"), "APIVersion");
  version.runtime = Text(Member(host, "ociRuntime"), "name");
  version.cgroup_version = Text(host, "cgroupVersion");
  for (const Json& controller : Member(host, "cgroupControllers")) {
    if (controller.is_string()) version.cgroup_controllers.push_back(controller.get<std::string>());
  }
  const Json& rootless = Member(Member(host, "security"), "rootless");
  version.rootless = rootless.is_boolean() && rootless.get<bool>();
  version.graph_driver = Text(Member(info, "store"), "graphDriverName");
  for (const char* helper : {"slirp4netns", "pasta"}) {  // Podman 5 installs only the latter
    if (version.network_helper.empty() && !Text(Member(host, helper), "executable").empty())
      version.network_helper = helper;
  }
  return version;
}

std::string Podman::NetworkHelper() const {
  const std::lock_guard lock(impl_->helper_mutex);
  if (impl_->helper.empty()) impl_->helper = Version().network_helper;
  return impl_->helper;
}

std::string Podman::UsualNetworkHelper() const {
  const Reply reply = impl_->SendPatiently("GET", "/_ping", kUsual);
  if (!reply.ok()) Refuse("reach Podman", reply);
  return std::atoi(reply.api_version.c_str()) < 5 ? "slirp4netns" : "pasta";
}

std::string Podman::Create(const std::string& spec_json) {
  const Json spec = Json::parse(spec_json, nullptr, false);
  if (!spec.is_object()) throw Error(Code::kInvalidArgument, "a container's spec is a JSON object");
  const Turn turn(&impl_->starts);
  Reply reply;
  try {
    reply = impl_->SendPatiently("POST", "/containers/create", kSlow, spec_json);
  } catch (const Error& error) {
    // The answer was lost; the container may be there.
    if (error.code() == Code::kPodmanDown) throw;
    if (const auto id = impl_->Existing(*this, spec)) return *id;
    throw;
  }
  if (!reply.ok() && (reply.status == 409 || Mentions(reply, "already in use"))) {
    if (const auto id = impl_->Existing(*this, spec)) return *id;
    // Nobody else creates one of that name, so it is not one that is just being made.
    if (FreeName(this, Text(spec, "name"))) {
      reply = impl_->SendPatiently("POST", "/containers/create", kSlow, spec_json);
    }
  }
  const std::string id = Text(Parse("create a container", reply), "Id");
  if (id.empty())
    throw Error(Code::kPodman, "cannot create a container: Podman's answer has no Id");
  return id;
}

void Podman::Start(const std::string& id) {
  const Turn turn(&impl_->starts);
  const Reply reply =
      impl_->SendPatiently("POST", "/containers/" + CheckName(id) + "/start", kSlow);
  if (!reply.ok() && reply.status != 304) Refuse("start " + id, reply);  // 304: it runs already
}

void Podman::Kill(const std::string& id, const std::string& signal) {
  const Reply reply = impl_->SendPatiently(
      "POST", "/containers/" + CheckName(id) + "/kill?signal=" + Encode(signal), kUsual);
  const bool gone = reply.status == 404 || reply.status == 409 || Mentions(reply, "state improper");
  if (!reply.ok() && !gone) Refuse("kill " + id, reply);
}

void Podman::Rename(const std::string& id, const std::string& name) {
  const Reply reply = impl_->SendPatiently(
      "POST", "/containers/" + CheckName(id) + "/rename?name=" + Encode(CheckName(name)), kUsual);
  if (!reply.ok()) Refuse("rename " + id, reply);
}

void Podman::Remove(const std::string& id) {
  CheckName(id);
  std::optional<ContainerInfo> info = Inspect(id);
  if (!info) return;
  if (info->state == "running" || info->state == "paused" || info->state == "stopping") {
    try {
      Kill(id);
    } catch (const Error&) {
      // The forced delete kills too; this one only makes it quick.
    }
    // Podman sleeps 100 ms at a time for a container that still runs, so it should be dead before
    // Podman checks.
    for (int turn = 0; turn < 40; ++turn) {
      info = Inspect(id);
      if (!info) return;
      if (info->state != "running" && info->state != "stopping") break;
      std::this_thread::sleep_for(milliseconds(5));
    }
  }
  Reply reply;
  for (int attempt = 0; attempt < kRemoveRetries; ++attempt) {
    reply = impl_->Send("DELETE", "/containers/" + id + "?force=true&v=true&timeout=0", kSlow);
    if (reply.status == 404) return;
    if (!Inspect(id)) return;  // also after a 200: Podman 4 then hides a failure inside the answer
    if (!reply.ok() && reply.status != 409 && reply.status != 500) break;
    std::this_thread::sleep_for(Backoff(attempt));
  }
  Refuse("remove " + id, reply);
}

std::optional<ContainerInfo> Podman::Inspect(const std::string& id_or_name) const {
  const Reply reply =
      impl_->SendPatiently("GET", "/containers/" + CheckName(id_or_name) + "/json", kUsual);
  if (reply.status == 404) return std::nullopt;
  if (IsHalfRemoved(reply)) return Listed(*this, id_or_name);
  const Json body = Parse("inspect " + id_or_name, reply);
  ContainerInfo info;
  info.id = Text(body, "Id");
  info.name = Text(body, "Name");
  info.state = Text(Member(body, "State"), "Status");
  info.exit_code = Number(Member(body, "State"), "ExitCode");
  info.pid = Number(Member(body, "State"), "Pid");
  info.labels = Labels(Member(Member(body, "Config"), "Labels"));
  if (info.id.empty())
    throw Error(Code::kPodman, "cannot inspect " + id_or_name + ": Podman's answer has no Id");
  return info;
}

std::vector<ContainerInfo> Podman::List(const std::string& label) const {
  const Json filters = {{"label", {label}}};
  return ContainersOf(impl_->SendPatiently(
      "GET",
      "/containers/json?all=true" + (label.empty() ? "" : "&filters=" + Encode(filters.dump())),
      kUsual));
}

std::vector<ContainerInfo> Podman::ListRemains() const {
  std::vector<ContainerInfo> found =
      ContainersOf(impl_->SendPatiently("GET", "/containers/json?all=true&external=true", kUsual));
  std::erase_if(found, [](const ContainerInfo& info) { return info.state != "storage"; });
  return found;
}

void Podman::RemoveRemains(const std::string& id) {
  const Reply reply =
      impl_->SendPatiently("DELETE", "/containers/" + CheckName(id) + "?force=true", kSlow);
  if (!reply.ok() && reply.status != 404) Refuse("remove " + id, reply);
}

std::string Podman::Logs(const std::string& id, size_t max_bytes) const {
  const Reply reply = impl_->SendPatiently(
      "GET", "/containers/" + CheckName(id) + "/logs?stdout=true&stderr=true&tail=400", kUsual);
  if (reply.status == 404) return {};
  if (!reply.ok()) Refuse("read the logs of " + id, reply);
  // Frames: stream (1 byte), three zeros, length (4 bytes, big-endian), then the text.
  std::string text;
  size_t at = 0;
  while (at + 8 <= reply.body.size()) {
    const auto byte = [&](size_t i) {
      return static_cast<size_t>(static_cast<unsigned char>(reply.body[at + i]));
    };
    const size_t length = byte(4) << 24 | byte(5) << 16 | byte(6) << 8 | byte(7);
    at += 8;
    const size_t take = std::min(length, reply.body.size() - at);
    text.append(reply.body, at, take);
    at += take;
  }
  if (text.size() > max_bytes) text.erase(0, text.size() - max_bytes);
  return text;
}

std::optional<int> Podman::WaitExit(const std::string& id, milliseconds timeout) const {
  const auto deadline = Clock::now() + timeout;
  milliseconds pause(5);
  for (;;) {
    const std::optional<ContainerInfo> info = Inspect(id);
    if (!info) throw Error(Code::kPodman, "cannot wait for " + id + ": the container is gone");
    if (info->state == "exited" || info->state == "stopped") return info->exit_code;
    if (Clock::now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, milliseconds(100));
  }
}

std::optional<std::string> Podman::ImageId(const std::string& reference) const {
  const Reply reply = impl_->SendPatiently("GET", "/images/" + Encode(reference) + "/json", kUsual);
  if (reply.status == 404) return std::nullopt;
  std::string id = Text(Parse("inspect the image " + reference, reply), "Id");
  if (id.empty())
    throw Error(Code::kPodman,
                "cannot inspect the image " + reference + ": Podman's answer has no Id");
  return id;
}

std::optional<ImageInfo> Podman::InspectImage(const std::string& reference) const {
  const Reply reply = impl_->SendPatiently("GET", "/images/" + Encode(reference) + "/json", kUsual);
  if (reply.status == 404) return std::nullopt;
  const Json body = Parse("inspect the image " + reference, reply);
  ImageInfo info{Text(body, "Id"), Text(body, "Architecture"), Text(body, "Os"),
                 Labels(Member(body, "Annotations"))};
  if (info.id.empty())
    throw Error(Code::kPodman,
                "cannot inspect the image " + reference + ": Podman's answer has no Id");
  return info;
}

void Podman::PullImage(const std::string& reference, bool verify_tls, milliseconds timeout,
                       const std::function<void(const std::string&)>& heard,
                       const std::function<bool()>& stopped) {
  const std::string path = "/images/pull?policy=missing&reference=" + Encode(reference) +
                           "&tlsVerify=" + (verify_tls ? "true" : "false");
  std::string rest, failure;
  bool pulled = false;
  // One JSON value a line, and status 200 before Podman knows how it ends.
  const auto read = [&](std::string_view piece) {
    rest += piece;
    size_t begin = 0;
    for (size_t end; (end = rest.find('\n', begin)) != std::string::npos; begin = end + 1) {
      const Json item = Json::parse(rest.substr(begin, end - begin), nullptr, false);
      if (const std::string text = Text(item, "error"); !text.empty()) failure = text;
      if (!Text(item, "id").empty()) pulled = true;
      if (const std::string text = Text(item, "stream"); heard && !text.empty()) heard(text);
    }
    rest.erase(0, begin);
  };
  const Reply reply =
      impl_->Send("POST", path, timeout, {}, nullptr, kMaxReply, Impl::Stream{read, stopped});
  if (!reply.ok()) failure = Reason(reply);
  if (failure.empty() && !pulled) failure = "Podman's answer broke off";
  if (failure.empty()) return;
  failure = failure.substr(0, 2000);
  std::replace(failure.begin(), failure.end(), '\n', ' ');
  throw Error(Code::kPodman, failure);
}

std::string Podman::ImportImage(const std::string& reference,
                                const std::function<size_t(char*, size_t)>& read,
                                const std::vector<std::string>& changes) {
  std::string path = "/images/import?reference=" + Encode(reference);
  for (const std::string& change : changes) path += "&changes=" + Encode(change);
  const std::string id =
      Text(Parse("import an image", impl_->Send("POST", path, kImport, {}, read)), "Id");
  if (id.empty()) throw Error(Code::kPodman, "cannot import an image: Podman's answer has no Id");
  return id;
}

void Podman::RemoveImage(const std::string& id_or_reference) {
  const Reply reply =
      impl_->SendPatiently("DELETE", "/images/" + Encode(id_or_reference) + "?force=false", kSlow);
  if (!reply.ok() && reply.status != 404) Refuse("remove image " + id_or_reference, reply);
}

std::vector<std::string> Podman::ListImages(const std::string& prefix) const {
  const Json body = Parse("list images", impl_->SendPatiently("GET", "/images/json", kUsual));
  std::vector<std::string> found;
  if (!body.is_array()) return found;
  for (const Json& item : body) {
    const Json& tags = Member(item, "RepoTags");
    if (!tags.is_array()) continue;
    for (const Json& tag : tags) {
      if (tag.is_string() && tag.get<std::string>().starts_with(prefix))
        found.push_back(tag.get<std::string>());
    }
  }
  return found;
}

}  // namespace hutch
