// SPDX-License-Identifier: Apache-2.0

// The egress process as a whole, in this process: a forwarder's and an agent's end, an egress
// server on a loop of its own, and real servers on loopback. Names are looked up in a table.
#include "agent/egress/server.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <thread>

#include "wire/cell_frame.h"
#include "wire/channel.h"

namespace hutch {
namespace {

constexpr int kPatience = 20'000;  // ms; a machine may stand still for seconds

bool Readable(int fd) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, kPatience) == 1;
}

// Until the end, or `size` bytes.
std::string ReadAll(int fd, size_t size = SIZE_MAX) {
  std::string text;
  char buffer[65536];
  while (text.size() < size && Readable(fd)) {
    const ssize_t n = ::recv(fd, buffer, std::min(sizeof buffer, size - text.size()), 0);
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}
void Write(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::send(fd, text.data(), text.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) {
      pollfd p{fd, POLLOUT, 0};
      if (::poll(&p, 1, kPatience) != 1) return;
      continue;
    }
    if (n <= 0) return;
    text.remove_prefix(static_cast<size_t>(n));
  }
}

// A TCP server on 127.0.0.1 that gives each connection to a function, on a thread.
class Server {
 public:
  explicit Server(std::function<void(int)> serve) {
    listener_ = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address);
    ::listen(listener_.get(), 512);
    socklen_t size = sizeof address;
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this, serve = std::move(serve)] {
      std::vector<std::thread> threads;
      for (;;) {
        const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
        if (fd < 0) break;
        ++accepted_;
        threads.emplace_back([serve, fd] {
          const Fd owned(fd);
          serve(fd);
        });
      }
      for (std::thread& thread : threads) thread.join();
    });
  }
  ~Server() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    thread_.join();
  }
  uint16_t port() const { return port_; }
  int accepted() const { return accepted_; }

 private:
  Fd listener_;
  uint16_t port_ = 0;
  std::atomic<int> accepted_ = 0;
  std::thread thread_;
};

void Echo(int fd) {
  char buffer[65536];
  for (ssize_t n; (n = ::recv(fd, buffer, sizeof buffer, 0)) > 0;)
    Write(fd, {buffer, static_cast<size_t>(n)});
}

class Egress : public ::testing::Test {
 protected:
  void SetUp() override {
    auto [ours, theirs] = MakeSocketPair();
    agent_ = std::move(ours);
    thread_ = std::thread([this, control = std::make_shared<Fd>(std::move(theirs))] {
      EgressServer server(
          loop_, std::move(*control), [this](const std::string& host) { return LookUpIn(host); },
          nullptr, "none in this test", [this] { loop_.Stop(); });
      server.limits() = limits_;
      if (descriptors_ != 0) server.set_descriptors(descriptors_);
      started_ = true;
      loop_.Run();
    });
    while (!started_) std::this_thread::yield();
  }
  void TearDown() override {
    Release();
    agent_.reset();
    thread_.join();
  }

  Resolved LookUpIn(const std::string& host) {
    std::unique_lock lock(mutex_);
    asked_.push_back(host);
    Resolved resolved;
    if (host.ends_with("silent.test")) {  // of a zone whose name servers do not answer
      released_.wait(lock, [this] { return release_; });
      resolved.error = "Temporary failure in name resolution";
      return resolved;
    }
    const auto found = names_.find(host);
    if (found == names_.end()) {
      resolved.error = "Name or service not known";
      return resolved;
    }
    // Each lookup takes the next answer; the last one stays.
    std::vector<std::string>& answers = found->second;
    std::string text = answers.front();
    if (answers.size() > 1) answers.erase(answers.begin());
    for (size_t end; !text.empty(); text = end == text.npos ? "" : text.substr(end + 1)) {
      end = text.find(' ');
      resolved.addresses.push_back(ParseIp(text.substr(0, end)).value());
    }
    return resolved;
  }
  void Release() {
    const std::lock_guard lock(mutex_);
    release_ = true;
    released_.notify_all();
  }
  std::vector<std::string> asked() {
    const std::lock_guard lock(mutex_);
    return asked_;
  }

  void Add(const std::vector<std::string>& rules, std::vector<SecretRule> secrets = {}) {
    auto [ours, theirs] = MakeSocketPair();
    forwarder_ = std::move(ours);
    SendEgress(agent_.get(), SetPolicy{1, rules, std::move(secrets)});
    SendEgress(agent_.get(), AddCell{7, 1}, theirs.get());
  }
  std::vector<NetworkRecord> CloseAndGetRecords() {
    SendEgress(agent_.get(), CloseCell{7});
    Readable(agent_.get());
    auto received = ReceiveEgress(agent_.get());
    return received ? std::get<CellClosed>(received->message).records
                    : std::vector<NetworkRecord>();
  }

  void SendFrame(FrameHeader frame) {
    const iovec part{&frame, sizeof frame};
    SendDatagram(forwarder_.get(), {&part, 1});
  }
  // The next answer to the forwarder: a stream, none, or that the channel is closed.
  enum class Got { kStream, kNone, kClosed };
  Got NextAnswer(Fd* stream) {
    std::array<char, 64> buffer;
    std::vector<Fd> descriptors;
    for (;;) {
      if (!Readable(forwarder_.get())) return Got::kClosed;
      const ReceiveResult got = ReceiveDatagram(forwarder_.get(), buffer, &descriptors, 1);
      if (got.status == ReceiveStatus::kNothing) continue;
      if (got.status != ReceiveStatus::kData) return Got::kClosed;
      FrameHeader frame;
      std::memcpy(&frame, buffer.data(), sizeof frame);
      if (frame.kind == FrameKind::kNoStream) return Got::kNone;
      *stream = std::move(descriptors.at(0));
      return Got::kStream;
    }
  }
  // A stream to that listener; empty where it is refused.
  Fd Open(uint32_t listener) {
    FrameHeader frame;
    frame.kind = FrameKind::kOpenStream;
    frame.a = listener;
    frame.id = next_id_++;
    SendFrame(frame);
    Fd stream;
    NextAnswer(&stream);
    return stream;
  }
  // What the proxy says to a CONNECT; the stream stays open in `stream`.
  std::string Connect(const std::string& to, Fd* stream = nullptr) {
    Fd opened = Open(kProxyListener);
    if (!opened) return "no stream";
    Write(opened.get(), "CONNECT " + to + " HTTP/1.1\r\nHost: x\r\n\r\n");
    std::string said;
    while (!said.ends_with("\r\n\r\n")) {
      const std::string c = ReadAll(opened.get(), 1);
      if (c.empty()) break;
      said += c;
    }
    if (stream != nullptr) *stream = std::move(opened);
    return said.substr(0, 12);
  }

  // One more cell, under the policy of Add(); its forwarder's end.
  Fd AddAnother(uint64_t cell) {
    auto [ours, theirs] = MakeSocketPair();
    SendEgress(agent_.get(), AddCell{cell, 1}, theirs.get());
    return std::move(ours);
  }
  // The next message to the agent.
  EgressMessage Received() {
    for (;;) {
      if (!Readable(agent_.get())) return EgressHello{"nothing"};
      if (auto received = ReceiveEgress(agent_.get())) return std::move(received->message);
    }
  }

  EgressLimits limits_;
  size_t descriptors_ = 0;  // 0: this process's
  std::condition_variable released_;
  bool release_ = false;
  Loop loop_;
  std::thread thread_;
  std::atomic<bool> started_ = false;
  std::mutex mutex_;
  std::map<std::string, std::vector<std::string>> names_;
  std::vector<std::string> asked_;
  Fd agent_;
  Fd forwarder_;
  uint64_t next_id_ = 1;
};

TEST_F(Egress, RelaysANamedHostBothWaysAndKeepsHalfCloses) {
  Server server([](int fd) {
    const std::string all = ReadAll(fd);  // until the client's half-close
    Write(fd, "got " + all);
  });
  const std::string port = std::to_string(server.port());
  names_["db.test"] = {"127.0.0.1"};
  Add({"db.test:" + port, "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  Write(stream.get(), "hello");
  ::shutdown(stream.get(), SHUT_WR);
  EXPECT_EQ(ReadAll(stream.get()), "got hello");
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].host, "db.test");
  EXPECT_EQ(records[0].port, server.port());
  EXPECT_TRUE(records[0].allowed);
  EXPECT_EQ(records[0].reason, "");
  EXPECT_EQ(records[0].bytes_sent, 5u);
  EXPECT_EQ(records[0].bytes_received, 9u);
}

TEST_F(Egress, CarriesManyBytesThroughSlowReaders) {
  Server server(Echo);
  names_["db.test"] = {"127.0.0.1"};
  Add({"db.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  std::string sent(24 << 20, 'x');
  for (size_t i = 0; i < sent.size(); i += 997) sent[i] = static_cast<char>(i);
  std::thread writer([&] {
    Write(stream.get(), sent);
    ::shutdown(stream.get(), SHUT_WR);
  });
  EXPECT_TRUE(ReadAll(stream.get()) == sent);
  writer.join();
}

TEST_F(Egress, RefusesWhatIsNotListedBeforeAnyNameIsResolved) {
  Add({"*.allowed.test"});
  EXPECT_EQ(Connect("other.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("allowed.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("xallowed.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("x.allowed.test.evil:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("x.allowed.test:22"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("8.8.8.8:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("127.0.0.1:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("a@x.allowed.test:443"), "HTTP/1.1 400");
  EXPECT_EQ(Connect("x.allowed.test:0443"), "HTTP/1.1 400");
  EXPECT_TRUE(asked().empty());
  const auto records = CloseAndGetRecords();
  ASSERT_GE(records.size(), 7u);
  EXPECT_FALSE(records[0].allowed);
  EXPECT_EQ(records[0].suggestion, "other.test:443");
  EXPECT_EQ(records[4].suggestion, "x.allowed.test:22");
}

TEST_F(Egress, ConnectsThroughTheProxyByNameAndByListedAddress) {
  Server server(Echo);
  const std::string port = std::to_string(server.port());
  names_["a.allowed.test"] = {"127.0.0.1"};
  Add({"*.allowed.test:" + port, "127.0.0.0/8:" + port});
  for (const std::string to : {"A.allowed.test.:", "127.0.0.1:"}) {
    Fd stream;
    ASSERT_EQ(Connect(to + port, &stream), "HTTP/1.1 200") << to;
    Write(stream.get(), "ping");
    EXPECT_EQ(ReadAll(stream.get(), 4), "ping");
  }
  const Fd socks = Open(kProxyListener);
  const std::string name = "a.allowed.test";
  Write(socks.get(), std::string("\x05\x01\0\x05\x01\0\x03", 7) + static_cast<char>(name.size()) +
                         name + static_cast<char>(server.port() >> 8) +
                         static_cast<char>(server.port()));
  EXPECT_EQ(ReadAll(socks.get(), 12), std::string("\x05\0\x05\0\0\x01\0\0\0\0\0\0", 12));
  Write(socks.get(), "ping");
  EXPECT_EQ(ReadAll(socks.get(), 4), "ping");
}

TEST_F(Egress, DialsNoAddressThatWasNotVetted) {
  Server server(Echo);
  const std::string port = std::to_string(server.port());
  // Rebinding: public at the first look, private at the second. Each connection looks once.
  names_["rebind.test"] = {"127.0.0.1"};
  names_["metadata.test"] = {"169.254.169.254"};
  names_["mapped.test"] = {"::ffff:127.0.0.1"};
  names_["mixed.test"] = {"127.0.0.1 ::1 10.0.0.1"};
  Add({"*.test:" + port});
  for (const char* host : {"rebind.test", "metadata.test", "mapped.test", "mixed.test"})
    EXPECT_EQ(Connect(std::string(host) + ":" + port), "HTTP/1.1 403") << host;
  EXPECT_EQ(server.accepted(), 0);
  EXPECT_EQ(asked().size(), 4u);
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 4u);
  EXPECT_EQ(records[0].reason, "rebind.test resolves to 127.0.0.1: loopback");
  EXPECT_EQ(records[0].suggestion, "127.0.0.1/32");
  EXPECT_EQ(records[1].reason, "metadata.test resolves to 169.254.169.254: cloud metadata");
}

TEST_F(Egress, LooksANameUpOnceForEachConnectionAndUsesThatAnswer) {
  Server server(Echo);
  const std::string port = std::to_string(server.port());
  names_["turns.test"] = {"127.0.0.1", "10.0.0.1"};
  Add({"*.test:" + port, "127.0.0.0/8"});
  Fd stream;
  EXPECT_EQ(Connect("turns.test:" + port, &stream), "HTTP/1.1 200");
  Write(stream.get(), "ping");
  EXPECT_EQ(ReadAll(stream.get(), 4), "ping");
  EXPECT_EQ(Connect("turns.test:" + port), "HTTP/1.1 403");
  EXPECT_EQ(asked().size(), 2u);
}

TEST_F(Egress, DialsTheNextAddressWhenOneRefuses) {
  Server server(Echo);
  names_["two.test"] = {"127.0.0.9 127.0.0.1"};
  Add({"two.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  Write(stream.get(), "ping");
  EXPECT_EQ(ReadAll(stream.get(), 4), "ping");
}

TEST_F(Egress, ResetsWhatCannotBeReached) {
  names_["closed.test"] = {"127.0.0.1"};
  Add({"closed.test:1", "missing.test:1", "127.0.0.0/8"});
  EXPECT_FALSE(Open(0));
  EXPECT_FALSE(Open(1));
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_TRUE(records[0].allowed && records[1].allowed);  // nothing that a rule would mend
  EXPECT_NE(records[0].reason.find("Connection refused"), std::string::npos);
  EXPECT_NE(records[1].reason.find("did not resolve"), std::string::npos);
}

TEST_F(Egress, CutsTlsOffThatNamesAnotherHost) {
  Server server(Echo);
  names_["a.test"] = {"127.0.0.1"};
  Add({"a.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  // TLS's first byte, and then no hello.
  Write(stream.get(), std::string("\x16\x03\x01\0\x05\x02\0\0\0\0", 10));
  EXPECT_EQ(ReadAll(stream.get()), "");
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_FALSE(records[0].allowed);
  EXPECT_EQ(records[0].reason, "the TLS hello is malformed");
}

TEST_F(Egress, SendsAbsoluteFormOnAsAPathWithItsOwnHost) {
  Server server([](int fd) {
    std::string head;
    while (!head.ends_with("\r\n\r\n")) {
      const std::string c = ReadAll(fd, 1);
      if (c.empty()) return;
      head += c;
    }
    Write(fd, "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + head);
  });
  const std::string port = std::to_string(server.port());
  names_["a.test"] = {"127.0.0.1"};
  Add({"*.test:" + port, "127.0.0.0/8"});
  const Fd stream = Open(kProxyListener);
  Write(stream.get(), "GET http://a.test:" + port + "/x HTTP/1.1\r\nHost: evil.test\r\n" +
                          "Proxy-Authorization: p\r\n\r\nGET http://b.test/ HTTP/1.1\r\n");
  EXPECT_EQ(ReadAll(stream.get()),
            "HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nGET /x HTTP/1.1\r\n"
            "Host: a.test:" +
                port + "\r\nConnection: close\r\n\r\n");
}

TEST_F(Egress, EndsAChannelThatBreaksTheProtocol) {
  const auto broken = [this](const FrameHeader& frame) {
    Add({"a.test", "*.b.test"});
    SendFrame(frame);
    Fd stream;
    const bool closed = NextAnswer(&stream) == Got::kClosed;
    CloseAndGetRecords();
    return closed;
  };
  FrameHeader frame;
  frame.kind = FrameKind::kOpenStream;
  frame.id = 1;
  for (const auto& change : std::vector<std::function<void(FrameHeader&)>>{
           [](FrameHeader& f) { f.magic = 0; }, [](FrameHeader& f) { f.version ^= 1; },
           [](FrameHeader& f) { f.kind = FrameKind::kStream; }, [](FrameHeader& f) { f.id = 0; },
           [](FrameHeader& f) { f.a = 2; }, [](FrameHeader& f) { f.a = 0xfffffffe; },
           [](FrameHeader& f) { f.b = 1; }}) {
    FrameHeader bad = frame;
    change(bad);
    EXPECT_TRUE(broken(bad));
  }
  Add({"a.test"});
  const char text[] = "short";
  const iovec part{const_cast<char*>(text), sizeof text};
  SendDatagram(forwarder_.get(), {&part, 1});
  Fd stream;
  EXPECT_EQ(NextAnswer(&stream), Got::kClosed);
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].reason, "the cell's forwarder broke its protocol");
}

TEST_F(Egress, ClosesEverythingOfACellThatIsClosed) {
  Server server(Echo);
  names_["a.test"] = {"127.0.0.1"};
  Add({"a.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  Write(stream.get(), "ping");
  EXPECT_EQ(ReadAll(stream.get(), 4), "ping");
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 1u);
  EXPECT_EQ(records[0].bytes_received, 4u);
  EXPECT_EQ(ReadAll(stream.get()), "");
  Fd none;
  EXPECT_EQ(NextAnswer(&none), Got::kClosed);
}

TEST_F(Egress, AddsASecretOnlyWhereTlsCanBeSpoken) {
  Add({}, {{"a.test", "Authorization", "s3cret", {}, {}}});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  const std::string said = ReadAll(stream.get());
  EXPECT_TRUE(said.starts_with("HTTP/1.1 502 ")) << said;
  EXPECT_EQ(said.find("s3cret"), std::string::npos);
  EXPECT_TRUE(asked().empty());
}

TEST_F(Egress, ResolvesNamesForOneCellWhateverOthersAskFor) {
  Server server(Echo);
  const std::string port = std::to_string(server.port());
  names_["a.test"] = {"127.0.0.1"};
  Add({"a.test:" + port, "*.silent.test", "127.0.0.0/8"});
  constexpr size_t kHostile = 60;
  std::vector<Fd> hostile;
  std::vector<Fd> streams;
  const Fd honest = std::move(forwarder_);
  for (size_t i = 0; i < kHostile; ++i) {
    hostile.push_back(AddAnother(100 + i));
    forwarder_ = std::move(hostile.back());
    for (int ask = 0; ask < 6; ++ask) {
      streams.push_back(Open(kProxyListener));
      ASSERT_TRUE(streams.back());
      Write(streams.back().get(), "CONNECT x" + std::to_string(ask) +
                                      ".silent.test:443 HTTP/1.1"
                                      "\r\nHost: x\r\n\r\n");
    }
    hostile.back() = std::move(forwarder_);
  }
  // Each has one, and all together 16 more: the rest of what they ask for waits.
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (asked().size() < kHostile + kSharedLookups && std::chrono::steady_clock::now() < deadline)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_EQ(asked().size(), kHostile + kSharedLookups);
  forwarder_ = Fd(::dup(honest.get()));
  for (int i = 0; i < 3; ++i) {
    const Fd stream = Open(0);
    ASSERT_TRUE(stream);
    Write(stream.get(), "hello");
    EXPECT_EQ(ReadAll(stream.get(), 5), "hello");
  }
  EXPECT_EQ(asked().size(), kHostile + kSharedLookups + 3);
  Release();
  for (const Fd& stream : streams) EXPECT_TRUE(ReadAll(stream.get()).starts_with("HTTP/1.1 502 "));
  EXPECT_EQ(asked().size(), 6 * kHostile + 3);
}

TEST_F(Egress, ForgetsTheLookupsOfACellThatIsGone) {
  Add({"*.silent.test"});
  std::vector<Fd> streams;
  for (int ask = 0; ask < 10; ++ask) {
    streams.push_back(Open(kProxyListener));
    Write(streams.back().get(), "CONNECT x.silent.test:443 HTTP/1.1\r\nHost: x\r\n\r\n");
  }
  while (asked().size() < 4) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  CloseAndGetRecords();
  Release();
  Fd forwarder = AddAnother(8);
  forwarder_ = std::move(forwarder);
  EXPECT_EQ(Connect("y.silent.test:443"), "HTTP/1.1 502");
  EXPECT_EQ(asked().size(), 5u);
}

TEST_F(Egress, AnswersThatItLivesAndSaysWhichForwardersEnded) {
  Add({"a.test:80"});
  SendEgress(agent_.get(), EgressPing{});
  EXPECT_TRUE(std::holds_alternative<EgressPing>(Received()));
  forwarder_.reset();
  EXPECT_EQ(std::get<ForwarderGone>(Received()).cell, 7u);
  SendEgress(agent_.get(), CloseCell{7});
  EXPECT_EQ(std::get<CellClosed>(Received()).cell, 7u);
  // One that ends with its call is none of these.
  {
    const Fd other = AddAnother(8);
    SendEgress(agent_.get(), CallOver{8});
  }
  const Fd last = AddAnother(9);
  SendEgress(agent_.get(), CloseCell{9});
  EXPECT_EQ(std::get<CellClosed>(Received()).cell, 9u);
  SendEgress(agent_.get(), CloseCell{8});
  EXPECT_EQ(std::get<CellClosed>(Received()).cell, 8u);
}

class CrowdedEgress : public Egress {
 protected:
  static constexpr size_t kStreams = 300;
  void SetUp() override {
    descriptors_ = kOwnDescriptors + 10 + kOfStream * kStreams;
    Egress::SetUp();
  }
};

TEST_F(CrowdedEgress, LeavesConnectionsForOthersHoweverManyTakeAllTheyCan) {
  Add({"*.test"});
  const Fd honest = std::move(forwarder_);
  std::vector<Fd> hogs;
  std::vector<Fd> streams;
  std::vector<size_t> had;
  for (uint64_t hog = 100; hog < 109; ++hog) {
    forwarder_ = AddAnother(hog);
    size_t got = 0;
    for (Fd stream = Open(kProxyListener); stream; stream = Open(kProxyListener)) {
      streams.push_back(std::move(stream));
      ++got;
    }
    had.push_back(got);
    hogs.push_back(std::move(forwarder_));
  }
  EXPECT_LE(had.front(), kStreams / 4);
  EXPECT_GE(had.back(), 4u);
  EXPECT_LT(streams.size(), kStreams);
  SendEgress(agent_.get(), CloseCell{108});
  const auto closed = std::get<CellClosed>(Received());
  ASSERT_EQ(closed.records.size(), 1u);
  EXPECT_FALSE(closed.records[0].allowed);
  EXPECT_NE(closed.records[0].reason.find("share"), std::string::npos);
  forwarder_ = Fd(::dup(honest.get()));
  for (int i = 0; i < 4; ++i) {
    streams.push_back(Open(kProxyListener));
    EXPECT_TRUE(streams.back()) << i;
  }
  // What one gives back, another one may have.
  for (uint64_t hog = 100; hog < 108; ++hog) {
    SendEgress(agent_.get(), CloseCell{hog});
    EXPECT_EQ(std::get<CellClosed>(Received()).cell, hog);
  }
  for (int i = 0; i < 50; ++i) {
    streams.push_back(Open(kProxyListener));
    EXPECT_TRUE(streams.back()) << i;
  }
}

class FewEgress : public Egress {
 protected:
  void SetUp() override {
    limits_.connections = 2;
    limits_.all_connections = 4;
    limits_.bytes = 1000;
    limits_.head = std::chrono::milliseconds(1);
    limits_.records = 3;
    Egress::SetUp();
  }
};

TEST_F(FewEgress, BoundsConnectionsAtOnceAndInAll) {
  Server server(Echo);
  names_["a.test"] = {"127.0.0.1"};
  Add({"a.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  {
    const Fd one = Open(0);
    const Fd two = Open(0);
    EXPECT_TRUE(one);
    EXPECT_TRUE(two);
    EXPECT_FALSE(Open(0));
    ::shutdown(one.get(), SHUT_WR);
    EXPECT_EQ(ReadAll(one.get()), "");  // that one is over
    EXPECT_TRUE(Open(0));
  }
  EXPECT_FALSE(Open(0));
  const auto records = CloseAndGetRecords();
  const auto says = [&](const char* reason) {
    return std::ranges::any_of(records, [&](const auto& r) { return r.reason == reason; });
  };
  EXPECT_TRUE(says("2 connections are open at once"));
  EXPECT_TRUE(says("the call has opened 4 connections"));
}

TEST_F(FewEgress, BoundsTheBytesOfACall) {
  Server server(Echo);
  names_["a.test"] = {"127.0.0.1"};
  Add({"a.test:" + std::to_string(server.port()), "127.0.0.0/8"});
  const Fd stream = Open(0);
  ASSERT_TRUE(stream);
  Write(stream.get(), std::string(2000, 'x'));
  EXPECT_LE(ReadAll(stream.get()).size(), 1000u);
  EXPECT_FALSE(Open(0));
}

TEST_F(FewEgress, CutsOffAHeadThatDoesNotEnd) {
  Add({"*.test"});
  const Fd stream = Open(kProxyListener);
  Write(stream.get(), "CONNECT a.te");
  EXPECT_TRUE(ReadAll(stream.get()).starts_with("HTTP/1.1 408"));
}

TEST_F(FewEgress, MergesRecordsAndBoundsThem) {
  Add({"*.allowed.test"});
  EXPECT_EQ(Connect("a.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("a.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("b.test:443"), "HTTP/1.1 403");
  EXPECT_EQ(Connect("c.test:443"), "HTTP/1.1 403");
  const auto records = CloseAndGetRecords();
  ASSERT_EQ(records.size(), 3u);
  EXPECT_EQ(records[0].count, 2u);
}

}  // namespace
}  // namespace hutch
