// Tests that administrators' settings are read back as written, and that bad
// files are refused.
#include "daemon/policy_file.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::sluice::testing::TempDir;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr absl::StatusCode kInvalid = absl::StatusCode::kInvalidArgument;

Clocks At(int64_t monotonic_s) {
  return {absl::UnixEpoch() + absl::Seconds(monotonic_s),
          absl::FromUnixSeconds(1'800'000'000 + monotonic_s)};
}

Policy Sample() {
  Policy policy;
  const absl::Time at = At(100).monotonic;
  policy.limits.uids[1000] = {{.gpu = MiB(4)}, {true, "root (alice)", at}};
  const Bytes largest((int64_t{1} << 60) - 1);
  policy.limits.principals[{1000, "/slurm/job 7"}] = {{.host = largest},
                                                      {true, "", at}};
  policy.limits.named_jobs["tune"] = {{}, {true, "bob\n", at}};
  policy.reservations[{PoolKind::kGpu, 1}][{1000, "/slurm/job 7"}] = {
      MiB(4), {true, "root", at}};
  policy.reservations[{PoolKind::kHost, 0}][{7, ""}] = {GiB(1), {true, "", at}};
  policy.drain = Drain{"root", "new \"driver\"", at};
  policy.measured = MeasuredLinks{
      {{"pci-0000:3d:00.0", {24.125e9, 25e9, 0}}, {"numa \"0\"", {0, 0, 3e10}}},
      {true, "root", at}};
  return policy;
}

TEST(PolicyFile, APolicyIsReadAsWrittenEvenAfterAReboot) {
  const TempDir folder;
  const PolicyFile file(folder.File("kept/here"));
  EXPECT_EQ(file.Read(At(0), geteuid()).value(), Policy())
      << "no policy was written yet";
  ASSERT_THAT(file.Write(Sample(), At(200)), IsOk());
  EXPECT_EQ(file.Read(At(200), geteuid()).value(), Sample());
  // The machine was restarted, and an hour has passed.
  const Clocks later = {absl::UnixEpoch() + absl::Seconds(5),
                        At(200).wall + absl::Hours(1)};
  SLUICE_ASSERT_OK_AND_ASSIGN(const Policy read, file.Read(later, geteuid()));
  EXPECT_EQ(later.monotonic - read.drain->at,
            absl::Hours(1) + absl::Seconds(100));
  ASSERT_THAT(file.Write(Policy(), At(300)), IsOk());
  EXPECT_EQ(file.Read(At(300), geteuid()).value(), Policy());
  struct stat info;
  ASSERT_EQ(stat(folder.File("kept/here/policy").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_FALSE(std::filesystem::exists(folder.File("kept/here/policy.new")));
}

struct Bad {
  const char* text;
  const char* why;
};

// Guards against a time that loses a microsecond at each start (found by
// fuzzing).
TEST(PolicyFile, ATimeStaysTheSameFromStartToStart) {
  const Clocks now = At(1000);
  for (const double unix_s :
       {7042716293.5, 1800000000.123, 1e11 + 0.001, 0.0004, -12345678.9}) {
    const std::string first = fmt::format(R"({{"sluice_policy": 1, "limits": [],
                         "drained": {{"by": "", "reason": "",
                                      "at_unix_s": {:.6f}}}}})",
                                          unix_s);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Policy once, DecodePolicy(first, now));
    const std::string written = EncodePolicy(once, now);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Policy twice, DecodePolicy(written, now));
    EXPECT_EQ(EncodePolicy(twice, now), written);
    EXPECT_EQ(twice, once);
  }
}

TEST(PolicyFile, AnInvalidFileIsRefusedInOneLineWithThePlace) {
  const TempDir folder;
  const PolicyFile file(folder.path());
  const std::string whole = EncodePolicy(Sample(), At(200));
  for (const Bad& bad : std::initializer_list<Bad>{
           {"", "it is no JSON, or not all of it"},
           {"{", "it is no JSON, or not all of it"},
           {"[]", "the file is no object"},
           {R"({"sluice_policy": 2, "limits": [], "drained": null})",
            "the file is not of version 1"},
           {R"({"sluice_policy": 1, "limits": []})",
            "the file has no 'drained'"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "reservations": [{"gpu": 0, "uid": 1, "bytes": 0, "by": "",
                                  "at_unix_s": 1}]})",
            "reservations[0] reserves nothing"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "reservations": [{"gpu": 0, "numa": 0, "uid": 1, "bytes": 1,
                                  "by": "", "at_unix_s": 1}]})",
            "reservations[0] has an unknown 'numa'"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "measured_links": {"by": "", "at_unix_s": 1, "links": []}})",
            "'measured_links' names no link"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "measured_links": {"by": "", "at_unix_s": 1, "links": [
                  {"name": "a", "h2d_bytes_per_s": -1, "d2h_bytes_per_s": 0,
                   "both_bytes_per_s": 0}]}})",
            "a link of 'measured_links' h2d_bytes_per_s is -1"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "measured_links": {"by": "", "at_unix_s": 1, "links": [
                  {"name": "a", "h2d_bytes_per_s": 1, "d2h_bytes_per_s": 0,
                   "both_bytes_per_s": 0},
                  {"name": "a", "h2d_bytes_per_s": 2, "d2h_bytes_per_s": 0,
                   "both_bytes_per_s": 0}]}})",
            "a link of 'measured_links' is there twice"},
           {R"({"sluice_policy": 1, "limits": {}, "drained": null})",
            "'limits' is no list"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null, "x": 1})",
            "the file has an unknown 'x'"},
           {R"({"sluice_policy": 1, "limits": [], "drained": null,
                "x\n": 1})",
            "the file has an unknown 'x?'"},
           {R"({"sluice_policy": 1, "drained": null, "limits": [{"uid": -1,
                "gpu_bytes": 1, "host_bytes": 1, "by": "", "at_unix_s": 0}]})",
            "limits[0] uid is no whole number from 0 to 4294967295"},
           {R"({"sluice_policy": 1, "drained": null, "limits": [{"uid": 1,
                "gpu_bytes": 1e30, "host_bytes": 1, "by": "",
                "at_unix_s": 0}]})",
            "limits[0] gpu_bytes is no whole number"},
           {R"({"sluice_policy": 1, "drained": null, "limits": [
                {"uid": 1, "gpu_bytes": 1, "host_bytes": null, "by": "",
                 "at_unix_s": 0},
                {"uid": 1, "gpu_bytes": 2, "host_bytes": null, "by": "",
                 "at_unix_s": 0}]})",
            "limits[1] is there twice"},
           {R"({"sluice_policy": 1, "limits": [], "drained": {"by": 1,
                "reason": "", "at_unix_s": 0}})",
            "'drained' by is no string"}}) {
    std::ofstream(folder.File("policy")) << bad.text;
    chmod(folder.File("policy").c_str(), 0600);
    EXPECT_THAT(file.Read(At(0), geteuid()).status(),
                StatusIs(kInvalid, AllOf(HasSubstr(bad.why),
                                         HasSubstr("mend it, or move it away"),
                                         Not(HasSubstr("\n")))))
        << bad.text;
  }
  // A file cut off anywhere but at its last newline is not used.
  for (size_t size = 0; size + 2 < whole.size(); ++size) {
    EXPECT_THAT(DecodePolicy(whole.substr(0, size), At(0)).status(),
                StatusIs(kInvalid));
  }
}

// Guards against an error that quotes a long name whole (found by fuzzing).
TEST(PolicyFile, AnErrorMessageHasALimitedLength) {
  const std::string name(100'000, 'x');
  EXPECT_THAT(
      DecodePolicy(fmt::format(R"({{"sluice_policy": 1, "limits": [],
                                    "drained": null, "{}": 1}})",
                               name),
                   At(0))
          .status(),
      StatusIs(kInvalid, AllOf(HasSubstr("the file has an unknown 'xxx"),
                               ::testing::SizeIs(::testing::Le(1004u)))));
}

// Guards against accepting a time that is then written as null: the next daemon
// would refuse the file (found by fuzzing).
TEST(PolicyFile, AnImpossibleTimeIsRefused) {
  for (const char* when : {"1e300", "-1e300", "1e13"}) {
    const std::string text = std::string(R"({"sluice_policy": 1, "limits": [],
        "drained": {"by": "", "reason": "", "at_unix_s": )") +
                             when + "}}";
    EXPECT_THAT(DecodePolicy(text, At(0)).status(),
                StatusIs(kInvalid, HasSubstr("no time of a clock")));
  }
}

// Guards against refusing the policy when root checks another user's daemon.
TEST(PolicyFile, TheOwnerMustBeTheDaemonsUserNotTheReader) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can change the owner of a file";
  const TempDir folder;
  const PolicyFile file(folder.path());
  ASSERT_THAT(file.Write(Sample(), At(200)), IsOk());
  EXPECT_EQ(file.owner(), 0u);
  constexpr uid_t kDaemon = 54321;
  for (const std::string& path : {folder.path(), folder.File("policy")}) {
    ASSERT_EQ(chown(path.c_str(), kDaemon, kDaemon), 0);
  }
  EXPECT_EQ(file.owner(), kDaemon);
  EXPECT_EQ(file.Read(At(200), file.owner()).value(), Sample());
  EXPECT_THAT(file.Read(At(200), geteuid()).status(), StatusIs(kInvalid));
}

TEST(PolicyFile, AFileThatOthersMayWriteIsRefused) {
  const TempDir folder;
  const PolicyFile file(folder.path());
  ASSERT_THAT(file.Write(Sample(), At(200)), IsOk());
  chmod(folder.File("policy").c_str(), 0622);
  EXPECT_THAT(file.Read(At(200), geteuid()).status(),
              StatusIs(kInvalid, HasSubstr("others than its user may write")));
  std::filesystem::remove(folder.File("policy"));
  std::filesystem::create_symlink("/etc/passwd", folder.File("policy"));
  EXPECT_THAT(file.Read(At(200), geteuid()).status(), StatusIs(kInvalid));
  chmod(folder.path().c_str(), 0777);
  EXPECT_THAT(file.Write(Sample(), At(200)),
              StatusIs(kInvalid, HasSubstr("the policy's folder")));
}

}  // namespace
}  // namespace sluice::daemon
