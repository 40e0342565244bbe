// SPDX-License-Identifier: Apache-2.0

#include "environments/environment_spec.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <regex>
#include <set>
#include <string_view>

#include "wire/error.h"
#include "wire/sha256.h"

namespace hutch {
namespace {

constexpr int kLayoutVersion =
    2;  // of the directory that a digest names: raise it when old ones no longer serve
constexpr size_t kMaxRequirements = 512;
constexpr size_t kMaxRequirement = 512;
constexpr size_t kMaxModules = 256;
constexpr size_t kMaxConstraints = 4096;
constexpr size_t kMaxNetrc = 64u << 10;
constexpr size_t kMaxReference = 512;
constexpr size_t kMaxNpmName = 214;
constexpr size_t kMaxNpmLines = 64u << 10;

// ASCII only: the C library's own answers depend on the locale, and a homoglyph is not a letter
// here.
bool Alnum(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}
bool OneOf(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }

std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 80)) out += c >= 0x20 && c < 0x7f ? c : '?';
  return out + (text.size() > 80 ? "...\"" : "\"");
}

template <typename Allowed>
bool Consists(std::string_view text, size_t max, Allowed allowed) {
  return text.size() <= max && std::all_of(text.begin(), text.end(), allowed);
}

bool IsName(std::string_view name) {
  return !name.empty() && Alnum(name.front()) && Alnum(name.back()) &&
         Consists(name, 128, [](char c) { return Alnum(c) || OneOf(c, "._-"); });
}

// name [extras] [version clauses] [; marker]
bool IsRequirement(std::string_view text) {
  if (text.empty() || text.size() > kMaxRequirement) return false;
  const size_t name_end = std::find_if_not(text.begin(), text.end(),
                                           [](char c) { return Alnum(c) || OneOf(c, "._-"); }) -
                          text.begin();
  if (!IsName(text.substr(0, name_end))) return false;
  text.remove_prefix(name_end);

  std::string_view marker;
  if (const size_t semicolon = text.find(';'); semicolon != std::string_view::npos) {
    marker = text.substr(semicolon + 1);
    text = text.substr(0, semicolon);
    if (marker.empty()) return false;
  }
  if (text.starts_with('[')) {
    const size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    if (!Consists(text.substr(1, end - 1), 256,
                  [](char c) { return Alnum(c) || OneOf(c, "._-, "); }))
      return false;
    text.remove_prefix(end + 1);
  }
  // An "@" would begin a URL, a "#" a comment, "$" a variable, "\" a continued line.
  while (text.starts_with(' ')) text.remove_prefix(1);
  if (!text.empty() && !OneOf(text.front(), "<>=!~")) return false;
  return Consists(text, kMaxRequirement,
                  [](char c) { return Alnum(c) || OneOf(c, "<>=!~,.*+-_ "); }) &&
         Consists(marker, kMaxRequirement,
                  [](char c) { return Alnum(c) || OneOf(c, "<>=!~,.*+-_ '\"()"); });
}

// name [extras] @ https://... [ ; marker]
bool IsUrlRequirement(std::string_view text) {
  const size_t at = text.find(" @ http");
  if (at == std::string_view::npos || !IsRequirement(text.substr(0, at))) return false;
  std::string_view url = text.substr(at + 3);
  if (const size_t marker = url.find(" ; "); marker != std::string_view::npos) {
    if (!IsRequirement("name ;" + std::string(url.substr(marker + 3)))) return false;
    url = url.substr(0, marker);
  }
  const bool known = url.starts_with("https://") || url.starts_with("http://");
  return known && Consists(url, 2048, [](char c) {
           return c > 0x20 && c < 0x7f && !OneOf(c, "\"'\\`$;,<>{}");
         });
}

void CheckUrl(const std::string& what, std::string_view url) {
  if (url.empty()) return;
  const bool printable =
      Consists(url, 2048, [](char c) { return c > 0x20 && c < 0x7f && !OneOf(c, "\"'\\`"); });
  const size_t scheme = url.find("://");
  const bool known = url.starts_with("https://") || url.starts_with("http://");
  if (!printable || !known || url.size() <= scheme + 3) {
    throw Error(Code::kInvalidArgument,
                what + " is not a URL that starts with https:// or http://");
  }
}

void CheckToken(const std::string& what, std::string_view text, size_t max, std::string_view more) {
  if (Consists(text, max, [&](char c) { return Alnum(c) || OneOf(c, more); })) return;
  throw Error(Code::kInvalidArgument, what + " has characters it may not have: " + Quoted(text));
}

// A part of a package's name, or a scope's.
bool IsNpmWord(std::string_view word) {
  return !word.empty() && (Alnum(word.front()) || OneOf(word.front(), "_~")) &&
         Consists(word, kMaxNpmName, [](char c) { return Alnum(c) || OneOf(c, "._~-"); });
}

// [@scope/]name@range, with a range of versions or a tag. What npm would read as a path, an
// address, a git repository or an archive is none.
bool IsNpmRequirement(std::string_view text) {
  if (text.size() > kMaxRequirement) return false;
  const size_t at = text.rfind('@');
  if (at == std::string_view::npos || at == 0) return false;
  std::string_view name = text.substr(0, at);
  const std::string_view range = text.substr(at + 1);
  if (name.size() > kMaxNpmName) return false;
  if (name.starts_with('@')) {
    const size_t slash = std::min(name.find('/'), name.size() - 1);
    if (!IsNpmWord(name.substr(1, slash - 1))) return false;
    name.remove_prefix(slash + 1);
  }
  if (range.ends_with(".tgz") || range.ends_with(".tar") || range.ends_with(".tar.gz"))
    return false;
  return IsNpmWord(name) && !range.empty() &&
         (Alnum(range.front()) || OneOf(range.front(), "^~<>=*")) &&
         Consists(range, kMaxRequirement,
                  [](char c) { return Alnum(c) || OneOf(c, "^~<>=*|+. _-"); });
}

// Lines `KEY=VALUE` of an .npmrc whose keys are of these kinds, so that no other setting of npm's
// is among them.
void CheckNpmLines(const std::string& what, const std::string& text, const std::regex& kinds) {
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string line = text.substr(at, end - at);
    at = end + 1;
    const size_t equals = std::min(line.find('='), line.size());
    const bool printable = Consists(std::string_view(line).substr(equals), 8193,
                                    [](char c) { return c > 0x20 && c < 0x7f; });
    if (equals < std::min<size_t>(line.size(), 512) && printable &&
        std::regex_match(line.substr(0, equals), kinds))
      continue;
    throw Error(Code::kInvalidArgument, what + " has a line that it may not have");
  }
  if (text.size() > kMaxNpmLines) throw Error(Code::kInvalidArgument, what + " is over 64 KiB");
}

void CheckNpm(const EnvironmentSpec& spec) {
  static const std::regex kSource(R"((@[A-Za-z0-9_.~-]+:)?registry)");
  static const std::regex kCredential(
      R"(//[A-Za-z0-9_.:/~%\[\]-]+:(_authToken|_auth|username|_password))");
  if (spec.node_requirements.size() > kMaxRequirements) {
    throw Error(Code::kInvalidArgument,
                "there are more than " + std::to_string(kMaxRequirements) + " packages of npm");
  }
  for (const std::string& requirement : spec.node_requirements) {
    if (IsNpmRequirement(requirement)) continue;
    throw Error(Code::kInvalidArgument, Quoted(requirement) + " is not a package of npm",
                "write a name with a version, such as \"lodash@4\"; options, URLs and paths are "
                "refused");
  }
  if (!spec.node_requirements.empty() && !spec.venv.empty()) {
    throw Error(Code::kInvalidArgument,
                "nothing is added to a virtual environment: leave out node_dependencies=");
  }
  CheckNpmLines("npm_sources", spec.index.npm_sources, kSource);
  CheckNpmLines("npm_credentials", spec.index.npm_credentials, kCredential);
}

// [registry[:port]/]name[:tag][@digest], or an image's id, which looks the same.
void CheckReference(const std::string& reference) {
  static const std::regex kReference(
      R"((?:(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:]+\])(?::[0-9]{1,5})?/)?)"
      R"([a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*)*)"
      R"((?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?)");
  if (reference.size() <= kMaxReference && std::regex_match(reference, kReference)) return;
  throw Error(Code::kInvalidArgument, Quoted(reference) + " is not the name of an image",
              "write one such as docker.io/library/python:3.12-slim");
}

}  // namespace

std::vector<std::string> Words(std::string_view text) {
  std::vector<std::string> words;
  while (!text.empty()) {
    const size_t space = std::min(text.find(' '), text.size());
    if (space > 0) words.emplace_back(text.substr(0, space));
    text.remove_prefix(std::min(space + 1, text.size()));
  }
  return words;
}

bool IsModule(std::string_view name) {
  if (name.empty() || name.size() > 256 || name.front() == '.' || name.back() == '.') return false;
  bool start = true;
  for (const char c : name) {
    if (c == '.' ? start : !(Alnum(c) || c == '_') || (start && c >= '0' && c <= '9')) return false;
    start = c == '.';
  }
  return true;
}

bool HasPackages(const PoolSpec& pool) {
  return !pool.requirements.empty() || !pool.node_requirements.empty() || !pool.lock.empty() ||
         !pool.venv.empty();
}

EnvironmentSpec SpecOf(const PoolSpec& pool) {
  EnvironmentSpec spec;
  spec.requirements = pool.requirements;
  spec.python_version = pool.python_version;
  spec.platform = pool.platform;
  spec.base_id = pool.base_id;
  spec.base = pool.base;
  spec.runtime_id = pool.runtime_id;
  spec.index = pool.index;
  spec.allow_sdists = pool.allow_sdists;
  spec.allow_urls = pool.allow_urls;
  spec.constraints = pool.constraints;
  spec.node_requirements = pool.node_requirements;
  spec.lock = pool.lock;
  spec.links = pool.links;
  spec.venv = pool.venv;
  spec.preload = pool.preload;
  spec.preload_given = pool.preload_given;
  spec.nonce = pool.nonce;
  return spec;
}

void CheckSpec(const EnvironmentSpec& spec) {
  if (spec.requirements.size() > kMaxRequirements) {
    throw Error(Code::kInvalidArgument,
                "there are more than " + std::to_string(kMaxRequirements) + " dependencies");
  }
  for (const std::string& requirement : spec.requirements) {
    if (IsRequirement(requirement) || (spec.allow_urls && IsUrlRequirement(requirement))) continue;
    throw Error(Code::kInvalidArgument, Quoted(requirement) + " is not a dependency",
                "write a name with an optional version, such as \"pandas>=2\"; options, URLs and "
                "paths are refused");
  }
  for (const std::string& constraint : spec.constraints) {
    if (!IsRequirement(constraint))
      throw Error(Code::kInvalidArgument, Quoted(constraint) + " is not a constraint",
                  "write a name with a version, such as \"numpy<2\"");
  }
  if (spec.constraints.size() > kMaxConstraints)
    throw Error(Code::kInvalidArgument,
                "there are more than " + std::to_string(kMaxConstraints) + " constraints");
  if (spec.lock.size() > kMaxLock) throw Error(Code::kInvalidArgument, "the lock is over 4 MiB");
  for (const std::string& module : spec.preload) {
    if (IsModule(module)) continue;
    throw Error(Code::kInvalidArgument, Quoted(module) + " is not the name of a module to preload");
  }
  if (spec.preload.size() > kMaxModules)
    throw Error(Code::kInvalidArgument,
                "there are more than " + std::to_string(kMaxModules) + " modules to preload");
  CheckToken("python_version", spec.python_version, 32, ".+");
  CheckToken("platform", spec.platform, 64, "._-");
  CheckToken("base_id", spec.base_id, 64, "");
  CheckToken("runtime_id", spec.runtime_id, 64, "");
  if (!spec.base.empty()) CheckReference(spec.base);
  CheckToken("nonce", spec.nonce, 128, "._-");
  CheckUrl("index_url", spec.index.index_url);
  CheckUrl("http_proxy", spec.index.http_proxy);
  CheckUrl("https_proxy", spec.index.https_proxy);
  for (const std::string& url : Words(spec.index.extra_index_urls))
    CheckUrl("extra_index_urls", url);
  for (const std::string& url : Words(spec.index.find_links)) CheckUrl("find_links", url);
  if (spec.index.netrc.size() > kMaxNetrc)
    throw Error(Code::kInvalidArgument, "the credentials of indexes are over 64 KiB");
  CheckToken("no_proxy", spec.index.no_proxy, 4096, ".-_,*:/[] ");
  CheckNpm(spec);
  if (std::max(spec.index.ca_bundle.size(), spec.index.npm_ca_bundle.size()) > (8u << 20))
    throw Error(Code::kInvalidArgument, "the CA bundle is over 8 MiB");
}

std::string DigestOf(const EnvironmentSpec& spec) {
  // Each field with its length before it: no two specs give the same text.
  std::string text = "hutch environment " + std::to_string(kLayoutVersion) + "\n";
  const auto add = [&text](std::string_view field) {
    text += std::to_string(field.size()) + ":";
    text += field;
    text += "\n";
  };
  const std::set<std::string> requirements(spec.requirements.begin(), spec.requirements.end());
  add(std::to_string(requirements.size()));
  for (const std::string& requirement : requirements) add(requirement);
  add(spec.python_version);
  add(spec.platform);
  add(BaseOf(spec));
  add(spec.index.index_url);
  const std::vector<std::string> extra = Words(spec.index.extra_index_urls);
  add(std::to_string(extra.size()));
  for (const std::string& url : extra) add(url);
  add(spec.allow_sdists ? "sdists" : "wheels");
  add(spec.nonce);
  // With their names, and only where they are given, so that older environments keep their digests.
  const auto add_all = [&add](std::string_view name, const std::vector<std::string>& items) {
    if (items.empty()) return;
    add(name);
    add(std::to_string(items.size()));
    for (const std::string& item : items) add(item);
  };
  const auto sources = [](const std::vector<MountSpec>& mounts) {
    std::vector<std::string> items;
    for (const MountSpec& mount : mounts) items.push_back(mount.source);
    return items;
  };
  add_all("constraints", spec.constraints);
  add_all("links", Words(spec.index.find_links));
  add_all("directories", sources(spec.links));
  add_all("venv", sources(spec.venv));
  if (!spec.lock.empty()) add_all("lock", {spec.lock});
  const std::set<std::string> node(spec.node_requirements.begin(), spec.node_requirements.end());
  add_all("npm", {node.begin(), node.end()});
  if (!node.empty()) add_all("npm_sources", {spec.index.npm_sources});
  return Sha256Hex(text);
}

}  // namespace hutch
