// SPDX-License-Identifier: Apache-2.0

// TLS of the proxy's own to a host with a secret. Only tls.cc includes OpenSSL.
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
  // Servers are verified against the certificates in this PEM file. Throws kPlatform if there are
  // none in it.
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
  // `host` is sent as SNI, and the certificate must name it. REQUIRES: `fd` stays open.
  TlsClient(const TlsContext& context, int fd, const std::string& host);
  ~TlsClient();

  TlsResult Handshake();
  TlsResult Read(char* to, size_t size);
  TlsResult Write(const char* from, size_t size);  // a repeat after kWant*: the same bytes or more
  void Shutdown();                                 // announces that no more will be sent
  bool HasPending() const;                         // decrypted bytes can be read
  std::string error() const;                       // a text for a person, after kFailed

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace hutch
