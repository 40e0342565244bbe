// SPDX-License-Identifier: Apache-2.0

// libFuzzer over the reader of TLS hellos, with OpenSSL as a second reader of the same bytes: where
// ours lets a hello through, a server that runs OpenSSL sees the very name that was checked, or
// none where none was said.
//
// An input is u8 how, bytes. 0: they come from the wire as they are. Otherwise they are the body of
// a hello, and are given a handshake's header and records of at most `how` bytes, so that the
// fuzzer gets past the lengths at once. The one file of the fuzzers that includes OpenSSL.
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "agent/egress/sni.h"
#include "tests/fuzz/budget.h"
#include "tests/fuzz/choices.h"
#include "tests/fuzz/hello_mutator.h"
#include "tests/fuzz/tally.h"

namespace {

using State = hutch::ClientHello::State;

struct Seen {
  bool asked = false;  // OpenSSL took the hello
  std::optional<std::string> name;
};

int OnServerName(SSL* ssl, int*, void* to) {
  auto* seen = static_cast<Seen*>(to);
  seen->asked = true;
  if (const char* name = SSL_get_servername(ssl, TLSEXT_NAMETYPE_host_name)) seen->name = name;
  return SSL_TLSEXT_ERR_ALERT_FATAL;  // nothing else is wanted of it
}

Seen ReadByOpenSsl(const std::string& bytes) {
  static SSL_CTX* const context = [] {
    SSL_CTX* made = SSL_CTX_new(TLS_server_method());
    SSL_CTX_set_security_level(made, 0);
    SSL_CTX_set_min_proto_version(made, 0);
    SSL_CTX_set_tlsext_servername_callback(made, OnServerName);
    return made;
  }();
  Seen seen;
  SSL_CTX_set_tlsext_servername_arg(context, &seen);
  SSL* const ssl = SSL_new(context);
  BIO* const in = BIO_new_mem_buf(bytes.data(), static_cast<int>(bytes.size()));
  SSL_set_bio(ssl, in, BIO_new(BIO_s_mem()));
  SSL_accept(ssl);
  ERR_clear_error();
  SSL_free(ssl);
  return seen;
}

std::string Number(size_t value, int size) {
  std::string text;
  for (int i = size - 1; i >= 0; --i) text += static_cast<char>(value >> (8 * i));
  return text;
}

std::string InRecords(const std::string& body, size_t most) {
  const std::string handshake = Number(1, 1) + Number(body.size(), 3) + body;
  std::string text;
  for (size_t at = 0; at < handshake.size(); at += most) {
    const std::string part = handshake.substr(at, most);
    text += Number(22, 1) + Number(0x0301, 2) + Number(part.size(), 2) + part;
  }
  return text;
}

// The other way, as far as there are records.
std::string FromRecords(std::string_view text) {
  std::string handshake;
  while (text.size() >= 5) {
    const size_t size = static_cast<uint8_t>(text[3]) << 8 | static_cast<uint8_t>(text[4]);
    handshake += text.substr(5, size);
    text.remove_prefix(std::min(text.size(), 5 + size));
  }
  return handshake.substr(std::min<size_t>(4, handshake.size()));
}

std::string InLowerCase(std::string text) {
  for (char& c : text) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return text;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size,
                                          unsigned seed) {
  hutch::Choices choose(seed);
  const unsigned how = size == 0 ? 0 : data[0];
  std::string bytes(reinterpret_cast<const char*>(data) + (size == 0 ? 0 : 1),
                    size == 0 ? 0 : size - 1);
  if (choose.OneIn(16)) {  // the records themselves, or the body without a form
    hutch::MutateBlindly(bytes);
    return hutch::PutMutant(static_cast<char>(how) + bytes, data, size, max_size);
  }
  if (how == 0) bytes = FromRecords(bytes);
  hutch::MutateHello(bytes, seed);
  constexpr size_t kWhole = 16 * 1024;
  if (how == 0 || choose.OneIn(16)) {
    bytes = '\0' + InRecords(bytes, choose.OneIn(4) ? 1 + choose.Below(64) : kWhole);
  } else {
    bytes = static_cast<char>(choose.OneIn(4) ? 1 + choose.Below(255) : how) + bytes;
  }
  return hutch::PutMutant(bytes, data, size, max_size);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static hutch::Tally tally;
  const hutch::RunBudget budget(size);
  if (size == 0) return 0;
  std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  if (data[0] != 0) bytes = InRecords(bytes, data[0]);
  const hutch::ClientHello hello = hutch::ReadClientHello(bytes);
  const bool whole = hello.state == State::kName || hello.state == State::kNoName;
  if ((hello.state == State::kName) == hello.name.empty()) std::abort();
  // A decision is final: what came before was either not all of it, or decided as this.
  if (whole && !bytes.empty()) {
    const hutch::ClientHello before = hutch::ReadClientHello(bytes.substr(0, bytes.size() - 1));
    if (before.state != State::kMore && (before.state != hello.state || before.name != hello.name))
      std::abort();
  }
  tally.Count(whole);
  if (!whole) return 0;
  const Seen seen = ReadByOpenSsl(bytes);
  if (seen.asked && InLowerCase(seen.name.value_or("")) != hello.name) {
    std::fprintf(stderr, "we saw \"%s\", OpenSSL \"%s\"\n", hello.name.c_str(),
                 seen.name.value_or("").c_str());
    std::abort();
  }
  return 0;
}
