// SPDX-License-Identifier: Apache-2.0

// What the cells of one policy may connect to, read once from its rules and secrets.
//
// A value; safe from any thread.
#pragma once

#include <string>
#include <vector>

#include "agent/egress/http.h"
#include "wire/egress_rules.h"
#include "wire/network.h"
#include "wire/values.h"

namespace hutch {

struct EgressPolicy {
  std::vector<EgressRule> rules;
  std::vector<SecretRule> secrets;
  EgressPlan plan;
  std::vector<Cidr> named;  // networks of the rules

  // Throws kInvalidArgument.
  EgressPolicy(const std::vector<std::string>& allow_network, std::vector<SecretRule> secrets);
  std::vector<SecretRule> SecretsOf(const std::string& host) const;
  // Whether the policy allows the cell to ask for this. Decided before anything is resolved.
  bool MayAsk(const Authority& to) const;
  bool NamesOwnAddress(const IpAddress& address) const;
};

}  // namespace hutch
