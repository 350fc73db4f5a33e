// Tests which cgroups are principals, and which may inherit memory.
#include "daemon/quota/principal.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using sluice::testing::StatusIs;
using ::testing::HasSubstr;

CgroupCut Cut(const std::vector<std::string>& prefixes) {
  auto cut = CgroupCut::Make(prefixes);
  EXPECT_TRUE(cut.ok()) << cut.status();
  return *std::move(cut);
}

// Guards against a whole budget for each cgroup that a user makes.
TEST(CgroupCut, CgroupsThatAUserMayMakeAreNoPrincipals) {
  const CgroupCut cut = Cut(CgroupCut::Defaults());
  EXPECT_EQ(cut.Of("/user.slice/user-1000.slice/user@1000.service/a"), "");
  EXPECT_EQ(cut.Of("/"), "");
  EXPECT_EQ(cut.Of("/evil/kubepods/pod7"), "");
  EXPECT_EQ(CgroupCut().Of("/kubepods/pod7"), "");
}

TEST(CgroupCut, PodsAndJobsArePrincipalsWithAllCgroupsBelow) {
  const CgroupCut cut = Cut(CgroupCut::Defaults());
  EXPECT_EQ(cut.Of("/kubepods/pod7"), "/kubepods/pod7");
  EXPECT_EQ(cut.Of("/kubepods/pod7/c1/made/by/the/user"), "/kubepods/pod7");
  EXPECT_EQ(cut.Of("/kubepods/burstable/pod8/c1"), "/kubepods/burstable/pod8");
  EXPECT_EQ(cut.Of("/kubepods.slice/kubepods-besteffort.slice/"
                   "kubepods-besteffort-pod9.slice/cri-containerd-1.scope"),
            "/kubepods.slice/kubepods-besteffort.slice/"
            "kubepods-besteffort-pod9.slice");
  EXPECT_EQ(cut.Of("/system.slice/slurmstepd.scope/job_12/step_0/user/task_0"),
            "/system.slice/slurmstepd.scope/job_12");
  EXPECT_EQ(cut.Of("/system.slice/ssh.service"), "");
}

TEST(CgroupCut, AProcessInThePrefixItselfBelongsToThePrefix) {
  EXPECT_EQ(Cut({"/a*"}).Of("/ab"), "/ab");
  EXPECT_EQ(Cut({"/"}).Of("/"), "/");
  EXPECT_EQ(Cut({"/"}).Of("/x/y"), "/x");
}

TEST(CgroupCut, AStarMatchesWithinOneName) {
  EXPECT_EQ(Cut({"/a*c"}).Of("/a/c/d"), "");
  EXPECT_EQ(Cut({"/a*c"}).Of("/abc/d/e"), "/abc/d");
}

TEST(CgroupCut, APrefixThatIsNoPathIsRefused) {
  for (const char* wrong : {"kubepods", "", "/a/../b"}) {
    EXPECT_THAT(CgroupCut::Make({wrong}).status(),
                StatusIs(absl::StatusCode::kInvalidArgument,
                         HasSubstr("no path of a cgroup")))
        << wrong;
  }
}

TEST(Principal, NameHasTheUserAndTheCgroup) {
  EXPECT_EQ(Name(Principal{7, ""}), "user 7");
  EXPECT_EQ(Name(Principal{0, "/kubepods/pod7"}), "user 0 (/kubepods/pod7)");
}

TEST(Inheritance, OnlySlurmJobsOfTheSameUserInherit) {
  const Principal user = {1, ""}, pod = {1, "/kubepods/pod1"},
                  job = {1, "/system.slice/slurmstepd.scope/job_1"},
                  next = {1, "/system.slice/slurmstepd.scope/job_2"},
                  others = {2, "/system.slice/slurmstepd.scope/job_3"};
  EXPECT_TRUE(HasHeir(user) && HasHeir(job));
  EXPECT_FALSE(HasHeir(pod));
  EXPECT_TRUE(Inherits(job, next));
  EXPECT_FALSE(Inherits(job, others));
  EXPECT_FALSE(Inherits(job, user) || Inherits(user, job));
  EXPECT_FALSE(Inherits(pod, pod));
}

}  // namespace
}  // namespace sluice::daemon
