// SPDX-License-Identifier: Apache-2.0

// JSON as text on one line, whatever its strings hold: bytes that are not UTF-8, in a label or in
// what a worker said, become U+FFFD. Safe from any thread. Json: nlohmann::json or ordered_json.
#pragma once

#include <string>

namespace hutch {

template <class Json>
std::string JsonText(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace hutch
