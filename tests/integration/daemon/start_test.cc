// Tests what operators do around a daemon: check its configuration, use its
// command line, send it signals, and probe it.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/http.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ChildResult Sluiced(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), BinaryPath("sluiced"));
  return Child::Spawn(arguments)->Join();
}

// Guards against signals that end the daemon and leave its sockets and sim/.
TEST(DaemonSignals, HupAndUserSignalsAreLoggedAndTheDaemonStillServes) {
  RunningDaemon daemon;
  for (const int signal : {SIGHUP, SIGUSR1, SIGUSR2}) {
    daemon.process().Kill(signal);
    EXPECT_THAT(GpuPool(daemon.socket(), 0), IsOk()) << signal;
  }
  daemon.process().Kill(SIGTERM);
  const ChildResult end = daemon.process().Join();
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_THAT(end.err, HasSubstr("SIGHUP: the configuration is read at the "
                                 "start only"));
  EXPECT_THAT(end.err, HasSubstr("SIGUSR1 is ignored"));
  EXPECT_THAT(end.err, Not(HasSubstr("was not finished")));
}

TEST(DaemonSignals, EverySignalThatEndsTheDaemonLeavesNothing) {
  for (const int signal : {SIGTERM, SIGINT, SIGQUIT}) {
    RunningDaemon daemon;
    daemon.process().Kill(signal);
    EXPECT_EQ(daemon.process().Join().exit_code, 0) << signal;
    for (const char* left :
         {"session.sock", "admin.sock", "http.sock", "sim", "lock"}) {
      EXPECT_FALSE(std::filesystem::exists(daemon.runtime_dir() + "/" + left))
          << left;
    }
  }
}

TEST(DaemonCheckConfig, CheckConfigReportsTheErrorsOfAStartAndCreatesNothing) {
  const TempDir directory;
  const std::string config = directory.File("c.toml");
  const std::string run = directory.File("run");
  const auto check = [&](const std::string& text) {
    std::ofstream(config) << "[device]\ndriver = \"sim\"\n" << text;
    return Sluiced(
        {"--config", config, "--runtime-dir", run, "--check-config"});
  };
  const ChildResult good = check("");
  EXPECT_EQ(good.exit_code, 0) << good.err;
  EXPECT_THAT(good.out, HasSubstr(config + ": good: sim driver: GPU 0"));
  for (const auto& [text, says] :
       {std::pair{"[sim]\nspeed = 1\n", "unknown key 'speed'"},
        std::pair{"[pools]\ngpu_bytes = \"1GiB\"\n", "gpu_bytes in [pools] is"},
        std::pair{"[http]\nlisten = \"nowhere\"\n",
                  "'nowhere' is no address"}}) {
    const ChildResult bad = check(text);
    EXPECT_EQ(bad.exit_code, 2) << text;
    EXPECT_THAT(bad.err, HasSubstr(says));
  }
  // The unit's descriptor store has room for all memory of eight GPUs and two
  // NUMA nodes.
  EXPECT_THAT(check("[sim]\ngpus = 8\ngpu_memory = \"80GiB\"\n"
                    "numa_nodes = 2\nhost_memory = \"1TiB\"\n")
                  .out,
              HasSubstr("extents of 640 MiB and of 1 GiB of host memory"));
  EXPECT_FALSE(std::filesystem::exists(run));
}

TEST(DaemonCommandLine, ATypoGetsASuggestionAndTheVersionIsPrinted) {
  const ChildResult typo = Sluiced({"--confg", "x"});
  EXPECT_EQ(typo.exit_code, 2);
  EXPECT_THAT(typo.err, HasSubstr("did you mean --config?"));
  const ChildResult version = Sluiced({"--version"});
  EXPECT_EQ(version.exit_code, 0);
  EXPECT_THAT(version.out, HasSubstr("sluiced 0."));
  EXPECT_THAT(Sluiced({"--help"}).out, HasSubstr("--check-config"));
  EXPECT_THAT(Sluiced({"--driver", "rocm"}).err,
              HasSubstr("--driver 'rocm': must be auto, cuda or sim"));
}

TEST(DaemonHealth, HealthzAnswersOk) {
  RunningDaemon daemon("[http]\nlisten = \"127.0.0.1:0\"\n");
  const std::string answer = HttpGet(daemon.ReadyField("http"), "/healthz");
  EXPECT_THAT(answer, HasSubstr("200 OK"));
  EXPECT_THAT(answer, HasSubstr("ok\n"));
}

}  // namespace
}  // namespace sluice::testing
