// SPDX-License-Identifier: Apache-2.0

// TLS to a host with a secret, from our end. OpenSSL is behind this header, and in tls.cc only.
//
// A context may be shared; a client belongs to one thread. Nothing blocks: the socket is
// non-blocking, and the caller polls.
#pragma once

#include <cstddef>
#include <memory>
#include <string>

namespace hutch {

class TlsContext {
 public:
  // Servers are verified against the certificates in this PEM file. Throws kPlatform.
  explicit TlsContext(const std::string& ca_file);
  ~TlsContext();
  TlsContext(const TlsContext&) = delete;
  TlsContext& operator=(const TlsContext&) = delete;

 private:
  friend class TlsClient;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

enum class TlsStatus { kDone, kWantRead, kWantWrite, kClosed, kFailed };
struct TlsResult {
  TlsStatus status;
  size_t size = 0;
};

class TlsClient {
 public:
  // `host` is asked for and is what the certificate must name. REQUIRES: `fd` stays open.
  TlsClient(const TlsContext& context, int fd, const std::string& host);
  ~TlsClient();

  TlsResult Handshake();
  TlsResult Read(char* to, size_t size);
  TlsResult Write(const char* from, size_t size);  // a repeat after kWant*: the same bytes or more
  void Shutdown();                                 // says that we send no more
  bool HasPending() const;                         // decrypted bytes that wait to be read
  std::string error() const;                       // of a kFailed, for a person

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hutch
