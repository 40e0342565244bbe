// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/tls.h"

#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <limits>

#include "wire/error.h"

namespace hutch {

struct TlsContext::Impl {
  SSL_CTX* context = nullptr;
  ~Impl() { SSL_CTX_free(context); }
};

struct TlsClient::Impl {
  SSL* ssl = nullptr;
  std::string error;
  ~Impl() { SSL_free(ssl); }

  TlsResult ResultOf(int returned) {
    if (returned > 0) return {TlsStatus::kDone, static_cast<size_t>(returned)};
    const int why = SSL_get_error(ssl, returned);
    if (why == SSL_ERROR_WANT_READ) return {TlsStatus::kWantRead};
    if (why == SSL_ERROR_WANT_WRITE) return {TlsStatus::kWantWrite};
    if (why == SSL_ERROR_ZERO_RETURN) return {TlsStatus::kClosed};
    if (const long verified = SSL_get_verify_result(ssl); verified != X509_V_OK) {
      error =
          std::string("its certificate is not trusted: ") + X509_verify_cert_error_string(verified);
    } else {
      const char* reason = ERR_reason_error_string(ERR_peek_last_error());
      error = reason == nullptr ? "the connection broke" : reason;
    }
    return {TlsStatus::kFailed};
  }
};

TlsContext::TlsContext(const std::string& ca_file) : impl_(std::make_unique<Impl>()) {
  impl_->context = SSL_CTX_new(TLS_client_method());
  if (impl_->context == nullptr) throw Error(Code::kInternal, "OpenSSL could not make a context");
  SSL_CTX_set_min_proto_version(impl_->context, TLS1_2_VERSION);
  SSL_CTX_set_verify(impl_->context, SSL_VERIFY_PEER, nullptr);
  SSL_CTX_set_mode(impl_->context, SSL_MODE_ENABLE_PARTIAL_WRITE |
                                       SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                                       SSL_MODE_RELEASE_BUFFERS);
  static constexpr unsigned char kHttp11[] = "\x08http/1.1";
  SSL_CTX_set_alpn_protos(impl_->context, kHttp11, sizeof kHttp11 - 1);
  if (SSL_CTX_load_verify_file(impl_->context, ca_file.c_str()) != 1) {
    ERR_clear_error();
    throw Error(Code::kPlatform, "no certificates can be read from " + ca_file,
                "install the package ca-certificates on the host");
  }
}

TlsContext::~TlsContext() = default;

TlsClient::TlsClient(const TlsContext& context, int fd, const std::string& host)
    : impl_(std::make_unique<Impl>()) {
  impl_->ssl = SSL_new(context.impl_->context);
  if (impl_->ssl == nullptr || SSL_set_fd(impl_->ssl, fd) != 1 ||
      SSL_set_tlsext_host_name(impl_->ssl, host.c_str()) != 1 ||
      SSL_set1_host(impl_->ssl, host.c_str()) != 1)
    throw Error(Code::kInternal, "OpenSSL could not make a connection");
  SSL_set_hostflags(impl_->ssl, X509_CHECK_FLAG_NO_PARTIAL_WILDCARDS);
  SSL_set_connect_state(impl_->ssl);
}

TlsClient::~TlsClient() = default;

TlsResult TlsClient::Handshake() {
  ERR_clear_error();
  return impl_->ResultOf(SSL_do_handshake(impl_->ssl));
}

TlsResult TlsClient::Read(char* to, size_t size) {
  ERR_clear_error();
  const size_t most = std::min<size_t>(size, std::numeric_limits<int>::max());
  return impl_->ResultOf(SSL_read(impl_->ssl, to, static_cast<int>(most)));
}

TlsResult TlsClient::Write(const char* from, size_t size) {
  ERR_clear_error();
  const size_t most = std::min<size_t>(size, std::numeric_limits<int>::max());
  return impl_->ResultOf(SSL_write(impl_->ssl, from, static_cast<int>(most)));
}

void TlsClient::Shutdown() {
  ERR_clear_error();
  SSL_shutdown(impl_->ssl);
}

bool TlsClient::HasPending() const { return SSL_pending(impl_->ssl) > 0; }

std::string TlsClient::error() const { return impl_->error; }

}  // namespace hutch
