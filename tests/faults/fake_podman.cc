// SPDX-License-Identifier: Apache-2.0

#include "tests/faults/fake_podman.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

namespace hutch {

std::string HttpReply(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status +
         "\r\nContent-Type: application/json\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

std::string TextMember(const std::string& json, const std::string& key) {
  const std::string start = "\"" + key + "\":\"";
  const size_t found = json.find(start);
  if (found == std::string::npos) return {};
  const size_t begin = found + start.size();
  return json.substr(begin, json.find('"', begin) - begin);
}

FakePodman::FakePodman(Answer answer) : answer_(std::move(answer)) { Listen(); }
FakePodman::FakePodman(AnswerBody answer) : answer_body_(std::move(answer)) { Listen(); }

void FakePodman::Listen() {
  char name[] = "/tmp/fake-podman-XXXXXX";
  dir_ = ::mkdtemp(name);
  path_ = dir_ + "/podman.sock";
  listener_ = Fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path_.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(listener_.get(), 16) != 0) {
    std::abort();
  }
  thread_ = std::thread([this] { Serve(); });
}

FakePodman::~FakePodman() {
  stop_ = true;
  thread_.join();
  ::unlink(path_.c_str());
  ::rmdir(dir_.c_str());
}

std::vector<std::string> FakePodman::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void FakePodman::Serve() {
  while (!stop_) {
    pollfd waits{listener_.get(), POLLIN, 0};
    if (::poll(&waits, 1, 20) <= 0) continue;
    const Fd peer(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (peer) ServeOne(peer.get());
  }
}

void FakePodman::ServeOne(int peer) {
  std::string head;
  char buffer[4096];
  const auto more = [&] {
    const ssize_t n = ::read(peer, buffer, sizeof buffer);
    if (n > 0) head.append(buffer, static_cast<size_t>(n));
    return n > 0;
  };
  while (head.find("\r\n\r\n") == std::string::npos) {
    if (!more()) break;
  }
  if (head.empty()) return;
  // A body of a stated size is read before the answer: a client that still writes would see the
  // connection go. A stream has no size, and is answered at once.
  const size_t end = std::min(head.find("\r\n\r\n") + 4, head.size());
  const size_t length = head.find("Content-Length: ");
  const size_t size = length < end ? std::strtoul(head.c_str() + length + 16, nullptr, 10) : 0;
  while (head.size() < end + size) {
    if (!more()) break;
  }
  const std::string body = head.substr(end);
  head.resize(end);
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(head);
  }
  const std::string answer = answer_body_ ? answer_body_(head, body) : answer_(head);
  for (size_t done = 0; done < answer.size();) {
    const ssize_t n = ::send(peer, answer.data() + done, answer.size() - done, MSG_NOSIGNAL);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
}

FakeContainers::FakeContainers(OnStart on_start)
    : on_start_(std::move(on_start)),
      podman_(FakePodman::AnswerBody([this](const std::string& head, const std::string& body) {
        return Answer(head, body);
      })) {}

size_t FakeContainers::count() const {
  const std::lock_guard lock(mutex_);
  return containers_.size();
}

size_t FakeContainers::created() const {
  const std::lock_guard lock(mutex_);
  return created_;
}

size_t FakeContainers::listed() const {
  const std::lock_guard lock(mutex_);
  return listed_;
}

std::string FakeContainers::Answer(const std::string& head, const std::string& body) {
  const std::string request = head.substr(0, head.find("\r\n"));
  const auto is = [&](const char* part) { return request.find(part) != std::string::npos; };
  if (is("/images/")) {
    return hide_images_ ? HttpReply("404 Not Found", "{}")
                        : HttpReply("200 OK", R"({"Id":"image"})");
  }
  const std::lock_guard lock(mutex_);
  if (is("/containers/create")) {
    if (fail_creates_)
      return HttpReply("500 Internal Server Error", R"({"cause":"no space left on device"})");
    const std::string name = TextMember(body, "name");
    containers_[name] = {body, "created"};
    ++created_;
    return HttpReply("201 Created", R"({"Id":")" + name + "\"}");
  }
  if (is("/containers/json")) {
    ++listed_;
    std::string list;
    for (const auto& [name, container] : containers_) {
      list += (list.empty() ? "" : ",") +
              (R"({"Id":")" + name + R"(","Names":[")" + name + R"("],"State":")") +
              container.state + R"(","Labels":{"hutch.role":"worker"}})";
    }
    return HttpReply("200 OK", "[" + list + "]");
  }
  const size_t begin = request.find("/containers/") + 12;
  const auto found =
      containers_.find(request.substr(begin, request.find_first_of("/? ", begin) - begin));
  if (found == containers_.end())
    return HttpReply("404 Not Found", R"({"cause":"no such container"})");
  if (request.starts_with("DELETE")) {
    containers_.erase(found);
    return HttpReply("200 OK", "[]");
  }
  if (is("/kill")) {
    found->second.state = "exited";
    return HttpReply("204 No Content", "");
  }
  if (is("/start")) {
    const std::string failure = on_start_(found->first, found->second.spec);
    if (!failure.empty())
      return HttpReply("500 Internal Server Error", R"({"cause":")" + failure + "\"}");
    found->second.state = "running";
    return HttpReply("204 No Content", "");
  }
  return HttpReply("200 OK", R"({"Id":")" + found->first + R"(","Name":")" + found->first +
                                 R"(","State":{"Status":")" + found->second.state +
                                 R"(","ExitCode":0},"Config":{"Labels":{}}})");
}

}  // namespace hutch
