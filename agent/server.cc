// SPDX-License-Identifier: Apache-2.0

#include "agent/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>

#include "loop/descriptors.h"
#include "wire/channel.h"
#include "wire/log.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

constexpr size_t kMaxConnections = 1024;
constexpr size_t kMaxRefused = 16;    // clients being turned away at once
constexpr size_t kMaxBacklog = 4096;  // messages queued for a client that does not read
constexpr auto kGreeting = std::chrono::seconds(10);        // until a client has said hello
constexpr auto kRefusedGreeting = std::chrono::seconds(1);  // one that is then turned away
constexpr auto kListenAgain = std::chrono::milliseconds(100);
constexpr auto kFlushAgain = std::chrono::milliseconds(10);

}  // namespace

class Server::Connection final : public Peer {
 public:
  // With `refusal` the client gets that in answer to its hello, and is dropped.
  Connection(Server& server, Fd socket, uint64_t id, std::optional<Error> refusal)
      : server_(server), socket_(std::move(socket)), id_(id), refusal_(std::move(refusal)) {
    server_.loop_.Add(socket_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
    server_.refused_ += refusal_ ? 1 : 0;
    greeting_ = server_.loop_.After(refusal_ ? Clock::duration(kRefusedGreeting) : kGreeting,
                                    [this] { DropSoon(); });
  }
  ~Connection() override {
    server_.refused_ -= refusal_ ? 1 : 0;
    server_.broker_.Gone(*this);
    server_.loop_.Remove(socket_.get());
    server_.loop_.Cancel(greeting_);
    server_.loop_.Cancel(flush_again_);
    if (lease_table_ != nullptr) ::munmap(lease_table_, kTableBytes);
  }

  uint64_t id() const override { return id_; }
  uint32_t* lease_table() override { return lease_table_; }
  AuditCaller caller() const override { return caller_; }

  bool Send(const Message& message, std::span<const int> descriptors) override {
    if (dropping_) return false;
    if (backlog_.empty() && TrySend(message, descriptors)) return true;
    if (dropping_) return false;
    if (backlog_.size() >= kMaxBacklog) return DropSoon();
    Queued queued{message, {}};
    for (const int fd : descriptors) {
      queued.descriptors.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!queued.descriptors.back()) return false;
    }
    if (backlog_.empty()) server_.loop_.Change(socket_.get(), EPOLLIN | EPOLLOUT);
    backlog_.push_back(std::move(queued));
    return true;
  }

 private:
  static constexpr size_t kTableBytes = kLeaseTableBytes;
  struct Queued {
    Message message;
    std::vector<Fd> descriptors;
  };

  bool DropSoon() {
    if (!std::exchange(dropping_, true)) {
      server_.loop_.Post([&server = server_, id = id_] { server.Drop(id); });
    }
    return false;
  }

  void OnReady(uint32_t events) {
    try {
      if (events & EPOLLOUT) Flush();
      // A few messages at a time, so that one busy client does not keep the others waiting.
      for (int i = 0; i < 16 && !dropping_; ++i) {
        const auto received = ReceiveMessage(socket_.get());
        if (!received) return;
        OnMessage(received->message);
      }
    } catch (const Error& error) {
      if (error.code() != Code::kUnavailable) Complain(error);
      DropSoon();
    } catch (const std::exception& error) {  // one client's message must not end the agent
      Complain(error);
      DropSoon();
    }
  }

  void Complain(const std::exception& error) const {
    LogWarn("a client broke the protocol", {{"client", id_}, {"why", error.what()}});
  }

  void OnMessage(const Message& message) {
    if (greeted_) return server_.broker_.Handle(*this, message);
    const auto* hello = std::get_if<Hello>(&message);
    if (hello == nullptr) throw Error(Code::kProtocol, "a client did not say hello");
    if (hello->wire_version != kWireVersion) {
      Send(Failed{0, static_cast<int32_t>(Code::kVersionMismatch),
                  "this agent speaks wire version " + std::to_string(kWireVersion) +
                      ", the client version " + std::to_string(hello->wire_version),
                  "run `hutch agent stop`; the next call starts an agent of the client's version",
                  false},
           {});
      return;
    }
    caller_ = {hello->uid, hello->pid};
    server_.loop_.Cancel(greeting_);
    if (refusal_) {
      Send(Failed{0, static_cast<int32_t>(refusal_->code()), refusal_->what(), refusal_->hint(),
                  false, refusal_->figures()},
           {});
      DropSoon();
      return;
    }
    const Fd table = MakeResultMemfd(kTableBytes);
    void* mapped = ::mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, table.get(), 0);
    if (mapped == MAP_FAILED) ThrowErrno("map a lease table");
    lease_table_ = static_cast<uint32_t*>(mapped);
    greeted_ = true;
    const int descriptor = table.get();
    Send(Welcome{kWireVersion, server_.agent_name_}, {&descriptor, 1});
  }

  // False: the message cannot be sent now, for example for want of descriptors. Never throws.
  bool TrySend(const Message& message, std::span<const int> descriptors) {
    try {
      return SendMessage(socket_.get(), message, descriptors);
    } catch (const Error& error) {
      return error.code() == Code::kUnavailable ? DropSoon() : false;
    }
  }

  void Flush() {
    bool sent = false;
    while (!backlog_.empty()) {
      std::vector<int> descriptors;
      for (const Fd& fd : backlog_.front().descriptors) descriptors.push_back(fd.get());
      if (!TrySend(backlog_.front().message, descriptors)) {
        if (sent || dropping_) return;
        // The socket has room, but the kernel takes no more descriptors: too many are unread in
        // other sockets. epoll would report the socket as ready all the time.
        server_.loop_.Change(socket_.get(), EPOLLIN);
        flush_again_ = server_.loop_.After(
            kFlushAgain, [this] { server_.loop_.Change(socket_.get(), EPOLLIN | EPOLLOUT); });
        return;
      }
      sent = true;
      backlog_.pop_front();
    }
    server_.loop_.Change(socket_.get(), EPOLLIN);
  }

  Server& server_;
  Fd socket_;
  uint64_t id_;
  std::optional<Error> refusal_;
  uint32_t* lease_table_ = nullptr;
  AuditCaller caller_;
  TimerId greeting_ = 0;
  TimerId flush_again_ = 0;
  std::deque<Queued> backlog_;
  bool greeted_ = false;
  bool dropping_ = false;
};

Server::Server(Loop& loop, Broker& broker, Fd listener, std::string agent_name)
    : loop_(loop),
      broker_(broker),
      listener_(std::move(listener)),
      agent_name_(std::move(agent_name)) {
  Listen();
}

Server::~Server() {
  loop_.Cancel(listen_again_);
  loop_.Remove(listener_.get());
}

void Server::Listen() {
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnAccept(); });
}

// The kernel gives out the lowest free number, so `socket` says how many descriptors are open.
std::optional<Error> Server::WhyRefuse(int socket) const {
  const size_t connected = connections_.size() - refused_;
  const int limit = DescriptorLimit();
  std::string why;
  if (connected >= kMaxConnections) why = "which is the most it takes";
  if (socket >= ConnectionsBelow(limit)) {
    why = "and the rest of the " + std::to_string(limit) +
          " descriptors that it may have open is kept for cells";
  }
  if (why.empty()) return std::nullopt;
  return Error(Code::kBusy,
               "the agent takes no more clients at present: " + std::to_string(connected) +
                   " are connected, " + why,
               "close processes that are connected to the agent (each has one connection, and a "
               "second one with named sessions), or raise "
               "the limit of open files",
               false,
               {{"queued", static_cast<double>(connected)},
                {"capacity", static_cast<double>(kMaxConnections)},
                {"waited_sec", 0}});
}

void Server::OnAccept() {
  Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) {
    // New clients wait, and epoll does not report the socket again and again.
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      loop_.Remove(listener_.get());
      listen_again_ = loop_.After(kListenAgain, [this] { Listen(); });
    }
    return;
  }
  // The directory is 0700 already, and the uid is checked as well. Never the pid: it may belong to
  // another process by now.
  if (PeerOf(peer.get()).uid != ::getuid()) return;
  std::optional<Error> refusal = WhyRefuse(peer.get());
  if (refusal && refused_ >= kMaxRefused) return;
  const uint64_t id = next_id_++;
  if (refusal) LogWarn("a client was refused", {{"client", id}, {"why", refusal->what()}});
  try {
    connections_.emplace(
        id, std::make_unique<Connection>(*this, std::move(peer), id, std::move(refusal)));
  } catch (const Error& error) {  // epoll takes no more sockets
    LogWarn("a client was refused", {{"client", id}, {"why", error.what()}});
  }
}

void Server::Drop(uint64_t id) { connections_.erase(id); }

}  // namespace hutch
