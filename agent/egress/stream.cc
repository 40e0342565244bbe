// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/stream.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "wire/error.h"

namespace hutch {
namespace {

// Sends a short answer, without waiting: a reader whose buffer is full does not get it.
void SendAll(int fd, const std::string& text) {
  if (!text.empty() && ::send(fd, text.data(), text.size(), MSG_NOSIGNAL | MSG_DONTWAIT) < 0)
    return;
}

}  // namespace

Stream::Stream(EgressShared& shared, Owner& owner, uint64_t id)
    : shared_(shared),
      owner_(owner),
      id_(id),
      relay_(shared.buffer, owner, record_),
      begun_(Clock::now()) {
  ++shared_.streams;
}

Stream::~Stream() { Close(); }

void Stream::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  --shared_.streams;
  relay_.Close(shared_.loop);
  if (recorded_) owner_.Note(record_);
  recorded_ = false;
}

void Stream::Finish() {
  const auto keep = shared_from_this();
  if (state_ == State::kClosed) return;
  if (!handed_over_) owner_.Reject(id_);
  Close();
  owner_.Ended(id_);
}

// Gives the forwarder one end of a new pair.
bool Stream::HandOver() {
  if (handed_over_) return true;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) {
    record_.reason = std::string("the proxy has no descriptors left: ") + std::strerror(errno);
    record_.allowed = false;
    recorded_ = true;
    return false;
  }
  Fd& ours = relay_.cell().fd;
  ours = Fd(ends[0]);
  Fd theirs(ends[1]);
  const int size = StreamBuffer(shared_.streams);
  ::setsockopt(ours.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  ::setsockopt(theirs.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
  handed_over_ = owner_.HandOver(id_, std::move(theirs));
  return handed_over_;
}

void Stream::OpenTarget(const EgressTarget& target) {
  if (target.tls_from_proxy && !HandOver()) return Finish();
  Decide({target.host, target.port, false});
}

void Stream::OpenProxy() {
  if (!HandOver()) return Finish();
  proxy_.emplace();
  Watch();
}

// Ends the stream, with an answer to the client where the protocol has one, and in the record.
void Stream::Refuse(const Refusal& refusal, bool denied, std::string host) {
  const auto keep = shared_from_this();
  if (denied) {
    record_.allowed = false;
    record_.reason = refusal.reason;
    if (!host.empty()) {
      record_.host = std::move(host);
      record_.suggestion = HostPort(record_.host, record_.port);
    }
  } else {
    record_.allowed = true;  // it was the network that failed
    if (record_.reason.empty()) record_.reason = refusal.reason;
  }
  recorded_ = !record_.host.empty() || denied;
  if (!handed_over_) return Finish();
  const bool http = relay_.gate() || with_secret_ ? to_.port == kHttpPort : false;
  std::string text;
  if (state_ != State::kRelay) {
    text = proxy_ ? proxy_->Refused(refusal) : with_secret_ ? HttpAnswer(refusal) : std::string();
  } else if (http && refusal.status != 0 && record_.bytes_received == 0) {
    text = HttpAnswer(refusal);
  }
  Answer(text);
}

// Sends the answer, and closes when the client has closed or after a while: if its bytes were left
// unread, the kernel would discard our answer.
void Stream::Answer(const std::string& text) {
  if (text.empty()) return Finish();
  SendAll(relay_.cell().fd.get(), text);
  ::shutdown(relay_.cell().fd.get(), SHUT_WR);
  state_ = State::kAnswering;
  relay_.server().Unwatch(shared_.loop);
  relay_.server().fd.reset();
  begun_ = Clock::now();
  Watch();
}

void Stream::Decide(Authority to) {
  to_ = std::move(to);
  record_.host = to_.host;
  record_.port = to_.port;
  record_.suggestion.clear();
  with_secret_ =
      to_.port == kHttpPort && !to_.literal && !owner_.policy().SecretsOf(to_.host).empty();
  if (!owner_.policy().MayAsk(to_)) {
    record_.suggestion = HostPort(to_.host, to_.port);
    return Refuse({403, HostPort(to_.host, to_.port) + " is not in allow_network"}, true);
  }
  if (with_secret_ && shared_.tls == nullptr)
    return Refuse({502, "TLS is not available: " + shared_.tls_error}, false);
  StartLookup();
}

void Stream::StartLookup() {
  state_ = State::kResolving;
  begun_ = relay_.activity().last = Clock::now();
  Watch();
  if (to_.literal) return OnResolved({{ParseIp(to_.host).value()}, {}});
  const EgressLimits& limits = shared_.limits;
  if (owner_.lookups()->asked() >= limits.lookups_asked)
    return Refuse({429, "too many names are being resolved"}, false);
  shared_.resolver.Start(owner_.lookups(), to_.host, limits.lookups,
                         [self = weak_from_this()](const Resolved& resolved) {
                           const auto stream = self.lock();
                           if (stream && stream->state_ == State::kResolving)
                             stream->OnResolved(resolved);
                         });
}

// The only place where addresses are vetted; no other address is ever dialled.
void Stream::OnResolved(const Resolved& resolved) {
  std::string why;
  std::string refused;
  for (const IpAddress& address : resolved.addresses) {
    std::optional<std::string> bad = Vet(address, owner_.policy().named);
    if (!bad && IsOwnAddress(address) && !owner_.policy().NamesOwnAddress(address))
      bad = "this host's own address";
    if (!bad) {
      dialling_.addresses.push_back(address);
    } else if (why.empty()) {
      why = *bad;
      refused = address.ToText();
    }
  }
  if (!dialling_.addresses.empty()) return Dial();
  if (refused.empty()) {
    return Refuse({502, to_.host + " did not resolve: " + resolved.error}, false);
  }
  const bool v6 = refused.find(':') != std::string::npos;
  record_.suggestion = refused + (v6 ? "/128" : "/32");
  if (to_.literal) record_.suggestion = HostPort(refused, to_.port);
  Refuse(
      {403, (to_.literal ? refused + " is " : to_.host + " resolves to " + refused + ": ") + why},
      true);
}

void Stream::Dial() {
  state_ = State::kConnecting;
  Relay::End& server = relay_.server();
  while (dialling_.next < dialling_.addresses.size()) {
    const IpAddress& address = dialling_.addresses[dialling_.next++];
    server.Unwatch(shared_.loop);
    server.fd = Fd(::socket(address.v6 ? AF_INET6 : AF_INET,
                            SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!server.fd) {
      dialling_.error = std::strerror(errno);
      continue;
    }
    const int on = 1;
    ::setsockopt(server.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_storage to;
    const unsigned size = ToSocketAddress(address, with_secret_ ? kHttpsPort : to_.port, &to);
    dialling_.begun = Clock::now();
    if (::connect(server.fd.get(), reinterpret_cast<const sockaddr*>(&to), size) == 0)
      return OnConnected();
    if (errno == EINPROGRESS) return Watch();
    dialling_.error = std::strerror(errno);
  }
  Refuse({502, "no connection to " + HostPort(to_.host, to_.port) + ": " + dialling_.error}, false);
}

void Stream::OnConnected() {
  // The connection must lead to the address that was vetted.
  sockaddr_storage peer{};
  socklen_t size = sizeof peer;
  const bool known =
      ::getpeername(relay_.server().fd.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
  if (!known || FromSocketAddress(peer) != dialling_.addresses[dialling_.next - 1]) {
    dialling_.error = "the connection went elsewhere";
    return Dial();
  }
  if (!with_secret_) return BeginRelay();
  state_ = State::kHandshake;
  relay_.StartTls(*shared_.tls, to_.host);
  Handshake();
}

void Stream::Handshake() {
  const TlsStatus status = relay_.Handshake();
  if (status == TlsStatus::kDone) return BeginRelay();
  if (status == TlsStatus::kWantRead || status == TlsStatus::kWantWrite) return Watch();
  Refuse({502, "TLS to " + to_.host + " failed: " + relay_.tls_error()}, false);
}

void Stream::BeginRelay() {
  record_.allowed = true;
  record_.reason.clear();
  recorded_ = true;
  if (!HandOver()) return Finish();
  GateOptions options;
  options.host = to_.host;
  options.port = to_.port;
  options.literal = to_.literal;
  options.one_request = head_.has_value();
  if (with_secret_) options.secrets = owner_.policy().SecretsOf(to_.host);
  options.kind = with_secret_ || head_ || (to_.port == kHttpPort && !to_.literal)
                     ? GateOptions::Kind::kHttp
                 : to_.port == kHttpsPort ? GateOptions::Kind::kTls
                                          : GateOptions::Kind::kEither;
  options.allows = [this](const std::string& name) {
    const auto normal = NormalHost(name);
    return normal && Allows(owner_.policy().rules, *normal, to_.port);
  };
  if (proxy_ && !head_) relay_.cell().pending = proxy_->Granted();
  state_ = State::kRelay;
  try {
    relay_.Begin(std::move(options), std::move(head_), std::exchange(early_, {}));
  } catch (const Error& error) {
    return Refuse(RefusalOf(error), true, relay_.gate()->named());
  }
  Pump();
}

void Stream::OnServerEvent(uint32_t events) {
  const auto keep = shared_from_this();
  switch (state_) {
    case State::kConnecting: {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(relay_.server().fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
      if (error == 0 && (events & EPOLLOUT) != 0) return OnConnected();
      dialling_.error = std::strerror(error == 0 ? ECONNABORTED : error);
      return Dial();
    }
    case State::kHandshake:
      return Handshake();
    case State::kRelay:
      return Pump();
    default:
      return;
  }
}

void Stream::OnCellEvent(uint32_t) {
  const auto keep = shared_from_this();
  if (state_ == State::kAsking) return ReadRequest();
  if (state_ == State::kRelay) return Pump();
  if (state_ != State::kAnswering) return;
  for (unsigned i = 0; i < kReadsInARow; ++i) {
    const ssize_t n =
        ::recv(relay_.cell().fd.get(), shared_.buffer.data(), shared_.buffer.size(), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return Finish();
    if (n < 0 || !owner_.Spend(static_cast<uint64_t>(n))) return;
  }
}

void Stream::ReadRequest() {
  const Fd& cell = relay_.cell().fd;
  const ssize_t n = ::recv(cell.get(), shared_.buffer.data(), kMaxRequestHead, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) return Finish();
  Relay::Activity& activity = relay_.activity();
  activity.last = Clock::now();
  if (!activity.unfinished_since) activity.unfinished_since = activity.last;
  std::string_view in(shared_.buffer.data(), static_cast<size_t>(n));
  std::string reply;
  try {
    if (!owner_.Spend(static_cast<uint64_t>(n)))
      ThrowRefusal({429, "the call has used up its bytes"});
    std::optional<ProxyRequest> request = proxy_->Feed(in, &reply);
    SendAll(cell.get(), reply);
    if (!request) return;
    early_ = in;
    head_ = std::move(request->head);
    activity.unfinished_since.reset();
    Decide(std::move(request->to));
  } catch (const Error& error) {
    SendAll(cell.get(), reply);
    Refuse(RefusalOf(error), true);
  }
}

void Stream::Pump() {
  const auto keep = shared_from_this();
  try {
    if (!relay_.Pump()) return Finish();
  } catch (const Error& error) {
    return Refuse(RefusalOf(error), true, relay_.gate()->named());
  }
  Watch();
}

// The events to wait for follow from the state. A side from which nothing is expected is not in the
// loop at all: epoll would report a hang-up there again and again.
void Stream::Watch() {
  uint32_t cell = 0;
  uint32_t server = 0;
  if (state_ == State::kAsking || state_ == State::kAnswering) cell = EPOLLIN;
  if (state_ == State::kConnecting) server = EPOLLOUT;
  if (state_ == State::kHandshake) server = relay_.HandshakeEvents();
  if (state_ == State::kRelay) {
    cell = relay_.CellEvents();
    server = relay_.ServerEvents();
  }
  const auto watch = [this](Relay::End& end, uint32_t events, void (Stream::*handler)(uint32_t)) {
    if (!end.fd) return;
    if (events == 0) return end.Unwatch(shared_.loop);
    if (!end.watched) {
      shared_.loop.Add(end.fd.get(), events, [self = weak_from_this(), handler](uint32_t got) {
        if (const auto stream = self.lock()) (stream.get()->*handler)(got);
      });
      end.watched = true;
    } else if (end.events != events) {
      shared_.loop.Change(end.fd.get(), events);
    }
    end.events = events;
  };
  watch(relay_.cell(), cell, &Stream::OnCellEvent);
  watch(relay_.server(), server, &Stream::OnServerEvent);
}

void Stream::Tick(Clock::time_point now) {
  const auto keep = shared_from_this();
  const EgressLimits& limits = shared_.limits;
  const Relay::Activity& activity = relay_.activity();
  switch (state_) {
    case State::kResolving:
    case State::kConnecting:
    case State::kHandshake:
      if (now - begun_ >= limits.connect)
        return Refuse({504, "no connection to " + HostPort(to_.host, to_.port) + " in time"},
                      false);
      if (state_ == State::kConnecting && dialling_.next < dialling_.addresses.size() &&
          now - dialling_.begun >= limits.attempt) {
        dialling_.error = "no answer";
        Dial();
      }
      return;
    case State::kAsking:
    case State::kRelay:
      if (activity.unfinished_since && now - *activity.unfinished_since >= limits.head)
        return Refuse({408, "a request did not end in time"}, true);
      if (now - activity.last >= limits.idle) {
        record_.reason = "nothing was sent for too long";
        return Finish();
      }
      return;
    case State::kAnswering:
      if (now - begun_ >= limits.head) Finish();
      return;
    case State::kClosed:
      return;
  }
}

}  // namespace hutch
