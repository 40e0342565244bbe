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

void Stream::End::Unwatch(Loop& loop) {
  if (std::exchange(watched, false)) loop.Remove(fd.get());
}

bool Stream::End::Flush() {
  while (!pending.empty()) {
    const ssize_t n = ::send(fd.get(), pending.data(), pending.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    pending.erase(0, static_cast<size_t>(n));
  }
  return true;
}

Stream::Stream(EgressShared& shared, Owner& owner, uint64_t id)
    : shared_(shared), owner_(owner), id_(id), begun_(Clock::now()), active_(begun_) {
  ++shared_.streams;
}

Stream::~Stream() { Close(); }

void Stream::Close() {
  if (state_ == State::kClosed) return;
  state_ = State::kClosed;
  --shared_.streams;
  cell_.Unwatch(shared_.loop);
  server_.Unwatch(shared_.loop);
  tls_.reset();
  cell_.fd.reset();
  server_.fd.reset();
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
  cell_.fd = Fd(ends[0]);
  Fd theirs(ends[1]);
  const int size = StreamBuffer(shared_.streams);
  ::setsockopt(cell_.fd.get(), SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
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
  const bool http = gate_ || with_secret_ ? to_.port == kHttpPort : false;
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
  SendAll(cell_.fd.get(), text);
  ::shutdown(cell_.fd.get(), SHUT_WR);
  state_ = State::kAnswering;
  server_.Unwatch(shared_.loop);
  server_.fd.reset();
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
  begun_ = active_ = Clock::now();
  Watch();
  if (to_.literal) return OnResolved({{ParseIp(to_.host).value()}, {}});
  const EgressLimits& limits = shared_.limits;
  if (owner_.lookups()->asked() >= limits.lookups_asked)
    return Refuse({429, "too many names are being resolved"}, false);
  shared_.resolver.Start(owner_.lookups(), to_.host, limits.lookups,
                         [self = weak_from_this()](Resolved resolved) {
                           const auto stream = self.lock();
                           if (stream && stream->state_ == State::kResolving)
                             stream->OnResolved(std::move(resolved));
                         });
}

// The only place where addresses are vetted; no other address is ever dialled.
void Stream::OnResolved(Resolved resolved) {
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
  while (dialling_.next < dialling_.addresses.size()) {
    const IpAddress& address = dialling_.addresses[dialling_.next++];
    server_.Unwatch(shared_.loop);
    server_.fd = Fd(::socket(address.v6 ? AF_INET6 : AF_INET,
                             SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
    if (!server_.fd) {
      dialling_.error = std::strerror(errno);
      continue;
    }
    const int on = 1;
    ::setsockopt(server_.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    sockaddr_storage to;
    const unsigned size = ToSocketAddress(address, with_secret_ ? shared_.tls_port : to_.port, &to);
    dialling_.begun = Clock::now();
    if (::connect(server_.fd.get(), reinterpret_cast<const sockaddr*>(&to), size) == 0)
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
      ::getpeername(server_.fd.get(), reinterpret_cast<sockaddr*>(&peer), &size) == 0;
  if (!known || FromSocketAddress(peer) != dialling_.addresses[dialling_.next - 1]) {
    dialling_.error = "the connection went elsewhere";
    return Dial();
  }
  if (!with_secret_) return BeginRelay();
  state_ = State::kHandshake;
  tls_ = std::make_unique<TlsClient>(*shared_.tls, server_.fd.get(), to_.host);
  Handshake();
}

void Stream::Handshake() {
  const TlsResult result = tls_->Handshake();
  tls_wants_write_ = result.status == TlsStatus::kWantWrite;
  if (result.status == TlsStatus::kDone) return BeginRelay();
  if (result.status == TlsStatus::kWantRead || result.status == TlsStatus::kWantWrite)
    return Watch();
  Refuse({502, "TLS to " + to_.host + " failed: " + tls_->error()}, false);
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
  gate_.emplace(std::move(options));
  if (proxy_ && !head_) cell_.pending = proxy_->Granted();
  state_ = State::kRelay;
  active_ = Clock::now();
  try {
    if (head_) gate_->FeedHead(std::move(*head_), &server_.pending);
    gate_->Feed(std::exchange(early_, {}), &server_.pending);
  } catch (const Error& error) {
    return Refuse(RefusalOf(error), true, gate_->named());
  }
  Pump();
}

void Stream::OnServerEvent(uint32_t events) {
  const auto keep = shared_from_this();
  switch (state_) {
    case State::kConnecting: {
      int error = 0;
      socklen_t size = sizeof error;
      ::getsockopt(server_.fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
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
    const ssize_t n = ::recv(cell_.fd.get(), shared_.buffer.data(), shared_.buffer.size(), 0);
    if (n == 0 || (n < 0 && errno != EAGAIN)) return Finish();
    if (n < 0 || !owner_.Spend(static_cast<uint64_t>(n))) return;
  }
}

void Stream::ReadRequest() {
  const ssize_t n = ::recv(cell_.fd.get(), shared_.buffer.data(), kMaxRequestHead, 0);
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) return Finish();
  active_ = Clock::now();
  if (!unfinished_since_) unfinished_since_ = active_;
  std::string_view in(shared_.buffer.data(), static_cast<size_t>(n));
  std::string reply;
  try {
    if (!owner_.Spend(static_cast<uint64_t>(n)))
      ThrowRefusal({429, "the call has used up its bytes"});
    std::optional<ProxyRequest> request = proxy_->Feed(in, &reply);
    SendAll(cell_.fd.get(), reply);
    if (!request) return;
    early_ = in;
    head_ = std::move(request->head);
    unfinished_since_.reset();
    Decide(std::move(request->to));
  } catch (const Error& error) {
    SendAll(cell_.fd.get(), reply);
    Refuse(RefusalOf(error), true);
  }
}

// Relays in both directions, as far as possible without waiting.
void Stream::Pump() {
  const auto keep = shared_from_this();
  if (!PumpToServer() || !PumpToCell()) return;  // the stream has ended
  if (state_ != State::kRelay) return;
  // The server's answer may have released bytes that were held back.
  if (!server_.pending.empty() && !FlushToServer()) return Finish();
  if (cell_.eof && server_.pending.empty() && !server_.shut) {
    server_.shut = true;
    if (tls_) tls_->Shutdown();
    ::shutdown(server_.fd.get(), SHUT_WR);
  }
  if (server_.eof && cell_.pending.empty() && !cell_.shut) {
    cell_.shut = true;
    ::shutdown(cell_.fd.get(), SHUT_WR);
  }
  if (cell_.shut && (server_.shut || gate_->one_request())) return Finish();
  Watch();
}

bool Stream::PumpToServer() {
  if (!FlushToServer()) {
    Finish();
    return false;
  }
  for (unsigned i = 0; i < kReadsInARow && server_.pending.empty() && !cell_.eof; ++i) {
    const ssize_t n = ::recv(cell_.fd.get(), shared_.buffer.data(), shared_.buffer.size(), 0);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) {
      Finish();
      return false;
    }
    if (n == 0) {
      cell_.eof = true;
      break;
    }
    active_ = Clock::now();
    record_.bytes_sent += static_cast<uint64_t>(n);
    try {
      if (!owner_.Spend(static_cast<uint64_t>(n)))
        ThrowRefusal({429, "the call has used up its bytes"});
      const std::string_view in(shared_.buffer.data(), static_cast<size_t>(n));
      if (gate_->open() && !tls_) {
        const ssize_t sent = ::send(server_.fd.get(), in.data(), in.size(), MSG_NOSIGNAL);
        if (sent < 0 && errno != EAGAIN) {
          Finish();
          return false;
        }
        server_.pending.assign(in.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0))));
      } else {
        gate_->Feed(in, &server_.pending);
        if (!FlushToServer()) {
          Finish();
          return false;
        }
      }
    } catch (const Error& error) {
      Refuse(RefusalOf(error), true, gate_->named());
      return false;
    }
  }
  if (!gate_->unfinished()) {
    unfinished_since_.reset();
  } else if (!unfinished_since_) {
    unfinished_since_ = Clock::now();
  }
  return true;
}

bool Stream::PumpToCell() {
  if (!cell_.Flush()) {
    Finish();
    return false;
  }
  const bool tls = tls_ != nullptr;
  for (unsigned i = 0; cell_.pending.empty() && !server_.eof; ++i) {
    if (i >= kReadsInARow && !(tls && tls_->HasPending())) break;
    char* const to = shared_.buffer.data();
    ssize_t n = 0;
    if (tls) {
      const TlsResult result = tls_->Read(to, shared_.buffer.size());
      if (result.status == TlsStatus::kWantRead || result.status == TlsStatus::kWantWrite) break;
      // A server that closes without TLS's own goodbye may have been cut off: so is the cell.
      if (result.status == TlsStatus::kFailed) {
        record_.reason = "TLS broke off: " + tls_->error();
        Finish();
        return false;
      }
      n = static_cast<ssize_t>(result.size);
    } else {
      n = ::recv(server_.fd.get(), to, shared_.buffer.size(), 0);
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) {
        Finish();
        return false;
      }
    }
    if (n == 0) {
      server_.eof = true;
      break;
    }
    active_ = Clock::now();
    record_.bytes_received += static_cast<uint64_t>(n);
    const std::string_view in(to, static_cast<size_t>(n));
    try {
      if (!owner_.Spend(static_cast<uint64_t>(n)))
        ThrowRefusal({429, "the call has used up its bytes"});
      if (gate_->awaits_answer()) gate_->FeedAnswer(in, &server_.pending);
    } catch (const Error& error) {
      Refuse(RefusalOf(error), true, gate_->named());
      return false;
    }
    const ssize_t sent = ::send(cell_.fd.get(), in.data(), in.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) {
      Finish();
      return false;
    }
    cell_.pending.assign(in.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0))));
  }
  return true;
}

bool Stream::FlushToServer() {
  if (!tls_) return server_.Flush();
  while (!server_.pending.empty()) {
    const TlsResult result = tls_->Write(server_.pending.data(), server_.pending.size());
    tls_wants_write_ = result.status == TlsStatus::kWantWrite;
    if (result.status == TlsStatus::kWantRead || result.status == TlsStatus::kWantWrite)
      return true;
    if (result.status != TlsStatus::kDone) return false;
    server_.pending.erase(0, result.size);
  }
  return true;
}

// The events to wait for follow from the state. A side from which nothing is expected is not in the
// loop at all: epoll would report a hang-up there again and again.
void Stream::Watch() {
  uint32_t cell = 0;
  uint32_t server = 0;
  if (state_ == State::kAsking || state_ == State::kAnswering) cell = EPOLLIN;
  if (state_ == State::kConnecting) server = EPOLLOUT;
  if (state_ == State::kHandshake) server = tls_wants_write_ ? EPOLLOUT : EPOLLIN;
  if (state_ == State::kRelay) {
    if (!cell_.eof && server_.pending.empty()) cell |= EPOLLIN;
    if (!cell_.pending.empty()) cell |= EPOLLOUT;
    if (!server_.eof && cell_.pending.empty()) server |= EPOLLIN;
    if (tls_ ? tls_wants_write_ : !server_.pending.empty()) server |= EPOLLOUT;
  }
  const auto watch = [this](End& end, uint32_t events, void (Stream::*handler)(uint32_t)) {
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
  watch(cell_, cell, &Stream::OnCellEvent);
  watch(server_, server, &Stream::OnServerEvent);
}

void Stream::Tick(Clock::time_point now) {
  const auto keep = shared_from_this();
  const EgressLimits& limits = shared_.limits;
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
      if (unfinished_since_ && now - *unfinished_since_ >= limits.head)
        return Refuse({408, "a request did not end in time"}, true);
      if (now - active_ >= limits.idle) {
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
