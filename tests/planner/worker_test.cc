// Tests sluice-worker as the daemon uses it: a real process, real descriptors.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "proto/base/spawn.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"
#include "tests/planner/traces.h"

namespace sluice::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

UniqueFd Memfd(std::string_view content = "") {
  UniqueFd fd(memfd_create("worker_test", MFD_CLOEXEC));
  EXPECT_EQ(write(fd.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  return fd;
}

std::string ContentOf(const UniqueFd& fd) {
  std::string content(static_cast<size_t>(lseek(fd.get(), 0, SEEK_END)), 0);
  EXPECT_EQ(pread(fd.get(), content.data(), content.size(), 0),
            static_cast<ssize_t>(content.size()));
  return content;
}

struct Outcome {
  int status = 0;  // of waitpid
  std::string out;
  std::string err;
  std::string printed;  // on standard output

  int exit_code() const { return WIFEXITED(status) ? WEXITSTATUS(status) : -1; }
};

double CpuSeconds(pid_t pid) {
  clockid_t clock;
  timespec now{};
  if (clock_getcpuclockid(pid, &clock) != 0) return 0;
  if (clock_gettime(clock, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

// In the worker, descriptors 103 and 104 are `in` and a memfd. `signal`, if not
// 0, is sent once the worker has used `cpu_seconds` of CPU time. The worker has
// its first plan after less than a second of CPU time.
Outcome RunWorker(int in, std::vector<std::string> args, int signal = 0,
                  double cpu_seconds = 1) {
  const UniqueFd out = Memfd();
  const UniqueFd err = Memfd();
  const UniqueFd printed = Memfd();
  args.insert(args.begin(),
              std::string(std::getenv("SLUICE_BIN_DIR")) + "/sluice-worker");
  // Blocks SIGUSR1 as the daemon does, so that the signal stays pending until
  // the worker can handle it.
  const auto started = Spawn(args, {.files = {{printed.get(), STDOUT_FILENO},
                                              {err.get(), STDERR_FILENO},
                                              // High numbers, so that no dup2
                                              // closes a descriptor that is
                                              // still needed.
                                              {in, 103},
                                              {out.get(), 104}},
                                    .blocked = {SIGUSR1}});
  EXPECT_TRUE(started.ok()) << started.status();
  if (!started.ok()) return {};
  const pid_t pid = *started;
  Outcome outcome;
  while (signal != 0 && CpuSeconds(pid) < cpu_seconds &&
         waitpid(pid, &outcome.status, WNOHANG) == 0) {
    usleep(5000);
  }
  if (signal != 0) kill(pid, signal);
  EXPECT_EQ(waitpid(pid, &outcome.status, 0), pid);
  outcome.out = ContentOf(out);
  outcome.err = ContentOf(err);
  outcome.printed = ContentOf(printed);
  return outcome;
}

const std::vector<std::string> kFds = {"--in-fd", "103", "--out-fd", "104"};

plan::PlanRequest SampleRequest() {
  std::mt19937 random(11);
  plan::PlanRequest request;
  for (uint64_t r = 0; r < 2; ++r) {
    plan::RankProfile p;
    p.rank = Rank(r);
    p.kinds[0].layers = 4;
    p.kinds[0].forward_layer_seconds = 1;
    p.kinds[0].backward_layer_seconds = 2;
    p.classes = {{.name = "in", .bytes_per_layer = MiB(1), .must_swap = true},
                 {.name = "up", .bytes_per_layer = MiB(4)}};
    p.segments = {{.name = "ffn.full", .trace = LayerTrace(random, 4, 0.5)},
                  // No greedy order meets its bound, so the solvers run.
                  {.name = "hard", .trace = ReadCsv("B.1048576.csv")},
                  {.name = "odd", .trace = AboveMaxLive()}};
    request.profiles.push_back(p);
  }
  request.resources.hosts = {{"host of NUMA node 0", MiB(30), {0, 1}}};
  request.resources.links = {{"pcie0", 1e9, 1e9, {0, 1}}};
  return request;
}

TEST(Worker, AnswersARequestWithAValidPlanAndPrintsNothing) {
  const plan::PlanRequest request = SampleRequest();
  std::vector<std::string> args = kFds;
  args.insert(args.end(), {"--time-limit-s", "600"});  // enough for the optimum
  const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), args);
  EXPECT_EQ(outcome.exit_code(), 0) << outcome.err;
  EXPECT_EQ(outcome.err, "");
  EXPECT_EQ(outcome.printed, "");
  const auto plan = plan::DecodeNodePlan(outcome.out);
  ASSERT_TRUE(plan.ok()) << plan.status();
  const absl::Status valid =
      plan::ValidateNodePlan(request.profiles, request.resources, *plan);
  EXPECT_TRUE(valid.ok()) << valid;
  EXPECT_EQ(plan->infeasible, "");
  EXPECT_EQ(plan->profile_hash, plan::HashProfiles(request.profiles));
  for (const plan::SegmentPlan& s : plan->ranks[0].segments) {
    EXPECT_TRUE(s.placement.optimal()) << s.name;
  }
}

TEST(Worker, AnswersOnStandardOutputByDefault) {
  const Outcome outcome =
      RunWorker(Memfd(plan::Encode(SampleRequest())).get(), {"--in-fd", "103"});
  EXPECT_EQ(outcome.exit_code(), 0) << outcome.err;
  EXPECT_TRUE(plan::DecodeNodePlan(outcome.printed).ok());
}

TEST(Worker, ReadsAPipeToItsEnd) {
  const std::string bytes = plan::Encode(SampleRequest());
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  // A request that is larger than the pipe would block this test.
  ASSERT_LT(bytes.size(), 65536u);
  ASSERT_EQ(write(writer.get(), bytes.data(), bytes.size()),
            static_cast<ssize_t>(bytes.size()));
  writer.Reset();
  const Outcome outcome = RunWorker(reader.get(), kFds);
  EXPECT_EQ(outcome.exit_code(), 0) << outcome.err;
  EXPECT_TRUE(plan::DecodeNodePlan(outcome.out).ok());
}

TEST(Worker, AnInfeasibleRequestIsAnsweredByAPlanThatSaysWhy) {
  plan::PlanRequest request = SampleRequest();
  request.resources.hosts[0].bytes = MiB(7);
  const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), kFds);
  EXPECT_EQ(outcome.exit_code(), 0);
  const auto plan = plan::DecodeNodePlan(outcome.out);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_THAT(plan->infeasible, HasSubstr("the host of NUMA node 0 has 7 MiB"));
  EXPECT_EQ(plan->limited_by, "host_memory");
}

TEST(Worker, BadInputIsOneLineAndExitStatusTwo) {
  plan::PlanRequest request = SampleRequest();
  request.profiles[1].kinds[0].layers = 0;
  const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), kFds);
  EXPECT_EQ(outcome.exit_code(), 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err,
            "error: sluice.plan_request: profiles[1].layers: 0 is not "
            "between 1 and 1048576\n");
  EXPECT_EQ(RunWorker(Memfd("").get(), kFds).exit_code(), 2);
  const Outcome flag = RunWorker(Memfd("").get(), {"--time-limit-s", "-1"});
  EXPECT_EQ(flag.exit_code(), 2);
  EXPECT_THAT(flag.err, StartsWith("error: "));
}

TEST(Worker, AnOutputThatCannotBeWrittenIsAnError) {
  const Outcome outcome = RunWorker(Memfd(plan::Encode(SampleRequest())).get(),
                                    {"--in-fd", "103", "--out-fd", "105"});
  EXPECT_EQ(outcome.exit_code(), 1);
  EXPECT_THAT(outcome.err, StartsWith("error: write the plan"));
}

TEST(Worker, EndsItselfAtItsDeadline) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  const UniqueFd writer(ends[1]);  // never closed: the worker waits for ever
  const auto start = std::chrono::steady_clock::now();
  std::vector<std::string> args = kFds;
  args.insert(args.end(), {"--time-limit-s", "0.3"});
  const Outcome outcome = RunWorker(reader.get(), args);
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - start;
  EXPECT_EQ(outcome.exit_code(), 4);
  EXPECT_EQ(outcome.err, "error: the plan was not ready at its deadline\n");
  EXPECT_EQ(outcome.out, "");
  EXPECT_LT(took.count(), 5);
}

plan::PlanRequest HardRequest() {
  plan::PlanRequest request = SampleRequest();
  request.profiles.resize(1);
  request.resources = {};
  request.profiles[0].segments.clear();
  for (int k = 0; k < 8; ++k) {
    // The traces differ, because equal traces are solved once.
    plan::Trace trace = ReadCsv("I.1048576.csv");
    trace.buffers.erase(trace.buffers.begin() + k);
    request.profiles[0].segments.push_back(
        {.name = "I" + std::to_string(k), .trace = std::move(trace)});
  }
  return request;
}

// Expects that the worker wrote a valid plan, and copies it to `plan` unless
// `plan` is null.
void ExpectValidPlan(const Outcome& outcome, const plan::PlanRequest& request,
                     plan::NodePlan* plan = nullptr) {
  ASSERT_EQ(outcome.exit_code(), 0) << outcome.err;
  const auto written = plan::DecodeNodePlan(outcome.out);
  ASSERT_TRUE(written.ok()) << written.status();
  const absl::Status valid =
      plan::ValidateNodePlan(request.profiles, request.resources, *written);
  EXPECT_TRUE(valid.ok()) << valid;
  if (plan != nullptr) *plan = *written;
}

#ifndef SLUICE_SANITIZED
TEST(Worker, StaysWithinItsMemoryLimit) {
  plan::PlanRequest request = SampleRequest();
  const auto with = [&](const char* bytes) {
    std::vector<std::string> args = kFds;
    args.insert(args.end(), {"--time-limit-s", "20", "--memory-bytes", bytes});
    return RunWorker(Memfd(plan::Encode(request)).get(), args);
  };
  const Outcome enough = with("1000000000");
  EXPECT_EQ(enough.exit_code(), 0) << enough.err;
  // The decoded request takes about 300 MB.
  plan::Trace& trace = request.profiles[0].segments[0].trace;
  trace.buffers.clear();
  constexpr int64_t kBuffers = 1'000'000;
  for (int64_t i = 0; i < kBuffers; ++i) {
    trace.buffers.push_back({i, i, i + 1, Bytes(64)});
  }
  trace.end = kBuffers;
  const Outcome short_of = with("100000000");
  EXPECT_EQ(short_of.exit_code(), 1);
  EXPECT_THAT(short_of.err, StartsWith("error: a solver crashed, or needs more "
                                       "memory"));
  EXPECT_EQ(std::count(short_of.err.begin(), short_of.err.end(), '\n'), 1);
}
#endif

// SIGUSR1 says that other requests wait. It may come before there is any plan.
TEST(Worker, AHurriedWorkerWritesTheFirstPlanThatItHas) {
  const plan::PlanRequest request = HardRequest();
  const std::string encoded = plan::Encode(request);
  for (const double cpu_seconds : {0.02, 1.0}) {
    const auto start = std::chrono::steady_clock::now();
    const Outcome outcome =
        RunWorker(Memfd(encoded).get(),
                  {"--in-fd", "103", "--out-fd", "104", "--time-limit-s", "60"},
                  SIGUSR1, cpu_seconds);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - start;
    ASSERT_NO_FATAL_FAILURE(ExpectValidPlan(outcome, request));
    EXPECT_LT(took.count(), 25)
        << "the hurried worker used too much of its 60 s";
  }
}

// If the deadline comes while a hurried plan is written, the worker must not
// write the plan again and report success.
TEST(Worker, ADeadlineDuringAHurriedPlanDoesNotWriteItTwice) {
  const UniqueFd in = Memfd(plan::Encode(SampleRequest()));
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]);
  UniqueFd writer(ends[1]);
  const int room = fcntl(writer.get(), F_SETPIPE_SZ, 4096);
  ASSERT_GT(room, 0);
  const auto pid = Spawn(
      {std::string(std::getenv("SLUICE_BIN_DIR")) + "/sluice-worker", "--in-fd",
       "103", "--out-fd", "104", "--time-limit-s", "60"},
      {.files = {{in.get(), 103}, {writer.get(), 104}}, .blocked = {SIGUSR1}});
  ASSERT_TRUE(pid.ok()) << pid.status();
  writer.Reset();
  kill(*pid, SIGUSR1);
  int waiting = 0;
  for (int i = 0; i < 6000 && waiting < room; ++i) {
    usleep(10000);
    ASSERT_EQ(ioctl(reader.get(), FIONREAD, &waiting), 0);
  }
  ASSERT_EQ(waiting, room) << "the plan did not fill the pipe";
  kill(*pid, SIGALRM);
  const auto written = ReadAll(reader.get(), 1 << 24, "the plan");
  ASSERT_TRUE(written.ok()) << written.status();
  Outcome outcome;
  EXPECT_EQ(waitpid(*pid, &outcome.status, 0), *pid);
  EXPECT_EQ(outcome.exit_code(), 4) << written->size() << " bytes";
}

TEST(Worker, BecomesTheGivenUserBeforeItReads) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can change the worker's user";
  const plan::PlanRequest request = SampleRequest();
  std::vector<std::string> args = kFds;
  args.insert(args.end(), {"--uid", "65534", "--gid", "65534"});
  const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), args);
  ASSERT_EQ(outcome.exit_code(), 0) << outcome.err;
  EXPECT_TRUE(plan::DecodeNodePlan(outcome.out).ok());
  // Reads the worker's ids in /proc while the worker waits for a request.
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  const auto pid =
      Spawn({std::string(std::getenv("SLUICE_BIN_DIR")) + "/sluice-worker",
             "--uid=65534", "--gid=65533"},
            {.files = {{reader.get(), STDIN_FILENO}}});
  ASSERT_TRUE(pid.ok()) << pid.status();
  std::string ids;
  for (int i = 0; i < 500 && ids != "65534 65533"; ++i) {
    usleep(10000);
    std::ifstream file("/proc/" + std::to_string(*pid) + "/status");
    std::string uid, gid;
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string key;
      words >> key;
      if (key == "Uid:") words >> uid;
      if (key == "Gid:") words >> gid;
    }
    ids = uid + " " + gid;
  }
  kill(*pid, SIGKILL);
  waitpid(*pid, nullptr, 0);
  EXPECT_EQ(ids, "65534 65533");
}

// A crash of a solver costs the proof, not the plan. The signal, sent while the
// search is busy with a trace that it cannot solve, stands for the crash.
TEST(Worker, ACrashWhileSolvingStillGivesAValidPlan) {
  const plan::PlanRequest request = HardRequest();
  const Outcome outcome = RunWorker(
      Memfd(plan::Encode(request)).get(),
      {"--in-fd", "103", "--out-fd", "104", "--time-limit-s", "60"}, SIGSEGV);
  plan::NodePlan plan;
  ASSERT_NO_FATAL_FAILURE(ExpectValidPlan(outcome, request, &plan));
  EXPECT_EQ(plan.ranks[0].segments[0].placement.proved_by, "none");
}

// Units that the daemon knows are not solved again.
TEST(Worker, KnownUnitsAreUsedAsTheyAre) {
  plan::PlanRequest request = SampleRequest();
  const auto run = [&request] {
    const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), kFds);
    EXPECT_EQ(outcome.exit_code(), 0) << outcome.err;
    auto plan = plan::DecodeNodePlan(outcome.out);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.ok() ? *std::move(plan) : plan::NodePlan{};
  };
  const plan::NodePlan first = run();
  EXPECT_GT(first.units_solved, 0);
  EXPECT_EQ(first.units_known, 0);
  for (size_t r = 0; r < request.profiles.size(); ++r) {
    const auto& kinds = request.profiles[r].segments;
    for (size_t k = 0; k < kinds.size(); ++k) {
      plan::UnitPlan unit{plan::Canonical(kinds[k].trace),
                          first.ranks[r].segments[k].placement};
      unit.placement.method = "from the cache";
      request.known.push_back(std::move(unit));
    }
  }
  for (plan::RankProfile& p : request.profiles) {
    p.kinds[0].forward_layer_seconds *=
        1.01;  // a new measurement always differs
  }
  const plan::NodePlan second = run();
  EXPECT_EQ(second.units_solved, 0);
  EXPECT_EQ(second.units_known, first.units_solved);
  EXPECT_EQ(second.ranks[0].segments[0].placement.method, "from the cache");
}

TEST(Worker, HardTracesAreAnsweredInTimeAndMissingProofsAreNamed) {
  plan::PlanRequest request = SampleRequest();
  request.profiles.resize(1);
  request.resources = {};
  request.profiles[0].segments = {
      {.name = "E", .trace = ReadCsv("E.1048576.csv")},
      {.name = "I", .trace = ReadCsv("I.1048576.csv")}};
  std::vector<std::string> args = kFds;
  args.insert(args.end(), {"--time-limit-s", "4"});
  const Outcome outcome = RunWorker(Memfd(plan::Encode(request)).get(), args);
  ASSERT_EQ(outcome.exit_code(), 0) << outcome.err;
  const auto plan = plan::DecodeNodePlan(outcome.out);
  ASSERT_TRUE(plan.ok());
  for (const plan::SegmentPlan& s : plan->ranks[0].segments) {
    EXPECT_EQ(s.placement.optimal(), s.placement.proved_by != "none");
  }
}

// A killed daemon leaves no solver behind.
TEST(Worker, EndsWithTheProcessThatStartedIt) {
  // The request never ends, because this process keeps the writing end.
  int request[2], said[2];
  ASSERT_EQ(pipe(request), 0);
  ASSERT_EQ(pipe(said), 0);
  const UniqueFd in(request[0]), never_written(request[1]);
  const UniqueFd hear(said[0]);
  UniqueFd say(said[1]);
  const pid_t parent = fork();
  if (parent == 0) {
    const pid_t pid =
        Spawn({std::string(std::getenv("SLUICE_BIN_DIR")) + "/sluice-worker"},
              {.files = {{in.get(), STDIN_FILENO}, {say.get(), STDOUT_FILENO}}})
            .value_or(0);
    // Waits until the worker is confined, and a moment more.
    const std::string path = "/proc/" + std::to_string(pid) + "/status";
    for (int i = 0; i < 2000; ++i) {
      std::ostringstream status;
      status << std::ifstream(path).rdbuf();
      if (status.str().find("NoNewPrivs:\t1") != std::string::npos) break;
      usleep(10000);
    }
    usleep(300000);
    _exit(write(say.get(), &pid, sizeof(pid)) == sizeof(pid) ? 0 : 1);
  }
  pid_t worker = 0;
  ASSERT_EQ(read(hear.get(), &worker, sizeof(worker)),
            static_cast<ssize_t>(sizeof(worker)));
  ASSERT_EQ(waitpid(parent, nullptr, 0), parent);
  ASSERT_GT(worker, 0);
  // Once this process's writing end is closed, the worker has the last one.
  say.Reset();
  pollfd gone{.fd = hear.get(), .events = 0, .revents = 0};
  EXPECT_EQ(poll(&gone, 1, 5000), 1);
  if (gone.revents == 0) kill(worker, SIGKILL);
}

}  // namespace
}  // namespace sluice::planner
