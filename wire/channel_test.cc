// SPDX-License-Identifier: Apache-2.0

#include "wire/channel.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "wire/cell_frame.h"
#include "wire/error.h"

namespace hutch {
namespace {

SendStatus SendText(int fd, std::string_view text, std::span<const int> descriptors = {}) {
  const iovec part{const_cast<char*>(text.data()), text.size()};
  return SendDatagram(fd, {&part, 1}, descriptors);
}

class TempDir {
 public:
  TempDir() {
    char name[] = "/tmp/hutch-channel-XXXXXX";
    path_ = ::mkdtemp(name);
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

TEST(Channel, KeepsTheBordersOfDatagrams) {
  auto [a, b] = MakeSocketPair();
  ASSERT_EQ(SendText(a.get(), "one"), SendStatus::kSent);
  ASSERT_EQ(SendText(a.get(), "three"), SendStatus::kSent);
  std::array<char, 64> buffer;
  ReceiveResult got = ReceiveDatagram(b.get(), buffer, nullptr, 0);
  EXPECT_EQ(got.status, ReceiveStatus::kData);
  EXPECT_EQ(std::string_view(buffer.data(), got.size), "one");
  got = ReceiveDatagram(b.get(), buffer, nullptr, 0);
  EXPECT_EQ(std::string_view(buffer.data(), got.size), "three");
  EXPECT_EQ(ReceiveDatagram(b.get(), buffer, nullptr, 0).status, ReceiveStatus::kNothing);
}

TEST(Channel, JoinsThePartsOfADatagram) {
  auto [a, b] = MakeSocketPair();
  char first[] = "12";
  char second[] = "345";
  const iovec parts[] = {{first, 2}, {second, 3}};
  ASSERT_EQ(SendDatagram(a.get(), parts), SendStatus::kSent);
  std::array<char, 64> buffer;
  const ReceiveResult got = ReceiveDatagram(b.get(), buffer, nullptr, 0);
  EXPECT_EQ(std::string_view(buffer.data(), got.size), "12345");
}

TEST(Channel, HandsOverDescriptorsThatCloseOnExec) {
  auto [a, b] = MakeSocketPair();
  auto [read_end, write_end] = MakePipe();
  const int sent[] = {write_end.get()};
  ASSERT_EQ(SendText(a.get(), "x", sent), SendStatus::kSent);
  std::array<char, 8> buffer;
  std::vector<Fd> received;
  ASSERT_EQ(ReceiveDatagram(b.get(), buffer, &received, 4).status, ReceiveStatus::kData);
  ASSERT_EQ(received.size(), 1u);
  EXPECT_NE(::fcntl(received[0].get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(received[0].get(), "hi", 2), 2);
  EXPECT_EQ(::read(read_end.get(), buffer.data(), buffer.size()), 2);
}

TEST(Channel, ClosesDescriptorsThatWereNotAskedFor) {
  auto [a, b] = MakeSocketPair();
  auto [read_end, write_end] = MakePipe();
  const int sent[] = {write_end.get()};
  ASSERT_EQ(SendText(a.get(), "x", sent), SendStatus::kSent);
  write_end.reset();
  std::array<char, 8> buffer;
  EXPECT_EQ(ReceiveDatagram(b.get(), buffer, nullptr, 0).status, ReceiveStatus::kData);
  EXPECT_EQ(::read(read_end.get(), buffer.data(), buffer.size()), 0)
      << "somebody still holds the write end";
}

TEST(Channel, TellsADatagramThatIsTooLong) {
  auto [a, b] = MakeSocketPair();
  ASSERT_EQ(SendText(a.get(), "123456789"), SendStatus::kSent);
  std::array<char, 8> buffer;
  EXPECT_EQ(ReceiveDatagram(b.get(), buffer, nullptr, 0).status, ReceiveStatus::kTruncated);
}

TEST(Channel, TellsADatagramWithTooManyDescriptorsAndKeepsNone) {
  auto [a, b] = MakeSocketPair();
  auto [read_end, write_end] = MakePipe();
  std::vector<int> sent(8, write_end.get());
  ASSERT_EQ(SendText(a.get(), "x", sent), SendStatus::kSent);
  write_end.reset();
  std::array<char, 8> buffer;
  {
    std::vector<Fd> received;
    EXPECT_EQ(ReceiveDatagram(b.get(), buffer, &received, 1).status, ReceiveStatus::kTruncated);
  }
  EXPECT_EQ(::read(read_end.get(), buffer.data(), buffer.size()), 0)
      << "a descriptor was left open";
}

TEST(Channel, RefusesToSendMoreDescriptorsThanADatagramHolds) {
  auto [a, b] = MakeSocketPair();
  const std::vector<int> sent(17, a.get());
  EXPECT_THROW(SendText(a.get(), "x", sent), Error);
}

TEST(Channel, TellsAFullSocketFromAClosedOne) {
  auto [a, b] = MakeSocketPair();
  const std::string big(32 * 1024, 'x');
  SendStatus status = SendStatus::kSent;
  for (int i = 0; i < 1000 && status == SendStatus::kSent; ++i) status = SendText(a.get(), big);
  EXPECT_EQ(status, SendStatus::kFull);
  b.reset();
  EXPECT_EQ(SendText(a.get(), "x"), SendStatus::kClosed);
}

TEST(Channel, ReadsWhatWasSentBeforeTheEnd) {
  auto [a, b] = MakeSocketPair();
  ASSERT_EQ(SendText(a.get(), "last words"), SendStatus::kSent);
  a.reset();
  std::array<char, 64> buffer;
  EXPECT_EQ(ReceiveDatagram(b.get(), buffer, nullptr, 0).size, 10u);
  EXPECT_EQ(ReceiveDatagram(b.get(), buffer, nullptr, 0).status, ReceiveStatus::kClosed);
}

TEST(Channel, FindsNobodyWhereNobodyListens) {
  const TempDir dir;
  EXPECT_FALSE(ConnectTo(dir / "none.sock"));
  {
    const Fd left_over = ListenAt(dir / "left.sock", 1);
  }
  EXPECT_FALSE(ConnectTo(dir / "left.sock"));
}

TEST(Channel, ReplacesASocketLeftOverAndNothingElse) {
  const TempDir dir;
  {
    const Fd left_over = ListenAt(dir / "a.sock", 1);
  }
  const Fd listener = ListenAt(dir / "a.sock", 1);
  EXPECT_TRUE(ConnectTo(dir / "a.sock"));
  std::ofstream(dir / "file") << "precious";
  EXPECT_THROW(ListenAt(dir / "file", 1), Error);
  EXPECT_TRUE(std::filesystem::exists(dir / "file"));
}

TEST(Channel, ListensForItsOwnUserUnlessToldOtherwise) {
  const TempDir dir;
  const Fd closed = ListenAt(dir / "closed.sock", 1);
  const Fd open = ListenAt(dir / "open.sock", 1, 0666);
  struct stat status;
  ASSERT_EQ(::stat((dir / "closed.sock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0600u);
  ASSERT_EQ(::stat((dir / "open.sock").c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777u, 0666u);
}

TEST(Channel, RefusesAPathThatDoesNotFitAnAddress) {
  EXPECT_THROW(ConnectTo("/tmp/" + std::string(200, 'x')), Error);
  EXPECT_THROW(ListenAt("/tmp/" + std::string(200, 'x'), 1), Error);
}

TEST(Channel, ShowsThePeerTheUidTakenForConnecting) {
  const TempDir dir;
  const Fd listener = ListenAt(dir / "a.sock", 4, 0666);
  const Fd plain = ConnectTo(dir / "a.sock");
  ASSERT_TRUE(plain);
  const Fd peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(PeerOf(peer.get()).uid, ::geteuid());
  EXPECT_EQ(PeerOf(peer.get()).pid, ::getpid());
  if (::geteuid() != 0) GTEST_SKIP() << "only root can take another uid";
  std::filesystem::permissions(std::filesystem::path(dir / "a.sock").parent_path(),
                               std::filesystem::perms(0755));
  const Fd other = ConnectTo(dir / "a.sock", 12345);
  ASSERT_TRUE(other);
  const Fd other_peer(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_EQ(PeerOf(other_peer.get()).uid, 12345u);
  EXPECT_EQ(::geteuid(), 0u) << "the uid is given back";
}

// As the examples in cell_frame.h are written.
std::string Hex(const FrameHeader& header) {
  unsigned char bytes[sizeof header];
  std::memcpy(bytes, &header, sizeof header);
  std::string text;
  for (size_t i = 0; i < sizeof bytes; ++i) {
    char byte[4];
    std::snprintf(byte, sizeof byte, "%02x", bytes[i]);
    if (i % 16 != 0) text += i % 8 == 0 ? "  " : " ";
    if (i % 16 == 0) text += i == 0 ? "//     " : "\n//     ";
    text += byte;
  }
  return text + "\n";
}

TEST(CellFrame, IsWrittenAsItsDescriptionShows) {
  std::ifstream file(HUTCH_WIRE_DIR "/cell_frame.h");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::string arm = Hex({.kind = FrameKind::kArm, .id = 7, .b = 30'000});
  EXPECT_NE(text.find(arm), std::string::npos) << arm;
  const std::string misdirected = Hex({.kind = FrameKind::kMisdirected, .id = 258});
  EXPECT_NE(text.find(misdirected), std::string::npos) << misdirected;
}

TEST(Fd, OwnsItsDescriptorOnce) {
  auto [a, b] = MakePipe();
  const int number = a.get();
  Fd moved = std::move(a);
  EXPECT_FALSE(a);  // NOLINT(bugprone-use-after-move): what is left is the claim
  EXPECT_EQ(moved.get(), number);
  moved = std::move(b);
  EXPECT_EQ(::fcntl(number, F_GETFD), -1) << "what it held is closed";
  Fd released(moved.release());
  EXPECT_FALSE(moved);
  EXPECT_TRUE(released);
}

}  // namespace
}  // namespace hutch
