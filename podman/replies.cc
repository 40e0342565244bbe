// SPDX-License-Identifier: Apache-2.0

#include "podman/replies.h"

#include <algorithm>
#include <utility>

#include "wire/error.h"

namespace hutch::replies {

using Json = nlohmann::json;

std::string Reason(const PodmanReply& reply) {
  const Json body = Json::parse(reply.body, nullptr, false);
  std::string text;
  if (body.is_object()) {
    for (const char* key : {"cause", "message"}) {
      if (body.contains(key) && body[key].is_string()) text = body[key].get<std::string>();
    }
  }
  if (text.empty()) text = reply.body;
  text = text.substr(0, 2000);
  std::replace(text.begin(), text.end(), '\n', ' ');
  return std::to_string(reply.status) + ": " + text;
}

[[noreturn]] void Refuse(const std::string& what, const PodmanReply& reply) {
  throw Error(Code::kPodman, "cannot " + what + ": Podman answered " + Reason(reply));
}

Json Parse(const std::string& what, const PodmanReply& reply) {
  if (!reply.ok()) Refuse(what, reply);
  Json body = Json::parse(reply.body, nullptr, false);
  if (body.is_discarded())
    throw Error(Code::kPodman, "cannot " + what + ": Podman's answer is not valid JSON");
  return body;
}

std::string Text(const Json& object, const char* key) {
  if (!object.is_object()) return {};
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

int Number(const Json& object, const char* key) {
  if (!object.is_object()) return 0;
  const auto found = object.find(key);
  return found != object.end() && found->is_number_integer()
             ? static_cast<int>(found->get<int64_t>())
             : 0;
}

const Json& Member(const Json& object, const char* key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found == object.end() ? kNone : *found;
}

std::map<std::string, std::string> Labels(const Json& object) {
  std::map<std::string, std::string> labels;
  if (!object.is_object()) return labels;
  for (const auto& [key, value] : object.items()) {
    if (value.is_string()) labels[key] = value.get<std::string>();
  }
  return labels;
}

std::vector<ContainerInfo> ContainersOf(const PodmanReply& reply) {
  const Json body = Parse("list containers", reply);
  std::vector<ContainerInfo> containers;
  if (!body.is_array()) return containers;  // "null" where there is none
  for (const Json& item : body) {
    ContainerInfo info;
    info.id = Text(item, "Id");
    const Json& names = Member(item, "Names");
    if (names.is_array() && !names.empty() && names[0].is_string())
      info.name = names[0].get<std::string>();
    info.state = Text(item, "State");
    info.exit_code = Number(item, "ExitCode");
    info.labels = Labels(Member(item, "Labels"));
    if (!info.id.empty()) containers.push_back(std::move(info));
  }
  return containers;
}

ContainerInfo ContainerOf(const std::string& id_or_name, const PodmanReply& reply) {
  const Json body = Parse("inspect " + id_or_name, reply);
  ContainerInfo info;
  info.id = Text(body, "Id");
  info.name = Text(body, "Name");
  info.state = Text(Member(body, "State"), "Status");
  info.exit_code = Number(Member(body, "State"), "ExitCode");
  info.pid = Number(Member(body, "State"), "Pid");
  info.labels = Labels(Member(Member(body, "Config"), "Labels"));
  if (info.id.empty())
    throw Error(Code::kPodman, "cannot inspect " + id_or_name + ": Podman's answer has no Id");
  return info;
}

PodmanVersion VersionOf(const PodmanReply& reply) {
  const Json info = Parse("ask Podman about the host", reply);
  const Json& host = Member(info, "host");
  PodmanVersion version;
  version.podman = Text(Member(info, "version"), "Version");
  version.api = Text(Member(info, "version"), "APIVersion");
  version.runtime = Text(Member(host, "ociRuntime"), "name");
  version.cgroup_version = Text(host, "cgroupVersion");
  for (const Json& controller : Member(host, "cgroupControllers")) {
    if (controller.is_string()) version.cgroup_controllers.push_back(controller.get<std::string>());
  }
  const Json& rootless = Member(Member(host, "security"), "rootless");
  version.rootless = rootless.is_boolean() && rootless.get<bool>();
  version.graph_driver = Text(Member(info, "store"), "graphDriverName");
  for (const char* helper : {"slirp4netns", "pasta"}) {  // Podman 5 installs only the latter
    if (version.network_helper.empty() && !Text(Member(host, helper), "executable").empty())
      version.network_helper = helper;
  }
  return version;
}

std::string TextOfLogs(const PodmanReply& reply) {
  // Frames: stream (1 byte), three zeros, length (4 bytes, big-endian), then the text.
  std::string text;
  size_t at = 0;
  while (at + 8 <= reply.body.size()) {
    const auto byte = [&](size_t i) {
      return static_cast<size_t>(static_cast<unsigned char>(reply.body[at + i]));
    };
    const size_t length = byte(4) << 24 | byte(5) << 16 | byte(6) << 8 | byte(7);
    at += 8;
    const size_t take = std::min(length, reply.body.size() - at);
    text.append(reply.body, at, take);
    at += take;
  }
  return text;
}

}  // namespace hutch::replies
