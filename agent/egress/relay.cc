// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/relay.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <utility>

#include "agent/egress/http.h"
#include "agent/egress/limits.h"

namespace hutch {

void Relay::End::Unwatch(Loop& loop) {
  if (std::exchange(watched, false)) loop.Remove(fd.get());
}

bool Relay::End::Flush() {
  while (!pending.empty()) {
    const ssize_t n = ::send(fd.get(), pending.data(), pending.size(), MSG_NOSIGNAL);
    if (n < 0) return errno == EAGAIN;
    pending.erase(0, static_cast<size_t>(n));
  }
  return true;
}

Relay::Relay(std::vector<char>& buffer, ByteBudget& budget, NetworkRecord& record)
    : buffer_(buffer), budget_(budget), record_(record), activity_{Clock::now()} {}

void Relay::Close(Loop& loop) {
  cell_.Unwatch(loop);
  server_.Unwatch(loop);
  tls_.reset();
  cell_.fd.reset();
  server_.fd.reset();
}

void Relay::StartTls(const TlsContext& context, const std::string& host) {
  tls_ = std::make_unique<TlsClient>(context, server_.fd.get(), host);
}

TlsStatus Relay::Handshake() {
  const TlsStatus status = tls_->Handshake().status;
  tls_wants_write_ = status == TlsStatus::kWantWrite;
  return status;
}

uint32_t Relay::HandshakeEvents() const { return tls_wants_write_ ? EPOLLOUT : EPOLLIN; }

void Relay::Begin(GateOptions options, std::optional<RequestHead> head, const std::string& early) {
  gate_.emplace(std::move(options));
  activity_.last = Clock::now();
  if (head) gate_->FeedHead(std::move(*head), &server_.pending);
  gate_->Feed(early, &server_.pending);
}

bool Relay::Pump() {
  if (!PumpToServer() || !PumpToCell()) return false;
  // The server's answer may have released bytes that were held back.
  if (!server_.pending.empty() && !FlushToServer()) return false;
  if (cell_.eof && server_.pending.empty() && !server_.shut) {
    server_.shut = true;
    if (tls_) tls_->Shutdown();
    ::shutdown(server_.fd.get(), SHUT_WR);
  }
  if (server_.eof && cell_.pending.empty() && !cell_.shut) {
    cell_.shut = true;
    ::shutdown(cell_.fd.get(), SHUT_WR);
  }
  return !cell_.shut || !(server_.shut || gate_->one_request());
}

uint32_t Relay::CellEvents() const {
  uint32_t events = 0;
  if (!cell_.eof && server_.pending.empty()) events |= EPOLLIN;
  if (!cell_.pending.empty()) events |= EPOLLOUT;
  return events;
}

uint32_t Relay::ServerEvents() const {
  uint32_t events = 0;
  if (!server_.eof && cell_.pending.empty()) events |= EPOLLIN;
  if (tls_ ? tls_wants_write_ : !server_.pending.empty()) events |= EPOLLOUT;
  return events;
}

void Relay::Spend(ssize_t bytes) {
  if (!budget_.Spend(static_cast<uint64_t>(bytes)))
    ThrowRefusal({429, "the call has used up its bytes"});
}

bool Relay::PumpToServer() {
  if (!FlushToServer()) return false;
  for (unsigned i = 0; i < kReadsInARow && server_.pending.empty() && !cell_.eof; ++i) {
    const ssize_t n = ::recv(cell_.fd.get(), buffer_.data(), buffer_.size(), 0);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0) return false;
    if (n == 0) {
      cell_.eof = true;
      break;
    }
    activity_.last = Clock::now();
    record_.bytes_sent += static_cast<uint64_t>(n);
    Spend(n);
    const std::string_view in(buffer_.data(), static_cast<size_t>(n));
    if (gate_->open() && !tls_) {
      const ssize_t sent = ::send(server_.fd.get(), in.data(), in.size(), MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) return false;
      server_.pending.assign(in.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0))));
    } else {
      gate_->Feed(in, &server_.pending);
      if (!FlushToServer()) return false;
    }
  }
  if (!gate_->unfinished()) {
    activity_.unfinished_since.reset();
  } else if (!activity_.unfinished_since) {
    activity_.unfinished_since = Clock::now();
  }
  return true;
}

bool Relay::PumpToCell() {
  if (!cell_.Flush()) return false;
  for (unsigned i = 0; cell_.pending.empty() && !server_.eof; ++i) {
    if (i >= kReadsInARow && !(tls_ && tls_->HasPending())) break;
    ssize_t n = 0;
    if (tls_) {
      const TlsResult result = tls_->Read(buffer_.data(), buffer_.size());
      if (result.status == TlsStatus::kWantRead || result.status == TlsStatus::kWantWrite) break;
      // A server that closes without TLS's own goodbye may have been cut off: so is the cell.
      if (result.status == TlsStatus::kFailed) {
        record_.reason = "TLS broke off: " + tls_->error();
        return false;
      }
      n = static_cast<ssize_t>(result.size);
    } else {
      n = ::recv(server_.fd.get(), buffer_.data(), buffer_.size(), 0);
      if (n < 0 && errno == EAGAIN) break;
      if (n < 0) return false;
    }
    if (n == 0) {
      server_.eof = true;
      break;
    }
    activity_.last = Clock::now();
    record_.bytes_received += static_cast<uint64_t>(n);
    const std::string_view in(buffer_.data(), static_cast<size_t>(n));
    Spend(n);
    if (gate_->awaits_answer()) gate_->FeedAnswer(in, &server_.pending);
    const ssize_t sent = ::send(cell_.fd.get(), in.data(), in.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN) return false;
    cell_.pending.assign(in.substr(static_cast<size_t>(std::max<ssize_t>(sent, 0))));
  }
  return true;
}

bool Relay::FlushToServer() {
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

}  // namespace hutch
