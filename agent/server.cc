#include "agent/server.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdio>

#include "wire/channel.h"
#include "wire/memfd.h"

namespace hutch {
namespace {

constexpr size_t kMaxConnections = 1024;
constexpr size_t kMaxBacklog = 4096;  // messages queued for a client that does not read

}  // namespace

class Server::Connection final : public Peer {
 public:
  Connection(Server& server, Fd socket, uint64_t id)
      : server_(server), socket_(std::move(socket)), id_(id), table_(MakeResultMemfd(kTableBytes)) {
    void* mapped =
        ::mmap(nullptr, kTableBytes, PROT_READ | PROT_WRITE, MAP_SHARED, table_.get(), 0);
    if (mapped == MAP_FAILED) ThrowErrno("mapping a lease table");
    marks_ = static_cast<uint32_t*>(mapped);
    server_.loop_.Add(socket_.get(), EPOLLIN, [this](uint32_t events) { OnReady(events); });
  }
  ~Connection() override {
    server_.broker_.Gone(*this);
    server_.loop_.Remove(socket_.get());
    ::munmap(marks_, kTableBytes);
  }

  uint64_t id() const override { return id_; }
  uint32_t* lease_table() override { return marks_; }

  bool Send(const Message& message, std::span<const int> descriptors) override {
    if (dropping_) return false;
    try {
      if (backlog_.empty() && SendMessage(socket_.get(), message, descriptors)) return true;
    } catch (const Error&) {
      return DropSoon();
    }
    if (backlog_.size() >= kMaxBacklog) return DropSoon();
    Queued queued{message, {}};
    for (const int fd : descriptors)
      queued.descriptors.emplace_back(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (backlog_.empty()) server_.loop_.Change(socket_.get(), EPOLLIN | EPOLLOUT);
    backlog_.push_back(std::move(queued));
    return true;
  }

 private:
  static constexpr size_t kTableBytes = kLeaseTableSlots * sizeof(uint32_t);
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
      // A few messages each turn: one busy client does not keep the others waiting.
      for (int i = 0; i < 16 && !dropping_; ++i) {
        const auto received = ReceiveMessage(socket_.get());
        if (!received) return;
        OnMessage(received->message);
      }
    } catch (const Error& error) {
      if (error.code() != Code::kUnavailable) Complain(error);
      DropSoon();
    } catch (const std::exception& error) {  // one client's message never ends the agent
      Complain(error);
      DropSoon();
    }
  }

  void Complain(const std::exception& error) const {
    std::fprintf(stderr, "client %llu: %s\n", static_cast<unsigned long long>(id_), error.what());
  }

  void OnMessage(const Message& message) {
    if (greeted_) return server_.broker_.Handle(*this, message);
    const auto* hello = std::get_if<Hello>(&message);
    if (hello == nullptr) throw Error(Code::kProtocol, "a client did not say hello");
    if (hello->wire_version != static_cast<uint32_t>(kWireVersion)) {
      Send(
          Failed{0, static_cast<int32_t>(Code::kVersionMismatch),
                 "this agent speaks wire version " + std::to_string(kWireVersion) +
                     ", the client version " + std::to_string(hello->wire_version),
                 "`hutch agent stop` ends it; the next call starts one of the client's own version",
                 false},
          {});
      return;
    }
    greeted_ = true;
    const int table = table_.get();
    Send(Welcome{static_cast<uint32_t>(kWireVersion), server_.agent_name_}, {&table, 1});
  }

  void Flush() {
    while (!backlog_.empty()) {
      std::vector<int> descriptors;
      for (const Fd& fd : backlog_.front().descriptors) descriptors.push_back(fd.get());
      if (!SendMessage(socket_.get(), backlog_.front().message, descriptors)) return;
      backlog_.pop_front();
    }
    server_.loop_.Change(socket_.get(), EPOLLIN);
  }

  Server& server_;
  Fd socket_;
  uint64_t id_;
  Fd table_;
  uint32_t* marks_ = nullptr;
  std::deque<Queued> backlog_;
  bool greeted_ = false;
  bool dropping_ = false;
};

Server::Server(Loop& loop, Broker& broker, Fd listener, std::string agent_name)
    : loop_(loop),
      broker_(broker),
      listener_(std::move(listener)),
      reserve_(::open("/dev/null", O_RDONLY | O_CLOEXEC)),
      agent_name_(std::move(agent_name)) {
  loop_.Add(listener_.get(), EPOLLIN, [this](uint32_t) { OnAccept(); });
}

Server::~Server() { loop_.Remove(listener_.get()); }

void Server::OnAccept() {
  Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!peer) {
    if (errno == EMFILE || errno == ENFILE) {
      reserve_.reset();
      Fd refused(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      refused.reset();
      reserve_ = Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    }
    return;
  }
  // The directory is 0700 already; the uid is checked all the same. Never by pid: a pid can be
  // another's by now.
  if (PeerOf(peer.get()).uid != ::getuid()) return;
  if (connections_.size() >= kMaxConnections) return;
  const uint64_t id = next_id_++;
  try {
    connections_.emplace(id, std::make_unique<Connection>(*this, std::move(peer), id));
  } catch (const Error& error) {  // no descriptors left: this client is turned away
    std::fprintf(stderr, "client %llu: %s\n", static_cast<unsigned long long>(id), error.what());
  }
}

void Server::Drop(uint64_t id) { connections_.erase(id); }

}  // namespace hutch
