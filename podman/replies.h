// SPDX-License-Identifier: Apache-2.0

// Reads what Podman answers. Its shapes differ between Podman's versions: a member that is absent,
// or of another type, is "", 0 or an empty value. What is no answer to the request throws kPodman.
//
// Pure functions; any thread.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "podman/podman.h"
#include "podman/transport.h"

namespace hutch::replies {

// Podman's message for a failure, cut to one line.
std::string Reason(const PodmanReply& reply);
// Throws; `what` completes "cannot ...".
[[noreturn]] void Refuse(const std::string& what, const PodmanReply& reply);
// The body of a reply that is a success.
nlohmann::json Parse(const std::string& what, const PodmanReply& reply);

std::string Text(const nlohmann::json& object, const char* key);
int Number(const nlohmann::json& object, const char* key);
const nlohmann::json& Member(const nlohmann::json& object, const char* key);
std::map<std::string, std::string> Labels(const nlohmann::json& object);

// Of a list of containers, and of the inspection of one.
std::vector<ContainerInfo> ContainersOf(const PodmanReply& reply);
ContainerInfo ContainerOf(const std::string& id_or_name, const PodmanReply& reply);
PodmanVersion VersionOf(const PodmanReply& reply);
std::string TextOfLogs(const PodmanReply& reply);

}  // namespace hutch::replies
