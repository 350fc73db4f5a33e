// Tests what operators use: metrics, the status page, admin calls.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <grp.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/integration/daemon/admin_stub.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::testing {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kHttpOn[] = "[http]\nlisten = \"127.0.0.1:0\"\n";

wire::Request Step(uint64_t step) {
  wire::Request request;
  auto* report = request.mutable_step_report();
  report->set_step(step);
  report->set_seconds(0.5);
  report->set_bytes_h2d(1000);
  report->set_bytes_d2h(2000);
  report->set_grant_wait_seconds(0.02);
  report->set_hbm_peak_bytes(MiB(3).size());
  report->set_tokens(512);
  report->set_loss(2.5);
  return request;
}

TEST(DaemonMetrics, AScrapeReportsPoolsLeasesStepsAndDeaths) {
  RunningDaemon daemon(kHttpOn);
  const std::string address = daemon.http_socket();
  EXPECT_THAT(HttpGet(address, "/metrics"),
              HasSubstr("sluice_client_deaths_total{reason=\"signal\"} 0"));
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
  ASSERT_THAT(client.Lease(wire::Lease::HOST, MiB(16)), IsOk());
  ASSERT_THAT(client.Call(Step(1)), IsOk());
  ASSERT_THAT(client.Call(Step(2)), IsOk());
  const std::string text = HttpGet(address, "/metrics");
  for (const char* line : {
           "sluice_pool_bytes{gpu=\"0\",UUID=\"GPU-sim-0\",state=\"leased\"} "
           "8388608\n",
           "sluice_pool_bytes{gpu=\"0\",UUID=\"GPU-sim-0\",state=\"free\"} "
           "29360128\n",
           "sluice_host_pool_bytes{numa_node=\"0\",state=\"leased\"} "
           "16777216\n",
           "sluice_lease_bytes{gpu=\"0\",UUID=\"GPU-sim-0\",sluice_job="
           "\"demo\",uid=\"0\"} 8388608\n",
           "sluice_swap_bytes_total{gpu=\"0\",UUID=\"GPU-sim-0\",direction="
           "\"d2h\"} 4000\n",
           "sluice_grant_wait_seconds_bucket{le=\"0.03\"} 2\n",
           "sluice_grant_wait_seconds_count 2\n",
           "sluice_job_loss{sluice_job=\"demo\",uid=\"0\"} 2.5\n",
           "sluice_job_tokens_total{sluice_job=\"demo\",uid=\"0\"} 1024\n",
           "sluice_leases_granted_total 2\n",
       }) {
    std::string expected = line;
    if (geteuid() != 0) {
      const std::string uid = fmt::format("uid=\"{}\"", geteuid());
      if (const size_t at = expected.find("uid=\"0\"");
          at != std::string::npos) {
        expected.replace(at, 7, uid);
      }
    }
    EXPECT_THAT(text, HasSubstr(expected));
  }
}

// Guards against counters that stand still for a step, which may take hours.
TEST(DaemonMetrics, SwapCountersFollowTheUsePagesWithinAStep) {
  RunningDaemon daemon(kHttpOn);
  const std::string address = daemon.ReadyField("http");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto hello, client.Hello("demo"));
  ASSERT_EQ(hello.fds.size(), 3u);
  void* page = mmap(nullptr, sizeof(GrantUse), PROT_READ | PROT_WRITE,
                    MAP_SHARED, hello.fds[1].get(), 0);
  ASSERT_NE(page, MAP_FAILED);
  auto* use = static_cast<GrantUse*>(page);
  const auto expect = [&](const char* direction, uint64_t bytes) {
    const std::string line = fmt::format(
        "sluice_swap_bytes_total{{gpu=\"0\",UUID=\"GPU-sim-0\",direction=\"{}"
        "\"}} {}\n",
        direction, bytes);
    const absl::Time late = absl::Now() + absl::Seconds(10);
    std::string text;
    do {
      text = HttpGet(address, "/metrics");
    } while (text.find(line) == text.npos && absl::Now() < late);
    EXPECT_THAT(text, HasSubstr(line));
  };
  use->slot.used_bytes[kH2d] = 5000;
  expect("h2d", 5000);
  ASSERT_THAT(client.Call(Step(1)), IsOk());  // reports 1000 and 2000 bytes
  expect("h2d", 5000);
  expect("d2h", 2000);
  use->slot.used_bytes[kH2d] = 7000;
  use->slot.used_bytes[kD2h] = 2500;
  AwaitRefills(hello.fds[0].get());
  client.socket().Reset();  // the rank leaves within a step
  expect("h2d", 7000);
  expect("d2h", 2500);
  munmap(page, sizeof(GrantUse));
}

TEST(DaemonMetrics, AScrapeReportsJobStepsBudgetLimitsLinkRatesAndTheProcess) {
  RunningDaemon daemon(std::string(kHttpOn) +
                       "[budgets]\nprincipal_host_bytes = \"300MiB\"\n"
                       "[[budgets.job]]\nname = \"night\"\n"
                       "gpu_bytes = \"8MiB\"\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  wire::Request step = Step(1);
  step.mutable_step_report()->set_seconds(7200);
  for (const double seconds : {0.002, 5.0}) {
    step.mutable_step_report()->add_map_seconds(seconds);
  }
  ASSERT_THAT(client.Call(step), IsOk());
  const std::string text = HttpGet(daemon.http_socket(), "/metrics");
  const std::string job =
      fmt::format("sluice_job=\"demo\",uid=\"{}\"", geteuid());
  for (const std::string& line :
       {"sluice_step_seconds_bucket{" + job + ",le=\"3600\"} 0\n",
        "sluice_step_seconds_bucket{" + job + ",le=\"10800\"} 1\n",
        "sluice_job_alpha{" + job + "} N",
        std::string("sluice_map_seconds_bucket{le=\"0.003\"} 1\n"),
        std::string("sluice_map_seconds_count 2\n"),
        std::string("sluice_budget_limit_bytes{of=\"every user\",memory="
                    "\"host\"} 314572800\n"),
        std::string("sluice_budget_limit_bytes{of=\"job\",sluice_job="
                    "\"night\",memory=\"gpu\"} 8388608\n"),
        std::string("sluice_link_capacity_bytes_per_second{link=\"pcie1\","
                    "parent=\"\","
                    "direction=\"d2h\"} 2000000000\n"),
        std::string("process_start_time_seconds 1"),
        std::string("process_resident_memory_bytes ")}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

// Guards against a daemon that treats a user without a cgroup as no user: log
// lines that no user causes have no limit.
TEST(DaemonLog, LinesThatAUserCausesAreLimitedAndCounted) {
  RunningDaemon daemon(kHttpOn);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  for (int i = 0; i < 400; ++i) {
    EXPECT_FALSE(client.Lease(wire::Lease::GPU, GiB(1)).ok());
  }
  EXPECT_THAT(HttpGet(daemon.http_socket(), "/metrics"),
              ContainsRegex("\nsluice_log_lines_suppressed_total [1-9]"));
}

TEST(DaemonMetrics, TheConfiguredGroupMayReadTheSocket) {
  RunningDaemon daemon(std::string(kHttpOn) + "socket_group = \"" +
                       getgrgid(getegid())->gr_name + "\"\n");
  struct stat info;
  ASSERT_EQ(stat(daemon.http_socket().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST(DaemonMetrics, AScrapeReportsTheQuotasThatEachUserUses) {
  RunningDaemon daemon(std::string(kHttpOn) +
                       "[quota]\nsessions = 2\nrank_sessions = 1\n"
                       "[pools]\ngpu_bytes = \"8MiB\"\n");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());
  wire::Packet waits;
  waits.set_id(100);
  waits.mutable_request()->mutable_lease()->set_bytes(MiB(8).size());
  waits.mutable_request()->mutable_lease()->set_wait_ms(60'000);
  ASSERT_THAT(wire::Send(client.fd(), waits), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient asker,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(asker.Hello("other"),
              StatusIs(absl::StatusCode::kResourceExhausted));
  ASSERT_THAT(asker.Observe(), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient third,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(third.Observe(), StatusIs(absl::StatusCode::kResourceExhausted));
  const std::string sums = HttpGet(daemon.ReadyField("http"), "/metrics");
  const std::string all = HttpGet(daemon.http_socket(), "/metrics");
  for (const char* line :
       {"sluice_quota_used{of=\"sessions\"} 2\n",
        "sluice_quota_limit_per_user{of=\"sessions\"} 2\n",
        "sluice_quota_used{of=\"rank_sessions\"} 1\n",
        "sluice_quota_used{of=\"waiting_leases\"} 1\n",
        "sluice_quota_refusals_total{of=\"rank_sessions\"} 1\n",
        "sluice_quota_refusals_total{of=\"sessions\"} 1\n"}) {
    EXPECT_THAT(sums, HasSubstr(line));
    EXPECT_THAT(all, HasSubstr(line));
  }
  EXPECT_THAT(sums, ::testing::Not(HasSubstr("sluice_quota_user_used")));
  EXPECT_THAT(all, HasSubstr(fmt::format("sluice_quota_user_used{{of=\"sessions"
                                         "\",uid=\"{}\",cgroup=\"\"}} 2\n",
                                         geteuid())));
  wire::Request query;
  query.mutable_query();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, asker.Call(query));
  const auto json = nlohmann::json::parse(reply.body.snapshot().json());
  const auto& sessions = json.at("quotas").at(0);
  EXPECT_EQ(sessions.at("of"), "sessions");
  EXPECT_EQ(sessions.at("users").at(0).at("uid"), geteuid());
  EXPECT_EQ(sessions.at("users").at(0).at("used"), 2);
  const auto& waiting = json.at("quotas").at(2);
  EXPECT_EQ(waiting.at("of"), "waiting_leases");
  EXPECT_EQ(waiting.at("users").at(0).at("used"), 1);
}

TEST(DaemonMetrics, AnObserverIsNotCountedAsASession) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(rank.Hello("demo"), IsOk());
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient asker,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(asker.Observe(), IsOk());
  wire::Request query;
  query.mutable_query();
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto reply, asker.Call(query));
  const auto json = nlohmann::json::parse(reply.body.snapshot().json());
  EXPECT_EQ(json.at("sessions"), 1);
  EXPECT_NE(json.at("hostname"), "");
  EXPECT_NE(json.at("version"), "");
}

TEST(DaemonMetrics, StatusPageIsSelfContainedAndItsDataIsJson) {
  RunningDaemon daemon(kHttpOn);
  const std::string address = daemon.ReadyField("http");
  const std::string page = HttpGet(address, "/");
  EXPECT_THAT(page, HasSubstr("200 OK"));
  EXPECT_THAT(page, HasSubstr("text/html"));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("http://")));
  EXPECT_THAT(page, ::testing::Not(HasSubstr("https://")));
  for (const char* key : {"jobs", "waiting", "holders", "limits", "budgets",
                          "reservations", "plans", "events", "drained"}) {
    EXPECT_THAT(page, HasSubstr(std::string("s.") + key));
  }
  EXPECT_THAT(HttpGet(address, "/status.json"),
              HasSubstr("\"driver\":\"sim\""));
  EXPECT_THAT(HttpGet(address, "/nothing"), HasSubstr("404"));
}

TEST(DaemonMetrics, IdleConnectionsDelayNoOtherReader) {
  RunningDaemon daemon(kHttpOn);
  const std::string address = daemon.ReadyField("http");
  sockaddr_in to = {};
  to.sin_family = AF_INET;
  to.sin_port = htons(
      static_cast<uint16_t>(std::stoi(address.substr(address.find(':') + 1))));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::vector<UniqueFd> idle;
  for (int i = 0; i < 3; ++i) {
    idle.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_EQ(connect(idle.back().get(), reinterpret_cast<sockaddr*>(&to),
                      sizeof(to)),
              0);
  }
  const absl::Time start = absl::Now();
  EXPECT_THAT(HttpGet(address, "/metrics"), HasSubstr("sluice_build_info"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

// Expects that the daemon does not start, reports `error`, and leaves its
// runtime directory empty.
void ExpectRefused(const std::string& toml, const std::string& error,
                   const std::string& folder = "run") {
  TempDir directory;
  const std::string config = directory.File("sluiced.toml");
  std::ofstream(config) << "[device]\ndriver = \"sim\"\n" << toml;
  const std::string run = directory.File(folder);
  std::filesystem::create_directories(run);
  const auto daemon = Child::Spawn(
      {BinaryPath("sluiced"), "--config", config, "--runtime-dir", run});
  const ChildResult result = daemon->Join();
  EXPECT_NE(result.exit_code, 0) << toml;
  EXPECT_THAT(result.err, HasSubstr("error: " + error));
  EXPECT_TRUE(std::filesystem::is_empty(run)) << toml;
}

TEST(DaemonHttp, ATakenPortDoesNotEndTheStart) {
  RunningDaemon first(kHttpOn);
  RunningDaemon second("[http]\nlisten = \"" + first.ReadyField("http") +
                       "\"\n");
  EXPECT_EQ(second.ReadyField("http"), "off");
  EXPECT_THAT(HttpGet(second.http_socket(), "/metrics"),
              HasSubstr("\nsluice_http_listening 0\n"));
}

TEST(DaemonStart, ARefusedStartLeavesNothingBehind) {
  ExpectRefused("[pools]\ngpu_bytes = \"1GiB\"\n", "gpu_bytes in [pools] is");
  ExpectRefused("[pools]\nhost_bytes = \"100GiB\"\n",
                "host_bytes in [pools] is");
  ExpectRefused("[http]\nlisten = \"nowhere\"\n", "'nowhere' is no address");
  ExpectRefused("[sim]\nspeed = 1\n", "");
  ExpectRefused("", "", std::string(120, 'x'));
}

TEST(DaemonAdmin, TheSocketIsForOwnerAndGroupOnly) {
  RunningDaemon daemon;
  struct stat info;
  ASSERT_EQ(stat((daemon.runtime_dir() + "/admin.sock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
}

TEST(DaemonAdmin, ABudgetBindsAtOnceAndIsRefusedBelowWhatIsUsed) {
  RunningDaemon daemon;
  const auto stub = AdminStub(daemon);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo"), IsOk());
  ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8)), IsOk());

  grpc::ClientContext too_low;
  admin::SetBudgetRequest request;
  admin::SetBudgetReply reply;
  request.set_job("demo");
  request.set_gpu_bytes(MiB(4).size());
  grpc::Status status = stub->SetBudget(&too_low, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_message(), HasSubstr("already uses 8 MiB"));
  grpc::ClientContext too_long;
  request.set_job(std::string(1000, 'x'));
  status = stub->SetBudget(&too_long, request, &reply);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);

  request.set_job("demo");
  grpc::ClientContext enough;
  request.set_gpu_bytes(MiB(10).size());
  status = stub->SetBudget(&enough, request, &reply);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(reply.gpu_bytes(), MiB(10).size());
  EXPECT_EQ(reply.host_bytes(), 0u);  // still unlimited
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(4)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("job 'demo' uses 8 MiB of its limit of 10 "
                                 "MiB; an administrator can raise it")));
  EXPECT_THAT(client.Lease(wire::Lease::GPU, MiB(2)), IsOk());
}

// Guards against the answer "nothing was changed" though the file was changed.
TEST(DaemonAdmin, AnUnsyncedBudgetHoldsAndIsAnsweredWithDataLoss) {
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can start sluiced as another user";
  constexpr uid_t kNobody = 65534;
  const TempDir kept;
  // Files can be made in the folder, but opening the folder to sync it fails.
  ASSERT_EQ(chown(kept.path().c_str(), kNobody, kNobody), 0);
  ASSERT_EQ(chmod(kept.path().c_str(), 0300), 0);
  RunningDaemon daemon(fmt::format("[policy]\nfolder = \"{}\"\n", kept.path()),
                       {.user = kNobody});
  const auto stub = AdminStub(daemon);
  admin::SetBudgetRequest set;
  set.set_job("tune");
  set.set_gpu_bytes(MiB(4).size());
  admin::SetBudgetReply limits;
  grpc::ClientContext budget;
  const grpc::Status status = stub->SetBudget(&budget, set, &limits);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(status.error_message(),
              AllOf(HasSubstr("it is in force: the policy "),
                    HasSubstr("if the power fails before it is on the disk: "),
                    Not(HasSubstr("nothing was changed"))));
  std::ifstream file(kept.File("policy"));
  EXPECT_THAT(std::string(std::istreambuf_iterator<char>(file), {}),
              HasSubstr("\"tune\""));
  grpc::ClientContext ask;
  admin::StatusReply told;
  ASSERT_TRUE(stub->Status(&ask, admin::StatusRequest(), &told).ok());
  EXPECT_THAT(told.json(), HasSubstr("\"gpu_limit_bytes\":4194304"));
}

TEST(DaemonAdmin, LimitsAndDrainsOutliveTheDaemon) {
  const TempDir kept;
  const std::string toml =
      fmt::format("[policy]\nfolder = \"{}/state\"\n", kept.path());
  {
    RunningDaemon daemon(toml);
    const auto stub = AdminStub(daemon);
    admin::SetBudgetRequest set;
    set.set_job("tune");
    set.set_gpu_bytes(MiB(4).size());
    set.set_by("alice");
    grpc::ClientContext budget, drain;
    admin::SetBudgetReply limits;
    ASSERT_TRUE(stub->SetBudget(&budget, set, &limits).ok());
    admin::DrainRequest why;
    why.set_by("bob");
    why.set_reason("new driver");
    admin::DrainReply drained;
    ASSERT_TRUE(stub->Drain(&drain, why, &drained).ok());
    EXPECT_EQ(drained.ranks(), 0u);
    daemon.process().Kill(SIGKILL);  // no chance to write anything
    daemon.process().Join();
  }
  RunningDaemon daemon(toml);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient late,
                              RawClient::Connect(daemon.socket()));
  EXPECT_THAT(late.Hello("tune"),
              StatusIs(absl::StatusCode::kFailedPrecondition,
                       HasSubstr("the node is drained by bob (new driver)")));
  const auto stub = AdminStub(daemon);
  grpc::ClientContext status, undrain, again;
  admin::StatusReply told;
  ASSERT_TRUE(stub->Status(&status, {}, &told).ok());
  const auto snapshot = nlohmann::json::parse(told.json());
  EXPECT_EQ(snapshot["drained"]["reason"], "new driver");
  EXPECT_EQ(snapshot["limits"][0]["job"], "tune");
  EXPECT_EQ(snapshot["limits"][0]["by"], "alice");
  admin::UndrainReply done;
  ASSERT_TRUE(stub->Undrain(&undrain, {}, &done).ok());
  EXPECT_EQ(stub->Undrain(&again, {}, &done).error_message(),
            "the node is not drained");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(rank.Hello("tune"), IsOk());
  EXPECT_THAT(rank.Lease(wire::Lease::GPU, MiB(5)),
              StatusIs(absl::StatusCode::kResourceExhausted,
                       HasSubstr("its limit of 4 MiB")));
}

TEST(DaemonAdmin, ABudgetThatCannotBeStoredIsNotSet) {
  const TempDir kept;
  std::ofstream(kept.File("file")) << "no folder";
  RunningDaemon daemon(
      fmt::format("[policy]\nfolder = \"{}/file/state\"\n", kept.path()));
  const auto stub = AdminStub(daemon);
  admin::SetBudgetRequest set;
  set.set_job("tune");
  set.set_gpu_bytes(MiB(4).size());
  grpc::ClientContext budget, status;
  admin::SetBudgetReply limits;
  const grpc::Status refused = stub->SetBudget(&budget, set, &limits);
  EXPECT_THAT(refused.error_message(), HasSubstr("nothing was changed"));
  admin::StatusReply told;
  ASSERT_TRUE(stub->Status(&status, {}, &told).ok());
  EXPECT_TRUE(nlohmann::json::parse(told.json())["limits"].empty());
}

TEST(DaemonStart, ABadPolicyIsRefusedInOneLine) {
  ExpectPolicyIsRefused(
      "{", {"error: the policy ", "it is no JSON, or not all of it; mend"});
}

TEST(DaemonAdmin, StatusShowsTheMemoryOfEachRank) {
  RunningDaemon daemon;
  const auto stub = AdminStub(daemon);
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Hello("demo", 0, 1, 1), IsOk());
  ASSERT_THAT(client.Lease(wire::Lease::GPU, MiB(8), 1), IsOk());
  grpc::ClientContext context;
  admin::StatusReply status;
  ASSERT_TRUE(stub->Status(&context, {}, &status).ok());
  const auto jobs = nlohmann::json::parse(status.json()).at("jobs");
  ASSERT_EQ(jobs.size(), 1u);
  EXPECT_EQ(jobs[0].at("name"), "demo");
  EXPECT_EQ(jobs[0].at("uid"), geteuid());
  ASSERT_EQ(jobs[0].at("ranks").size(), 1u);
  EXPECT_EQ(jobs[0].at("ranks")[0].at("pid"), getpid());
  EXPECT_EQ(jobs[0].at("ranks")[0].at("gpu"), 1);
  EXPECT_EQ(jobs[0].at("ranks")[0].at("gpu_bytes"), MiB(8).size());
}

}  // namespace
}  // namespace sluice::testing
