// SPDX-License-Identifier: Apache-2.0

#include "agent/egress/http.h"

#include <algorithm>

#include "agent/egress/vet.h"
#include "wire/egress_rules.h"

namespace hutch {
namespace {

constexpr int kMaxChunkDigits = 12;
constexpr size_t kMaxMethod = 32;
constexpr char kStatus[] = "http_status";

char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool SameName(std::string_view a, std::string_view lower) {
  return a.size() == lower.size() && std::equal(a.begin(), a.end(), lower.begin(),
                                                [](char x, char y) { return Lower(x) == y; });
}

bool IsTokenChar(char c) {
  return IsDigit(c) || (Lower(c) >= 'a' && Lower(c) <= 'z') ||
         std::string_view("!#$%&'*+-.^_`|~").find(c) != std::string_view::npos;
}
bool IsToken(std::string_view text) {
  return !text.empty() && std::ranges::all_of(text, IsTokenChar);
}

[[noreturn]] void Bad(const char* what) { ThrowRefusal({400, what}); }

std::string_view Trim(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return text;
}

std::string_view Line(std::string_view& text) {
  const size_t end = text.find("\r\n");
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end + 2);
  return line;
}

void ReadRequestLine(std::string_view line, RequestHead* head) {
  const size_t first = line.find(' ');
  const size_t last = line.rfind(' ');
  if (first == line.npos || first == last) Bad("the request line does not have three words");
  head->method = line.substr(0, first);
  head->target = line.substr(first + 1, last - first - 1);
  const std::string_view version = line.substr(last + 1);
  if (!IsToken(head->method) || head->method.size() > kMaxMethod) Bad("the method is not a token");
  const auto visible = [](char c) { return c > 0x20 && c < 0x7f; };
  if (head->target.empty() || !std::ranges::all_of(head->target, visible))
    Bad("the request's target has invalid characters");
  if (version != "HTTP/1.1" && version != "HTTP/1.0")
    ThrowRefusal({505, "only HTTP/1.0 and HTTP/1.1 are supported"});
  head->minor_version = version.back() - '0';
}

void ReadHeader(std::string_view line, RequestHead* head) {
  if (head->headers.size() == kMaxHeaders) ThrowRefusal({431, "too many headers"});
  if (line.front() == ' ' || line.front() == '\t') Bad("a header continues on another line");
  const size_t colon = line.find(':');
  if (colon == line.npos || !IsToken(line.substr(0, colon))) Bad("a header's name is not a token");
  const std::string_view value = Trim(line.substr(colon + 1));
  for (const char c : value) {
    if (static_cast<unsigned char>(c) < 0x20 ? c != '\t' : c == 0x7f)
      Bad("a header's value holds control characters");
  }
  // Servers that hand headers on as variables take "_" for "-".
  for (const char* name : {"content_length", "transfer_encoding"}) {
    if (SameName(line.substr(0, colon), name)) Bad("a header's name could be read as another name");
  }
  head->headers.emplace_back(line.substr(0, colon), value);
}

void ReadFraming(RequestHead* head) {
  int hosts = 0;
  int lengths = 0;
  int encodings = 0;
  for (const auto& [name, value] : head->headers) {
    if (SameName(name, "host")) ++hosts;
    if (SameName(name, "upgrade")) head->upgrade = true;
    if (SameName(name, "content-length")) {
      ++lengths;
      if (value.empty() || value.size() > 18 || !std::ranges::all_of(value, IsDigit))
        Bad("Content-Length is not a number");
      head->length = std::stoull(value);
      head->body = RequestHead::Body::kLength;
    }
    if (SameName(name, "transfer-encoding")) {
      ++encodings;
      if (!SameName(value, "chunked"))
        ThrowRefusal({501, "the only transfer encoding supported is chunked"});
      head->body = RequestHead::Body::kChunked;
    }
  }
  if (hosts > 1 || (hosts == 0 && head->minor_version == 1))
    Bad("there is no Host header, or more than one");
  if (lengths > 1 || encodings > 1 || lengths + encodings > 1 ||
      (encodings == 1 && head->minor_version == 0))
    Bad("the body's length is given in two ways");
  if (head->body == RequestHead::Body::kLength && head->length == 0)
    head->body = RequestHead::Body::kNone;
}

const char* Phrase(int status) {
  switch (status) {
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 421:
      return "Misdirected Request";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 502:
      return "Bad Gateway";
    case 504:
      return "Gateway Timeout";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

}  // namespace

void ThrowRefusal(const Refusal& refusal) {
  throw Error(Code::kProtocol, refusal.reason, {}, false, {{kStatus, refusal.status}});
}

Refusal RefusalOf(const Error& error) {
  const auto status = error.figures().find(kStatus);
  return {status == error.figures().end() ? 0 : static_cast<int>(status->second), error.what()};
}

const std::string* RequestHead::Find(std::string_view lower_name) const {
  for (const auto& [name, value] : headers) {
    if (SameName(name, lower_name)) return &value;
  }
  return nullptr;
}

void RequestHead::Remove(std::string_view lower_name) {
  std::erase_if(headers, [&](const auto& header) { return SameName(header.first, lower_name); });
}

std::string RequestHead::ToText() const {
  std::string text = method + " " + target + " HTTP/1." + std::to_string(minor_version) + "\r\n";
  for (const auto& [name, value] : headers) text += name + ": " + value + "\r\n";
  return text += "\r\n";
}

bool HeadReader::Feed(std::string_view& in) {
  while (!in.empty()) {
    const size_t newline = in.find('\n');
    const std::string_view part = in.substr(0, newline == in.npos ? in.npos : newline + 1);
    if (text_.size() + part.size() > kMaxRequestHead) ThrowRefusal({431, "the head is too long"});
    text_ += part;
    in.remove_prefix(part.size());
    if (newline == std::string_view::npos) return false;
    if (text_.size() < 2 || text_[text_.size() - 2] != '\r') Bad("a line ends without a CR");
    if (text_.size() == 2) Bad("the request begins with an empty line");
    if (text_.ends_with("\r\n\r\n")) return true;
  }
  return false;
}

RequestHead HeadReader::Take() {
  const std::string text = std::exchange(text_, {});
  RequestHead head;
  std::string_view left = text;
  const std::string_view first = Line(left);
  ReadRequestLine(first, &head);
  while (left != "\r\n") ReadHeader(Line(left), &head);
  ReadFraming(&head);
  return head;
}

BodyReader::BodyReader(const RequestHead& head)
    : chunked_(head.body == RequestHead::Body::kChunked) {
  left_ = head.length;
  state_ = head.body == RequestHead::Body::kNone ? State::kDone
           : chunked_                            ? State::kSize
                                                 : State::kData;
  if (chunked_) left_ = 0;
}

size_t BodyReader::Feed(std::string_view in) {
  size_t at = 0;
  const auto expect = [&](char c, State next) {
    if (in[at++] != c) Bad("a chunk does not end where it should");
    state_ = next;
  };
  while (at < in.size() && state_ != State::kDone) {
    switch (state_) {
      case State::kSize: {
        const char c = Lower(in[at++]);
        if (c == '\r' && digits_ > 0) {
          state_ = State::kSizeEnd;
          break;
        }
        if (!IsDigit(c) && !(c >= 'a' && c <= 'f')) Bad("a chunk's size is not a number");
        if (++digits_ > kMaxChunkDigits) Bad("a chunk's size is too long");
        left_ = left_ * 16 + static_cast<uint64_t>(IsDigit(c) ? c - '0' : c - 'a' + 10);
        break;
      }
      case State::kSizeEnd:
        digits_ = 0;
        expect('\n', left_ == 0 ? State::kEndCr : State::kData);
        break;
      case State::kData: {
        const auto take = static_cast<size_t>(std::min<uint64_t>(left_, in.size() - at));
        at += take;
        left_ -= take;
        if (left_ == 0) state_ = chunked_ ? State::kDataCr : State::kDone;
        break;
      }
      case State::kDataCr:
        expect('\r', State::kDataLf);
        break;
      case State::kDataLf:
        expect('\n', State::kSize);
        break;
      case State::kEndCr:  // no trailers
        expect('\r', State::kEndLf);
        break;
      case State::kEndLf:
        expect('\n', State::kDone);
        break;
      case State::kDone:
        break;
    }
  }
  return at;
}

std::optional<Authority> ParseAuthority(std::string_view text, uint16_t default_port) {
  std::string_view host = text;
  std::optional<std::string_view> port;
  const bool bracketed = text.starts_with('[');
  if (bracketed) {
    const size_t end = text.find(']');
    if (end == text.npos) return std::nullopt;
    host = text.substr(1, end - 1);
    const std::string_view rest = text.substr(end + 1);
    if (!rest.empty() && rest.front() != ':') return std::nullopt;
    if (!rest.empty()) port = rest.substr(1);
  } else if (const size_t colon = text.find(':'); colon != text.npos) {
    host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  Authority authority;
  authority.port = default_port;
  if (port) {
    unsigned number = 0;
    if (port->empty() || port->size() > 5 || port->front() == '0') return std::nullopt;
    for (const char c : *port) {
      if (!IsDigit(c)) return std::nullopt;
      number = number * 10 + static_cast<unsigned>(c - '0');
    }
    if (number > 65535) return std::nullopt;
    authority.port = static_cast<uint16_t>(number);
  }
  if (authority.port == 0) return std::nullopt;
  if (const std::optional<IpAddress> address = ParseIp(host)) {
    if (address->v6 != bracketed) return std::nullopt;
    authority.literal = true;
    authority.host = address->ToText();
    return authority;
  }
  if (bracketed) return std::nullopt;
  const std::optional<std::string> name = NormalHost(host);
  if (!name) return std::nullopt;
  authority.host = *name;
  return authority;
}

std::string InAuthority(std::string_view host) {
  std::string text(host);
  if (host.find(':') == host.npos) return text;
  text.insert(text.begin(), '[');
  text.push_back(']');
  return text;
}

std::string HostPort(std::string_view host, uint16_t port) {
  return InAuthority(host).append(1, ':').append(std::to_string(port));
}

bool HostIs(std::string_view header, std::string_view host, uint16_t port) {
  const std::optional<Authority> named = ParseAuthority(header, port);
  return named && named->host == host && named->port == port;
}

std::string HttpAnswer(const Refusal& refusal) {
  const std::string body = "hutch: " + refusal.reason + "\n";
  return "HTTP/1.1 " + std::to_string(refusal.status) + " " + Phrase(refusal.status) +
         "\r\nContent-Type: text/plain\r\nConnection: close\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\n\r\n" + body;
}

}  // namespace hutch
