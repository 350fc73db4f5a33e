// Tests the parts of a support bundle: the removal of secrets, the list of
// contents, and the programs that it runs.

#include <cerrno>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/ctl/bundle/support_bundle.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/spawn.h"
#include "tests/support/child.h"
#include "tests/support/no_pidfds.h"
#include "tests/support/status_matchers.h"

namespace sluice::ctl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(Secrets, SecretsWithUsualNamesAreRemoved) {
  const std::vector<std::string> lines = {
      "password = \"hunter2\"",
      "# old db_passwd: hunter2",
      "API_KEY=hunter2",
      "\"auth-token\": \"hunter2 and more hunter2\", \"gpus\": 2",
      "--client-secret=hunter2",
      "private_key = 'hunter2'",
      "aws_credentials: hunter2;",
      "listen = \"http://alice:hunter2@example.org:8080/\"",
      "Authorization: Bearer hunter2hunter2",
      "curl -H 'basic hunter2hunter2=='",
  };
  for (const std::string& line : lines) {
    const WithoutSecrets clean = RemoveSecrets(line);
    EXPECT_THAT(clean.text, Not(HasSubstr("hunter2"))) << line;
    EXPECT_THAT(clean.text, HasSubstr("(removed)")) << line;
    EXPECT_GE(clean.removed, 1) << line;
  }
  EXPECT_THAT(RemoveSecrets(lines[3]).text, HasSubstr("\"gpus\": 2"));
}

TEST(Secrets, APemKeyBecomesOneLine) {
  const WithoutSecrets clean = RemoveSecrets(
      "before\n-----BEGIN RSA PRIVATE KEY-----\nAAAA\nBBBB\n-----END RSA "
      "PRIVATE KEY-----\nafter\n");
  EXPECT_EQ(clean.text, "before\n(removed)\nafter\n");
  EXPECT_EQ(clean.removed, 1);
}

TEST(Secrets, TextWithoutSecretsIsUnchanged) {
  const std::string config =
      "[device]\ndriver = \"sim\"\n[budgets]\nprincipal_gpu_bytes = \"40GiB\"\n"
      "[http]\nlisten = \"127.0.0.1:9435\"\n# tokens per second: see /metrics\n"
      "tokens: 4096, author: alice\n"
      "2026-11-23T10:00:00Z info attach: rank 0 of job tune on GPU 1\n";
  const WithoutSecrets clean = RemoveSecrets(config);
  EXPECT_EQ(clean.removed, 0) << clean.text;
  EXPECT_EQ(clean.text, config);
}

// Guards against std::regex, which would exhaust the stack on such a line.
TEST(Secrets, ALongLineIsCut) {
  const WithoutSecrets clean =
      RemoveSecrets(std::string(1 << 20, 'a') + " password=hunter2\nnext");
  EXPECT_EQ(clean.text, std::string(4096, 'a') + " (cut)\nnext");
}

std::vector<Item> Items() {
  return {{"status.json", "what the daemon knows", "{}"},
          {"journal.txt", "the unit's journal",
           absl::NotFoundError("no\nsystemd")}};
}

// Guards against noticing the end only when `patience` has passed.
TEST(Programs, AProgramsEndIsNoticedWithoutAPidfd) {
  testing::Child::Fork([] {
    ASSERT_TRUE(testing::RefusePidfds(EMFILE));
    const absl::Time before = absl::Now();
    const auto said = OutputOf({"echo", "here"},
                               {.patience = absl::Seconds(5), .stopped = {}});
    SLUICE_ASSERT_OK_AND_ASSIGN(const std::string text, said);
    EXPECT_EQ(text, "here\n");
    EXPECT_LT(absl::Now() - before, absl::Seconds(4));
  })->ExpectSuccess();
}

TEST(Contents, TheListNamesIncludedFilesAndWhyOthersAreLeftOut) {
  const std::string text = RenderContents(Items());
  EXPECT_THAT(text,
              HasSubstr("In it:\n  status.json    what the daemon knows"));
  EXPECT_THAT(text, HasSubstr("Left out:\n  journal.txt    the unit's journal: "
                              "no?systemd\n"));
  EXPECT_THAT(text, HasSubstr("read it before you send it"));
}

TEST(Contents, TheJsonHasTheSameContents) {
  const auto json = nlohmann::json::parse(RenderBundleJson("a.gz", 7, Items()));
  EXPECT_EQ(json.at("file"), "a.gz");
  EXPECT_EQ(json.at("bytes"), 7);
  EXPECT_EQ(json.at("contents")[0].at("name"), "status.json");
  EXPECT_EQ(json.at("left_out")[0].at("why"), "no?systemd");
}

}  // namespace
}  // namespace sluice::ctl
