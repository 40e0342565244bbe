// SPDX-License-Identifier: Apache-2.0

// A libpod service for tests: one that answers each request as it is set up to, and on top of it
// one that keeps containers.
//
// Each has a thread of its own and a socket in a directory of its own. What is handed to them is
// called on that thread.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "wire/fd.h"

namespace hutch {

std::string HttpReply(const std::string& status, const std::string& body);

// Answers each request with what `answer(head)` returns, byte for byte, and closes the connection.
class FakePodman {
 public:
  using Answer = std::function<std::string(const std::string& head)>;
  using AnswerBody = std::function<std::string(const std::string& head, const std::string& body)>;

  explicit FakePodman(Answer answer);
  explicit FakePodman(AnswerBody answer);  // reads the body by its Content-Length first
  ~FakePodman();
  FakePodman(const FakePodman&) = delete;
  FakePodman& operator=(const FakePodman&) = delete;

  const std::string& path() const { return path_; }
  std::vector<std::string> requests() const;  // their heads

 private:
  void Listen();
  void Serve();
  void ServeOne(int peer);

  Answer answer_;
  AnswerBody answer_body_;
  std::string dir_;
  std::string path_;
  Fd listener_;
  mutable std::mutex mutex_;
  std::vector<std::string> requests_;
  std::atomic<bool> stop_ = false;
  std::thread thread_;
};

// Containers that are nothing but names: created, started, killed and removed as libpod would.
class FakeContainers {
 public:
  // Called when a container starts; the spec is the body of its create. "" or the reason why it
  // does not start.
  using OnStart = std::function<std::string(const std::string& name, const std::string& spec)>;

  explicit FakeContainers(OnStart on_start);

  const std::string& path() const { return podman_.path(); }
  size_t count() const;
  size_t created() const;  // in all its life
  size_t listed() const;   // so often
  void FailCreates(bool fail) { fail_creates_ = fail; }
  void HideImages(bool hide) { hide_images_ = hide; }

 private:
  struct Container {
    std::string spec;
    std::string state;
  };
  std::string Answer(const std::string& head, const std::string& body);

  OnStart on_start_;
  mutable std::mutex mutex_;
  std::map<std::string, Container> containers_;
  size_t created_ = 0;
  size_t listed_ = 0;
  std::atomic<bool> fail_creates_ = false;
  std::atomic<bool> hide_images_ = false;
  FakePodman podman_;  // last: its thread uses the rest
};

// The text of a string member of a JSON text, "" when it is not there. Enough for specs of our own
// making.
std::string TextMember(const std::string& json, const std::string& key);

}  // namespace hutch
