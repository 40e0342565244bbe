// SPDX-License-Identifier: Apache-2.0

#include "wire/egress_rules.h"

#include <gtest/gtest.h>

#include "wire/error.h"

namespace hutch {
namespace {

using Kind = EgressRule::Kind;

std::string NormalOf(std::string_view text) { return ToString(ParseEgressRule(text)); }

bool Refused(std::string_view text) {
  try {
    ParseEgressRule(text);
  } catch (const Error& error) {
    return error.code() == Code::kInvalidArgument && !error.hint().empty();
  }
  return false;
}

std::vector<EgressRule> Rules(const std::vector<std::string>& texts) {
  PoolSpec spec;
  spec.allow_network = texts;
  return EgressRulesOf(spec);
}

TEST(Egress, EverySpellingOfANameHasOneNormalForm) {
  EXPECT_EQ(ParseEgressRule("api.example.org"), (EgressRule{Kind::kHost, "api.example.org", 0}));
  EXPECT_EQ(NormalOf("API.Example.ORG."), "api.example.org");
  EXPECT_EQ(NormalOf("localhost:8080"), "localhost:8080");
  EXPECT_EQ(NormalOf("*.Example.net:8443"), "*.example.net:8443");
  EXPECT_EQ(NormalOf("*"), "*");
  EXPECT_EQ(NormalOf("*:8080"), "*:8080");
  EXPECT_EQ(NormalOf("xn--bcher-kva.example"), "xn--bcher-kva.example");
  EXPECT_EQ(NormalOf("10.1.2.3/8"), "10.0.0.0/8");
  EXPECT_EQ(NormalOf("10.1.2.3"), "10.1.2.3/32");
  EXPECT_EQ(NormalOf("10.1.2.3:5432"), "10.1.2.3/32:5432");
  EXPECT_EQ(NormalOf("0.0.0.0/0"), "0.0.0.0/0");
  EXPECT_EQ(NormalOf("FD00::1/8"), "fd00::/8");
  EXPECT_EQ(NormalOf("[fd00::1]:443"), "[fd00::1/128]:443");
  EXPECT_EQ(NormalOf("[fd00::/9]:443"), "[fd00::/9]:443");
}

TEST(Egress, ANormalFormIsItsOwn) {
  for (const char* text : {"api.example.org", "a.b:1", "*.c.d:65535", "*", "10.0.0.0/8:80",
                           "[fd00::/8]:443", "fd00::/8"}) {
    EXPECT_EQ(NormalOf(text), text);
  }
}

TEST(Egress, WhatIsNoHostIsRefusedBeforeAnybodyResolvesIt) {
  for (const char* text : {"",
                           " ",
                           "a b",
                           "a\tb",
                           "https://example.org",
                           "example.org/path",
                           "user@example.org",
                           "example.org:",
                           "example.org:0",
                           "example.org:65536",
                           "example.org:+443",
                           "example.org:443 ",
                           "example.org:443:80",
                           "example.org:-1",
                           "example.org:0x50",
                           "example.org:000443",
                           ".example.org",
                           "a..b",
                           "-a.org",
                           "a-.org",
                           "a_b.org",
                           "*example.org",
                           "*.",
                           "**",
                           "*.*",
                           "a.*.org",
                           "*.10.0.0.1",
                           "example%2eorg",
                           "a#b",
                           "a\\b",
                           "[::1",
                           "[a]",
                           "[::1]x",
                           "[10.0.0.1]",
                           "::1%lo",
                           "10.0.0.1/33",
                           "10.0.0.1/",
                           "10.0.0.1/+8",
                           "fd00::/129",
                           "256.1.1.1",
                           "1.2.3",
                           "127.1",
                           "0x7f.0x1",
                           "2130706433",
                           "0177.0.0.1",
                           "b\xc3\xbc"
                           "cher.example"}) {
    EXPECT_TRUE(Refused(text)) << text;
  }
  EXPECT_TRUE(Refused(std::string_view("example.org\0.evil", 17)));
  EXPECT_TRUE(Refused(std::string(64, 'a') + ".org"));
  EXPECT_TRUE(Refused(std::string(254, 'a')));
}

TEST(Egress, ARefusalShowsWhatWasGivenAndNoControlCharacters) {
  try {
    ParseEgressRule("bad\x1b[31mname");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find('\x1b'), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("bad?[31mname"), std::string::npos);
  }
}

TEST(Egress, ANameIsAllowedByItselfAndByNoneThatLooksLikeIt) {
  const auto rules = Rules({"allowed.example"});
  EXPECT_TRUE(Allows(rules, "allowed.example", 443));
  EXPECT_TRUE(Allows(rules, "allowed.example", 80));
  EXPECT_FALSE(Allows(rules, "allowed.example", 22));
  for (const char* other : {"evil-allowed.example", "allowed.example.evil", "xallowed.example",
                            "www.allowed.example", "example"}) {
    EXPECT_FALSE(Allows(rules, other, 443)) << other;
  }
}

TEST(Egress, AWildcardMeansEverythingBelowANameAndNotTheName) {
  const auto rules = Rules({"*.example.net:8443"});
  EXPECT_TRUE(Allows(rules, "a.example.net", 8443));
  EXPECT_TRUE(Allows(rules, "a.b.example.net", 8443));
  EXPECT_FALSE(Allows(rules, "example.net", 8443));
  EXPECT_FALSE(Allows(rules, "aexample.net", 8443));
  EXPECT_FALSE(Allows(rules, "a.example.net", 443));
}

TEST(Egress, AStarAllowsNamesOnTheWebsPortsAndANetworkAllowsNoName) {
  EXPECT_TRUE(Allows(Rules({"*"}), "a.example", 443));
  EXPECT_FALSE(Allows(Rules({"*"}), "a.example", 25));
  EXPECT_TRUE(Allows(Rules({"*:25"}), "a.example", 25));
  EXPECT_FALSE(Allows(Rules({"0.0.0.0/0"}), "a.example", 443));
  EXPECT_FALSE(Allows({}, "a.example", 443));
}

TEST(Egress, EachHostHasOneAddressAndEachPortAListener) {
  const auto plan = PlanEgress(Rules({"a.example", "b.example:5432", "a.example:8080"}), {});
  const std::vector<EgressTarget> expected = {{"a.example", 443, false, "127.64.0.1"},
                                              {"a.example", 80, false, "127.64.0.1"},
                                              {"b.example", 5432, false, "127.64.0.2"},
                                              {"a.example", 8080, false, "127.64.0.1"}};
  EXPECT_EQ(plan.targets, expected);
  EXPECT_FALSE(plan.proxy);
}

TEST(Egress, NamesAloneNeedNoProxyAndEverythingElseDoes) {
  EXPECT_FALSE(PlanEgress(Rules({"a.example"}), {}).proxy);
  for (const char* text : {"*.a.example", "10.0.0.0/8", "*"})
    EXPECT_TRUE(PlanEgress(Rules({text}), {}).proxy) << text;
}

TEST(Egress, ASecretsHostIsSpokenToInPlainHttpWhichTheProxyEncrypts) {
  const std::vector<SecretRule> secrets = {{"a.example", "Authorization", "x", {}, {}}};
  const std::vector<EgressTarget> alone = {{"a.example", 80, true, "127.64.0.1"}};
  EXPECT_EQ(PlanEgress({}, secrets).targets, alone);
  const std::vector<EgressTarget> both = {{"a.example", 80, true, "127.64.0.1"},
                                          {"a.example", 443, false, "127.64.0.1"}};
  EXPECT_EQ(PlanEgress(Rules({"a.example"}), secrets).targets, both);
}

TEST(Egress, AddressesOfManyHostsAreDifferentAndReal) {
  std::vector<EgressRule> rules;
  for (int i = 0; i < 600; ++i)
    rules.push_back({Kind::kHost, "h" + std::to_string(i) + ".example", 1});
  const auto plan = PlanEgress(rules, {});
  EXPECT_EQ(plan.targets[253].address, "127.64.0.254");
  EXPECT_EQ(plan.targets[254].address, "127.64.1.1");
  EXPECT_EQ(plan.targets[599].address, "127.64.2.92");
}

TEST(Egress, ASecretThatCouldSmuggleAHeaderIsRefused) {
  const SecretRule good{"a.example", "Authorization", "Bearer x", {"/v1"}, {"GET"}};
  const auto check = [](const SecretRule& secret) {
    PoolSpec spec;
    spec.secrets = {secret};
    CheckEgress(spec);
  };
  EXPECT_NO_THROW(check(good));
  for (const auto& change : std::vector<void (*)(SecretRule&)>{
           [](SecretRule& s) { s.host = "A.example"; }, [](SecretRule& s) { s.host = "1.2.3.4"; },
           [](SecretRule& s) { s.header = "a b"; }, [](SecretRule& s) { s.header = "a:b"; },
           [](SecretRule& s) { s.value = "x\r\nHost: evil"; }, [](SecretRule& s) { s.value = ""; },
           [](SecretRule& s) { s.paths = {"v1"}; }, [](SecretRule& s) { s.methods = {"G T"}; }}) {
    SecretRule bad = good;
    change(bad);
    EXPECT_THROW(check(bad), Error);
  }
}

}  // namespace
}  // namespace hutch
