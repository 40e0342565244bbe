// SPDX-License-Identifier: Apache-2.0

// That the agent begins to stop, for who has something to save before: a connection on which
// nothing else comes, so that its reader sleeps until then.
//
// One thread at a time.
#pragma once

#include <charconv>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "client/connection.h"
#include "wire/error.h"
#include "wire/message.h"

namespace hutch {

class StopNotice final : private Connection::Receiver {
 public:
  // Throws as Client() does.
  StopNotice(const std::string& socket, long connect_uid)
      : connection_(socket, connect_uid, *this) {
    connection_.TakeLeaseTable();
    connection_.Send(Ask{connection_.NextRequest(), "await stop"});
  }

  int fd() const { return connection_.fd(); }  // readable: there is something to read
  // How long the agent waits for what runs, once, when it begins to stop; nullopt: it has said
  // nothing new. Throws kUnavailable when it is gone.
  std::optional<std::chrono::milliseconds> Read() {
    const Connection::Lock lock(connection_);
    connection_.Read();
    if (!left_ && connection_.broken()) throw Connection::LostError();
    return std::exchange(left_, std::nullopt);
  }
  void Close() { connection_.Abandon(); }  // as the last thing done with it

 private:
  // An agent that does not know the question says nothing more.
  void OnMessage(uint64_t, ReceivedMessage received) override REQUIRES(connection_lock) {
    const auto* answer = std::get_if<Answer>(&received.message);
    if (answer == nullptr) return;
    uint64_t ms = 0;
    std::from_chars(answer->text.data(), answer->text.data() + answer->text.size(), ms);
    left_ = ClampToYear(ms);
  }
  void OnLost() override {}

  Connection connection_;
  std::optional<std::chrono::milliseconds> left_;
};

}  // namespace hutch
