// SPDX-License-Identifier: Apache-2.0

#include "podman/transport.h"

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
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "wire/clock.h"
#include "wire/error.h"
#include "wire/fd.h"

namespace hutch {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr char kPrefix[] = "/v4.0.0/libpod";  // the oldest API we know; newer Podmans serve it too
constexpr milliseconds kLook(100);
// After so long without an answer the service is pinged, and has the same time, twice, to answer:
// a request may take minutes on a busy machine, a ping does not.
constexpr milliseconds kSilence(2000);
constexpr int kUnheard = 2;
constexpr int kTransientRetries = 8;

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

httplib::Client ClientOf(const std::string& socket_path, milliseconds timeout) {
  httplib::Client client(socket_path);
  client.set_address_family(AF_UNIX);
  client.set_url_encode(false);
  client.set_decompress(false);
  client.set_follow_location(false);
  client.set_connection_timeout(std::min<milliseconds>(timeout, seconds(10)));
  client.set_read_timeout(timeout + seconds(5));  // the watchdog is first, and knows what it was
  client.set_write_timeout(timeout + seconds(5));
  return client;
}

// `wanted` outlives it.
httplib::Request HttpRequest(const PodmanRequest& wanted) {
  httplib::Request request;
  request.method = wanted.method;
  request.path = std::string(kPrefix) + wanted.path;
  request.set_header("Host",
                     "localhost");  // httplib would send the socket's path, which Podman refuses
  request.set_header("Accept", "application/json");
  if (!wanted.json.empty()) {
    request.body = wanted.json;
    request.set_header("Content-Type", "application/json");
  } else if (wanted.tar != nullptr) {
    request.set_header("Content-Type", "application/x-tar");
    request.set_header("Transfer-Encoding", "chunked");
    request.is_chunked_content_provider_ = true;
    request.content_provider_ = [&wanted, buffer = std::vector<char>(256 << 10)](
                                    size_t, size_t, httplib::DataSink& sink) mutable {
      const size_t n = wanted.tar(buffer.data(), buffer.size());
      if (n == 0) {
        sink.done();
        return true;
      }
      return sink.write(buffer.data(), n);
    };
  }
  return request;
}

// How a request ended.
struct Ended {
  std::exception_ptr thrown;  // `tar` threw, or httplib met something it does not expect
  httplib::Error error = httplib::Error::Success;
  bool expired = false, stopped = false, silent = false;
};

// `pings`: see Watchdog.
Ended Run(httplib::Client* client, httplib::Request& request, const PodmanRequest& wanted,
          const std::function<bool()>& pings, PodmanReply* reply) {
  Ended ended;
  const NoBrokenPipe no_broken_pipe;
  const Watchdog watchdog(client, wanted.timeout, wanted.stopped, pings);
  try {
    const httplib::Result result = client->send(request);
    ended.error = result.error();
    if (result) {
      reply->status = result->status;
      reply->api_version = result->get_header_value("Libpod-API-Version");
    }
  } catch (...) {
    ended.thrown = std::current_exception();
  }
  ended.expired = watchdog.expired();
  ended.stopped = watchdog.stopped();
  ended.silent = watchdog.silent();
  return ended;
}

[[noreturn]] void Rethrow(const std::exception_ptr& thrown, const std::string& what) {
  try {
    std::rethrow_exception(thrown);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(Code::kPodman, what + " could not be read: " + e.what());
  }
}

// Whether to ask again is safe and helps: the database was busy, so that nothing was done; or,
// where nothing is changed, a process ended while Podman read about it (before 4.4, Podman takes
// ESRCH of /proc/PID/cgroup for a failure of `inspect`: its issue 16383).
bool IsTransient(const std::string& method, const PodmanReply& reply) {
  if (reply.status != 500) return false;
  const auto mentions = [&](std::string_view words) {
    return reply.body.find(words) != std::string::npos;
  };
  return mentions("database is locked") ||
         (method == "GET" && mentions("/proc/") && mentions("no such "));
}

}  // namespace

PodmanReply PodmanTransport::Send(const PodmanRequest& wanted) const {
  httplib::Client client = ClientOf(socket_path_, wanted.timeout);
  httplib::Request request = HttpRequest(wanted);
  PodmanReply reply;
  bool too_long = false;
  request.content_receiver = [&](const char* data, size_t size, uint64_t, uint64_t) {
    if (reply.body.size() + size > wanted.max_reply) {
      too_long = true;
      return false;
    }
    reply.body.append(data, size);
    if (wanted.heard) wanted.heard({data, size});
    return true;
  };
  std::function<bool()> pings;
  if (wanted.watched && wanted.tar == nullptr && !wanted.stopped)
    pings = [this] { return Pings(kSilence); };
  const Ended ended = Run(&client, request, wanted, pings, &reply);

  const std::string what =
      "Podman's answer to " + wanted.method + " " + wanted.path.substr(0, wanted.path.find('?'));
  if (ended.thrown) Rethrow(ended.thrown, what);
  if (ended.stopped)
    throw Error(Code::kCancelled, what + " was cancelled: nobody waits for it any longer");
  if (too_long) throw Error(Code::kPodman, what + " is longer than is accepted");
  if (ended.error == httplib::Error::Success) return reply;
  // A killed service cuts off its answers. Asking again is safe where nothing is changed.
  const bool died =
      wanted.method == "GET" && ended.error == httplib::Error::Read && !ended.expired && !Listens();
  if (ended.error == httplib::Error::Connection || died || ended.silent)
    throw Error(Code::kPodmanDown, "Podman's service does not answer on " + socket_path_);
  if (ended.expired) throw Error(Code::kTimeout, what + " did not come in time");
  throw Error(Code::kPodman, what + " broke off (" + httplib::to_string(ended.error) + ")");
}

PodmanReply PodmanTransport::SendPatiently(const PodmanRequest& request) const {
  for (int attempt = 0;; ++attempt) {
    PodmanReply reply = Send(request);
    if (!IsTransient(request.method, reply) || attempt == kTransientRetries) return reply;
    std::this_thread::sleep_for(Backoff(attempt));
  }
}

bool PodmanTransport::Pings(milliseconds timeout) const {
  try {
    return Send({.method = "GET",
                 .path = "/_ping",
                 .timeout = timeout,
                 .max_reply = 4096,
                 .watched = false})
        .ok();
  } catch (const std::exception&) {  // every failure is the same answer here
    return false;
  }
}

milliseconds PodmanTransport::Backoff(int attempt) {
  return milliseconds(std::min(20 << attempt, 1000));
}

bool PodmanTransport::Listens() const {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path_.copy(address.sun_path, sizeof address.sun_path - 1);
  const Fd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  return ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
         errno == EAGAIN;  // too many wait, but it runs
}

}  // namespace hutch
