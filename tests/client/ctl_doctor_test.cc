// Tests the doctor's checks on made-up facts, and how facts are read.
#include <pwd.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>

#include "client/ctl/doctor/checks.h"
#include "client/ctl/doctor/facts.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/device/driver.h"
#include "proto/base/cgroup.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::ctl {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Seen = FileFacts::Seen;

FileFacts File(const std::string& path, mode_t mode) {
  return {.path = path,
          .seen = Seen::kThere,
          .owner = "sluice",
          .group = "sluice",
          .mode = mode,
          .usable = true};
}

// Returns a healthy node of two GPUs under systemd.
Facts Good() {
  Facts facts;
  facts.version = "1.2.3";
  facts.user = "alice";
  facts.daemon = {.reached = absl::OkStatus(),
                  .version = "1.2.3",
                  .driver = "cuda",
                  .generation = 7,
                  .sessions = 3,
                  .host_pools = GiB(64),
                  .host_memory = "HOST_NUMA",
                  .http = "127.0.0.1:9435"};
  facts.process = {
      .pid = 42, .open_files = 65536, .memory_nodes = "0-1", .user = 999};
  facts.http_listener = 999;
  facts.unit = UnitFacts{
      .active = true, .status = "serving", .store_most = 2000, .stored = 40};
  facts.driver = {.device = "/dev/nvidia0",
                  .module_loaded = true,
                  .persistence = std::vector<bool>{true, true}};
  facts.machine = {.online_nodes = "0-1", .huge_page = MiB(2)};
  facts.folder = File("/run/sluice", 0755);
  facts.session = File("/run/sluice/session.sock", 0666);
  facts.admin = File("/run/sluice/admin.sock", 0660);
  facts.policy = File("/var/lib/sluice/policy", 0600);
  return facts;
}

// Returns the node of Good(), with a keeper in place of systemd.
Facts Kept() {
  Facts facts = Good();
  facts.unit.reset();
  facts.keeper = true;
  return facts;
}

Finding FindingOf(const Facts& facts, const std::string& what) {
  for (const Finding& found : Examine(facts)) {
    if (found.what == what) return found;
  }
  ADD_FAILURE() << "no check " << what;
  return {};
}

std::vector<std::string> NotOk(const Facts& facts) {
  std::vector<std::string> names;
  for (const Finding& found : Examine(facts)) {
    if (found.health != Health::kOk) names.push_back(found.what);
  }
  return names;
}

struct Case {
  const char* what;
  std::function<void(Facts&)> spoil;
  Health health;
  const char* said;
  const char* fix;
};

std::vector<Case> Cases() {
  const auto not_reached = [](absl::Status why) {
    return [why](Facts& facts) { facts.daemon = {.reached = why}; };
  };
  return {
      {"daemon", not_reached(absl::NotFoundError("no socket")),
       Health::kProblem, "no socket", "sudo systemctl restart sluiced"},
      {"daemon", not_reached(absl::FailedPreconditionError("protocol 2")),
       Health::kProblem, "protocol 2",
       "sudo apt install ./sluice-daemon_*.deb ./sluicectl_*.deb"},
      {"daemon",
       not_reached(absl::FailedPreconditionError("sluiced is frozen: why")),
       Health::kProblem, "frozen: why", "sudo systemctl restart sluiced"},
      {"daemon",
       [](Facts& f) {
         f.daemon = {.reached =
                         absl::FailedPreconditionError("sluiced is frozen")};
         f.unit.reset();
         f.process.pid = 12;
       },
       Health::kProblem, "frozen", "sudo kill -HUP 12"},
      {"daemon",
       [](Facts& f) {
         f.daemon = {.reached = absl::PermissionDeniedError("no permission")};
         f.session.usable = false;
       },
       Health::kProblem, "no permission",
       "sudo chmod a+rw /run/sluice/session.sock"},
      {"version", [](Facts& f) { f.daemon.version = "1.3.0"; },
       Health::kWarning, "sluiced is 1.3.0, this sluicectl 1.2.3",
       "sudo apt install ./sluice-daemon_*.deb ./sluicectl_*.deb"},
      {"state",
       [](Facts& f) {
         f.daemon.drained = DaemonFacts::Drained{"root", "new\ndriver"};
       },
       Health::kWarning, "drained by root (new?driver)", "sluicectl undrain"},
      {"session socket",
       [](Facts& f) {
         f.session.seen = FileFacts::Seen::kHidden;
         f.session.usable = false;
       },
       Health::kProblem, "alice may not enter /run/sluice",
       "sudo chmod a+x /run/sluice"},
      {"state", [](Facts& f) { f.unit->status = "frozen"; }, Health::kWarning,
       "sluiced says: frozen", "sudo journalctl -n 50 -u sluiced"},
      {"driver", [](Facts& f) { f.driver.fault = "no libcuda.so.1"; },
       Health::kProblem, "cannot be used: no libcuda.so.1",
       "sudo nvidia-modprobe -u -c 0 && nvidia-smi"},
      {"driver",
       [](Facts& f) {
         f.driver.fault = "no libcuda.so.1";
         f.driver.module_loaded = false;
       },
       Health::kProblem, "(/dev/nvidia0)", "sudo modprobe nvidia-uvm"},
      {"driver",
       [](Facts& f) {
         f.daemon.gpu_faults = {"GPU 3 (46: lost) is gone: nvidia-smi -q",
                                "GPU 4 too: nvidia-smi -q"};
       },
       Health::kProblem, "GPU 3 (46: lost) is gone, and 1 more",
       "nvidia-smi -q"},
      {"driver", [](Facts& f) { f.daemon.driver = "sim"; }, Health::kWarning,
       "sluiced simulates its GPUs", "sudo systemctl restart sluiced"},
      {"persistence mode",
       [](Facts& f) {
         f.driver.persistence = {true, false};
       },
       Health::kWarning, "off on GPU 1:", "sudo nvidia-smi -pm 1"},
      {"persistence mode", [](Facts& f) { f.driver.persistence.reset(); },
       Health::kWarning, "does not tell",
       "nvidia-smi --query-gpu=persistence_mode"},
      {"locked memory", [](Facts& f) { f.process.locked_bytes = 8 << 20; },
       Health::kWarning, "at most 8 MiB", "systemctl revert sluiced"},
      {"open files", [](Facts& f) { f.process.open_files = 4096; },
       Health::kWarning, "at most 4096", "systemctl revert sluiced"},
      {"open files", [](Facts& f) { f.process.open_files = 1024; },
       Health::kProblem, "systemd may keep 2000", "systemctl revert sluiced"},
      {"memory limit",
       [](Facts& f) {
         f.process.memory = {
             GiB(99), "/sys/fs/cgroup/system.slice/sluiced.service/memory.max"};
       },
       Health::kWarning, "at most 99 GiB",
       "systemctl set-property sluiced MemoryMax=infinity"},
      {"memory limit",
       [](Facts& f) {
         f.process.memory = {GiB(9), "/cg/a b/memory.max"};
       },
       Health::kWarning, "host memory of 64 GiB is to be leased",
       "echo max | sudo tee '/cg/a b/memory.max'"},
      {"locked memory",
       [](Facts& f) {
         f.process.hidden = true;
         f.process.locked_bytes = 1 << 20;
       },
       Health::kWarning, "here, as hidepid hides sluiced in /proc: at most",
       "sudo systemctl revert sluiced"},
      {"memory limit",
       [](Facts& f) {
         f.process.memory = {GiB(9), "/cg/memory/a/memory.limit_in_bytes"};
       },
       Health::kWarning, "host memory of 64 GiB is to be leased",
       "echo -1 | sudo tee /cg/memory/a/memory.limit_in_bytes"},
      {"huge pages", [](Facts& f) { f.machine.huge_pages = 512; },
       Health::kWarning, "512 of 2 MiB are set aside (1 GiB)",
       "sudo sysctl vm.nr_hugepages=0"},
      {"NUMA", [](Facts& f) { f.process.memory_nodes = "1"; }, Health::kWarning,
       "memory of nodes 1 only, but the machine has 0-1",
       "set-property sluiced AllowedMemoryNodes="},
      {"host memory",
       [](Facts& f) {
         f.daemon.host_memory = "memfd";
         f.daemon.host_memory_why = "the driver offers no HOST_NUMA memory";
       },
       Health::kWarning,
       "memfd, which every rank pins by itself when it leases: the driver "
       "offers no HOST_NUMA memory",
       "driver_version"},
      {"store", [](Facts& f) { f.unit->store_most = 0; }, Health::kProblem,
       "systemd keeps nothing", "systemctl revert sluiced"},
      {"store", [](Facts& f) { f.unit->stored = 2000; }, Health::kWarning,
       "2000 descriptors of at most 2000", "FileDescriptorStoreMax=4000"},
      {"folder", [](Facts& f) { f.folder.mode = 0777; }, Health::kProblem,
       "mode 0777: others may", "sudo chmod go-w /run/sluice"},
      {"session socket", [](Facts& f) { f.session.usable = false; },
       Health::kProblem, "alice may not connect", "sudo chmod a+rw"},
      {"session socket", [](Facts& f) { f.session.mode = 0660; },
       Health::kWarning, "not every user's", "sudo chmod a+rw"},
      {"admin socket", [](Facts& f) { f.admin.mode = 0666; }, Health::kProblem,
       "everybody is an administrator",
       "sudo chmod o-rwx /run/sluice/admin.sock"},
      {"admin socket",
       [](Facts& f) {
         f.admin.usable = false;
         f.joins_admin_group = true;
       },
       Health::kWarning, "alice is in that group from the next login on",
       "newgrp sluice"},
      {"metrics",
       [](Facts& f) {
         f.daemon.http_fault = "cannot listen on 127.0.0.1:9435";
         f.http_listener = 1001;
       },
       Health::kProblem, "127.0.0.1:9435; user 1001 listens there",
       "sudo ss -ltnp 'sport = :9435'"},
      {"metrics", [](Facts& f) { f.http_listener = 1001; }, Health::kProblem,
       "is not sluiced, which runs as user 999; user 1001 listens there",
       "sudo ss -ltnp"},
      {"memory without a session",
       [](Facts& f) {
         f.daemon.holders = {{12, 1001, "python3", GiB(1)},
                             {14, 0, "x", MiB(1)}};
       },
       Health::kWarning,
       "process 12 (python3) of user 1001 holds 1 GiB, and 1 more hold some",
       "sudo kill 12 14"},
      {"policy file", [](Facts& f) { f.policy.mode = 0620; }, Health::kProblem,
       "others may write to it", "sudo chmod go-w /var/lib/sluice/policy"},
      {"policy file", [](Facts& f) { f.policy_fault = "it is damaged"; },
       Health::kProblem, "it is damaged",
       "sudo mv /var/lib/sluice/policy /var/lib/sluice/policy.damaged"},
      {"links",
       [](Facts& f) {
         f.daemon.links = 2;
         f.daemon.measured_waits = true;
       },
       Health::kWarning, "waits until no rank is attached",
       "sudo systemctl reload sluiced"},
  };
}

TEST(Doctor, AHealthyNodeIsOk) {
  EXPECT_THAT(NotOk(Good()), IsEmpty());
  EXPECT_THAT(NotOk(Kept()), IsEmpty());
}

TEST(Doctor, EachCheckCanFailAndNamesItsFix) {
  std::set<std::string> failed;
  for (const Case& one : Cases()) {
    SCOPED_TRACE(std::string(one.what) + ": " + one.said);
    Facts facts = Good();
    one.spoil(facts);
    const Finding found = FindingOf(facts, one.what);
    EXPECT_EQ(found.health, one.health);
    EXPECT_THAT(found.said, HasSubstr(one.said));
    EXPECT_THAT(found.fix, HasSubstr(one.fix));
    failed.insert(one.what);
  }
  for (const Finding& found : Examine(Good())) {
    EXPECT_TRUE(failed.contains(found.what)) << found.what;
  }
}

TEST(Doctor, UnusualButHarmlessFactsAreOk) {
  const Case cases[] = {
      {"memory limit",
       [](Facts& f) {
         f.process.memory = {GiB(64), "/c/memory.max"};
       },
       Health::kOk, "at most 64 GiB (/c/memory.max)", ""},
      {"NUMA", [](Facts& f) { f.machine.online_nodes = ""; }, Health::kOk,
       "does not tell", ""},
      {"NUMA", [](Facts& f) { f.process.memory_nodes = ""; }, Health::kOk,
       "does not tell", ""},
      {"host memory",
       [](Facts& f) {
         f.daemon.host_memory = "memfd";
         f.daemon.host_memory_why = device::kToldSo;
       },
       Health::kOk, "memfd, ", ""},
      {"policy file", [](Facts& f) { f.policy.seen = Seen::kHidden; },
       Health::kOk, "/var/lib/sluice/policy", ""}};
  for (const Case& one : cases) {
    SCOPED_TRACE(std::string(one.what) + ": " + one.said);
    Facts facts = Good();
    one.spoil(facts);
    const Finding found = FindingOf(facts, one.what);
    EXPECT_EQ(found.health, Health::kOk);
    EXPECT_THAT(found.said, HasSubstr(one.said));
    EXPECT_EQ(found.fix, "");
  }
}

TEST(Doctor, AMemoryLimitIsRaisedInTheFileThatShowsIt) {
  const auto fix = [](const char* file) {
    Facts facts = Good();
    facts.process.memory = {GiB(64) - Bytes(1), file};
    EXPECT_EQ(FindingOf(facts, "memory limit").health, Health::kWarning);
    return FindingOf(facts, "memory limit").fix;
  };
  EXPECT_EQ(fix("/c/memory.max"), "echo max | sudo tee /c/memory.max");
  EXPECT_EQ(fix("/c/memory.limit_in_bytes"),
            "echo -1 | sudo tee /c/memory.limit_in_bytes");
  EXPECT_EQ(fix("/c/memory.stat"),
            "grep hierarchical_memory_limit /c/memory.stat");
}

TEST(Doctor, LockedMemoryIsRaisedForTheDaemonOrElseTheShell) {
  Facts facts = Kept();
  facts.process.locked_bytes = 1 << 20;
  EXPECT_EQ(FindingOf(facts, "locked memory").fix,
            "sudo prlimit --pid 42 --memlock=unlimited");
  facts.process.pid.reset();
  EXPECT_EQ(FindingOf(facts, "locked memory").fix,
            "sudo prlimit --pid $$ --memlock=unlimited");
}

// Guards against reporting one problem twice.
TEST(Doctor, AMissingDaemonIsTheOnlyProblem) {
  Facts facts = Good();
  facts.daemon = {.reached = absl::NotFoundError("no socket")};
  facts.process.pid.reset();
  facts.unit->active = false;
  for (FileFacts* file :
       {&facts.folder, &facts.session, &facts.admin, &facts.policy}) {
    file->seen = Seen::kMissing;
  }
  EXPECT_THAT(NotOk(facts), ElementsAre("daemon"));
}

TEST(Doctor, WithoutSystemdNoFixUsesSystemctl) {
  const auto fix = [](const char* what, const std::function<void(Facts&)>& f) {
    Facts facts = Kept();
    f(facts);
    return FindingOf(facts, what).fix;
  };
  const auto gone = [](Facts& f) {
    f.daemon = {.reached = absl::UnavailableError("it has ended")};
  };
  EXPECT_EQ(fix("daemon", gone), "sudo kill 42")
      << "the keeper starts another daemon";
  const auto nobody = [&](Facts& f) {
    gone(f);
    f.process.pid.reset();
  };
  EXPECT_EQ(fix("daemon", nobody), "");
  EXPECT_EQ(fix("daemon",
                [&](Facts& f) {
                  nobody(f);
                  f.keeper = false;
                }),
            "sudo -u sluice -- sluiced-keeper --runtime-dir /run/sluice");
  EXPECT_EQ(fix("daemon",
                [](Facts& f) {
                  f.daemon = {.reached = absl::DeadlineExceededError("late")};
                }),
            "sudo kill -CONT 42");
  EXPECT_EQ(fix("locked memory", [](Facts& f) { f.process.locked_bytes = 1; }),
            "sudo prlimit --pid 42 --memlock=unlimited");
  EXPECT_THAT(fix("NUMA", [](Facts& f) { f.process.memory_nodes = "0"; }),
              HasSubstr("/proc/42/cgroup)/cpuset.mems"));
  EXPECT_EQ(fix("store", [](Facts& f) { f.keeper = false; }),
            "sudo kill 42 && sleep 1 && sudo -u sluice -- sluiced-keeper "
            "--runtime-dir /run/sluice");
  EXPECT_EQ(fix("links",
                [](Facts& f) {
                  f.daemon.links = 2;
                  f.daemon.measured_waits = true;
                }),
            "sudo kill -HUP 42");
  EXPECT_EQ(fix("open files", [](Facts& f) { f.process.open_files = 99; }),
            "sudo prlimit --pid $(ps -o ppid= -p 42) --nofile=65536:65536 && "
            "sudo kill -HUP 42");
}

// A daemon that runs as root refuses a user's folder, so no fix may use sudo.
// Fixes name programs by their paths, as $PATH may not have them.
TEST(Doctor, FixesForAUsersDaemonRunAsThatUser) {
  const auto fix = [](const char* what, const std::function<void(Facts&)>& f) {
    Facts facts = Kept();
    facts.programs = "/opt/s/bin/";
    facts.folder = File("/tmp/s", 0755);
    facts.folder.owner = "alice";
    facts.session = File("/tmp/s/session.sock", 0666);
    facts.admin = File("/tmp/s/admin.sock", 0660);
    f(facts);
    return FindingOf(facts, what).fix;
  };
  const std::string keeper = "/opt/s/bin/sluiced-keeper --runtime-dir /tmp/s";
  EXPECT_EQ(fix("store", [](Facts& f) { f.keeper = false; }),
            "kill 42 && sleep 1 && " + keeper);
  EXPECT_EQ(fix("version", [](Facts& f) { f.daemon.version = "9"; }),
            "kill -HUP 42");
  EXPECT_EQ(
      fix("state", [](Facts& f) { f.daemon.drained = DaemonFacts::Drained{}; }),
      "/opt/s/bin/sluicectl --socket /tmp/s/session.sock "
      "--admin-socket /tmp/s/admin.sock undrain");
  EXPECT_EQ(fix("daemon",
                [](Facts& f) {
                  f.daemon = {.reached = absl::NotFoundError("no socket")};
                  f.process.pid.reset();
                  f.keeper = false;
                  f.folder.seen = Seen::kMissing;
                  f.makes_folder = true;
                }),
            keeper);
}

// sluiced refuses a peer that it cannot identify, whatever the socket's mode
// is.
TEST(Doctor, ARefusalOfThePeerProposesNoChangeOfMode) {
  Facts facts = Good();
  facts.daemon = {.reached = absl::PermissionDeniedError(
                      "the peer is in a pid namespace that sluiced cannot "
                      "see: give its container hostPID")};
  EXPECT_EQ(FindingOf(facts, "daemon").fix, "");
}

TEST(Doctor, NoFixAddsAUserToTheGroupRoot) {
  Facts facts = Kept();
  facts.admin.usable = false;
  facts.admin.group = "root";
  EXPECT_EQ(FindingOf(facts, "admin socket").fix,
            "sudo sluicectl --admin status");
}

// Guards against a proposed command that drops the daemon's configuration.
TEST(Doctor, AProposedRestartKeepsTheDaemonsArguments) {
  const auto fix = [](std::vector<std::string> command) {
    Facts facts = Kept();
    facts.keeper = false;
    facts.process.command = std::move(command);
    facts.process.folder = "/home/a b";
    return FindingOf(facts, "store").fix;
  };
  const std::string start =
      "sudo kill 42 && sleep 1 && sudo -u sluice -- sluiced-keeper "
      "--runtime-dir /run/sluice";
  EXPECT_EQ(fix({"sluiced"}), start);
  EXPECT_EQ(fix({"sluiced", "--runtime-dir", "/run/sluice"}), start);
  EXPECT_EQ(fix({"sluiced", "--config", "c.toml", "--runtime-dir=/run/sluice",
                 "--driver", "sim"}),
            start + " -- --config '/home/a b/c.toml' --driver sim");
  EXPECT_EQ(fix({"sluiced", "--config=/etc/c.toml"}),
            start + " -- --config /etc/c.toml");
}

TEST(Doctor, APortsOwnerIsFoundInTheKernelsTable) {
  const std::string table =
      "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when "
      "retrnsmt   uid  timeout inode\n"
      "   0: 0200007F:24DB 00000000:0000 0A 00000000:00000000 00:00000000 "
      "00000000  1001        0 77 1 0 100 0 0 10 0\n"
      "   1: 0100007F:24DB 00000000:0000 0A 00000000:00000000 00:00000000 "
      "00000000   999        0 78 1 0 100 0 0 10 0\n"
      "   2: 0100007F:24DC 0100007F:24DB 01 00000000:00000000 00:00000000 "
      "00000000  1002        0 79 1 0 100 0 0 10 0\n";
  EXPECT_EQ(ToldListener(table, "127.0.0.1:9435"), 999);
  EXPECT_EQ(ToldListener(table, "localhost:9435"), 1001);
  EXPECT_EQ(ToldListener(table, "127.0.0.1:9436"), std::nullopt);
  EXPECT_EQ(ToldListener(table, ""), std::nullopt);
}

TEST(Doctor, FixesForRootContainNoSudo) {
  Facts facts = Kept();
  facts.keeper = false;
  facts.user = "root";
  EXPECT_EQ(FindingOf(facts, "store").fix,
            "kill 42 && sleep 1 && runuser -u sluice -- sluiced-keeper "
            "--runtime-dir /run/sluice");
}

TEST(Doctor, AMachineWithoutAGpuIsOk) {
  Facts facts = Kept();
  facts.driver = {.fault = "no libcuda.so.1"};
  facts.daemon.driver = "sim";
  facts.process.locked_bytes = 1 << 20;
  EXPECT_THAT(NotOk(facts), IsEmpty());
}

TEST(Doctor, ANonAdministratorIsToldHowToBecomeOne) {
  Facts facts = Good();
  facts.admin.usable = false;
  const Finding found = FindingOf(facts, "admin socket");
  EXPECT_EQ(found.health, Health::kOk);
  EXPECT_EQ(found.fix, "sudo usermod -aG sluice alice");
}

TEST(Doctor, EachFindingIsPrintedAsALineAndAsJson) {
  Facts facts = Good();
  facts.machine.huge_pages = 1;
  auto findings = Examine(facts);
  EXPECT_TRUE(IsWell(findings));  // a warning is no failure
  const std::string text = RenderDoctor(findings);
  EXPECT_THAT(text, HasSubstr("ok       daemon "));
  EXPECT_THAT(text, HasSubstr("warning  huge pages "));
  EXPECT_THAT(text, HasSubstr(" $ sudo sysctl vm.nr_hugepages=0\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 20);
  findings[0].health = Health::kProblem;
  const auto json = nlohmann::json::parse(RenderDoctorJson(findings));
  EXPECT_EQ(json.at("ok"), false);
  EXPECT_EQ(json.at("findings").size(), 19);
  EXPECT_EQ(json.at("findings")[0].at("ok"), false);
  EXPECT_EQ(json.at("findings")[0].at("health"), "problem");
  EXPECT_EQ(json.at("findings")[1].at("ok"), true);
  EXPECT_TRUE(json.at("findings")[1].at("fix").is_null());
}

TEST(ReadFacts, FactsDescribeThisProcessIfNoDaemonRuns) {
  const testing::TempDir dir;
  std::filesystem::create_directory(dir.File("run"));
  std::ofstream(dir.File("run/session.sock")) << "";
  chmod(dir.File("run/session.sock").c_str(), 0620);
  const Facts facts =
      ReadFacts({dir.File("run/session.sock"), dir.File("run/admin.sock")});
  EXPECT_FALSE(facts.daemon.reached.ok());
  EXPECT_EQ(facts.user, getpwuid(getuid())->pw_name);
  EXPECT_FALSE(facts.version.empty());
  EXPECT_TRUE(facts.makes_folder);
  EXPECT_FALSE(facts.keeper || facts.unit || facts.http_listener);
  EXPECT_EQ(facts.process.pid, std::nullopt);
  EXPECT_FALSE(facts.process.hidden);
  EXPECT_EQ(facts.process.user, getuid());
  EXPECT_FALSE(facts.process.memory_nodes.empty());
  EXPECT_EQ(facts.process.memory.has_value(),
            CgroupMemoryLimit("self").has_value());
  const auto limit = [](int of, auto rlim_t_of) {
    rlimit both;
    getrlimit(static_cast<__rlimit_resource>(of), &both);
    const rlim_t value = both.*rlim_t_of;
    return value == RLIM_INFINITY ? std::optional<int64_t>()
                                  : std::optional(static_cast<int64_t>(value));
  };
  EXPECT_EQ(facts.process.locked_bytes,
            limit(RLIMIT_MEMLOCK, &rlimit::rlim_cur));
  EXPECT_EQ(facts.process.open_files, limit(RLIMIT_NOFILE, &rlimit::rlim_max));
  EXPECT_FALSE(facts.machine.online_nodes.empty());
  EXPECT_GT(facts.machine.huge_page, Bytes(0));
  EXPECT_EQ(facts.session.seen, Seen::kThere);
  EXPECT_EQ(facts.session.mode & 0777, 0620);
  EXPECT_TRUE(facts.session.usable);
  EXPECT_EQ(facts.session.owner, facts.user);
  EXPECT_EQ(facts.folder.seen, Seen::kThere);
  EXPECT_EQ(facts.admin.seen, Seen::kMissing);
}

TEST(ToldFacts, LimitsAreReadFromTheKernelsTable) {
  const std::string limits =
      "Limit                     Soft Limit           Hard Limit           "
      "Units"
      "\nMax open files            1024                 524288               "
      "files     \nMax locked memory         unlimited            unlimited    "
      "        bytes     \n";
  EXPECT_EQ(ToldLimit(limits, "Max open files", LimitKind::kHard), 524288);
  EXPECT_EQ(ToldLimit(limits, "Max open files", LimitKind::kSoft), 1024);
  EXPECT_EQ(ToldLimit(limits, "Max locked memory", LimitKind::kSoft),
            std::nullopt);
  EXPECT_EQ(ToldLimit("", "Max open files", LimitKind::kSoft), std::nullopt);
  EXPECT_EQ(ToldLimit("Max open files", "Max open files", LimitKind::kSoft),
            std::nullopt);
}

TEST(ToldFacts, ALocksHolderIsFoundByDeviceAndInode) {
  const std::string locks =
      "1: POSIX  ADVISORY  WRITE 11 08:01:99 0 EOF\n"
      "2: FLOCK  ADVISORY  WRITE 22 00:2a:99 0 EOF\n"
      "3: FLOCK  ADVISORY  WRITE 0 00:2a:98 0 EOF\n";
  EXPECT_EQ(ToldHolder(locks, 0x2a, 99), 22);
  // /proc/locks shows 0 for a holder in another pid namespace.
  EXPECT_EQ(ToldHolder(locks, 0x2a, 98), 0);
  EXPECT_EQ(ToldHolder(locks, 0x2a, 97), 0);
}

TEST(ToldFacts, AUnitIsReadFromSystemctlShow) {
  const auto unit = ToldUnit(
      "LoadState=loaded\nActiveState=active\nStatusText=serving\n"
      "FileDescriptorStoreMax=2000\nNFileDescriptorStore=31\n");
  ASSERT_TRUE(unit.has_value());
  EXPECT_TRUE(unit->active);
  EXPECT_EQ(unit->status, "serving");
  EXPECT_EQ(unit->store_most, 2000);
  EXPECT_EQ(unit->stored, 31);
  EXPECT_FALSE(ToldUnit("LoadState=not-found\nActiveState=inactive\n"));
  EXPECT_FALSE(ToldUnit(""));
}

TEST(ToldFacts, PersistenceIsReadForEachGpu) {
  EXPECT_EQ(ToldPersistence("Enabled\nDisabled\n"),
            (std::vector<bool>{true, false}));
  EXPECT_EQ(ToldPersistence("No devices were found\n"), std::nullopt);
  EXPECT_EQ(ToldPersistence(""), std::nullopt);
}

TEST(ToldFacts, ListsOfNodesAreParsed) {
  EXPECT_THAT(ParseNodes("0-2,5"), ElementsAre(0, 1, 2, 5));
  EXPECT_THAT(ParseNodes("3"), ElementsAre(3));
  for (const char* wrong : {"", "a", "1-", "2-1", "1,,2", "0-99999"}) {
    EXPECT_THAT(ParseNodes(wrong), IsEmpty()) << wrong;
  }
}

TEST(ToldFacts, ASnapshotNamesTheKindOfHostMemory) {
  const std::string node =
      R"({"version": "1", "driver": "cuda", "generation": 1, "sessions": 0,
          "host": []%s})";
  const auto told = [&](const std::string& more) {
    std::string text = node;
    return ToldDaemon(text.replace(text.find("%s"), 2, more));
  };
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const DaemonFacts memfd,
      told(R"(, "host_memory": {"kind": "memfd", "why": "no"})"));
  EXPECT_EQ(memfd.host_memory, "memfd");
  EXPECT_EQ(memfd.host_memory_why, "no");
  SLUICE_ASSERT_OK_AND_ASSIGN(const DaemonFacts sim,
                              told(R"(, "host_memory": null)"));
  EXPECT_EQ(sim.host_memory, "");
  EXPECT_TRUE(told("").ok());  // an older daemon does not report it
}

TEST(ToldFacts, AHoldersMemoryIsItsGpuAndHostBytes) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const DaemonFacts facts,
      ToldDaemon(R"({"version": "1", "driver": "cuda", "generation": 1,
                     "sessions": 0, "host": [],
                     "holders": [{"pid": 2, "uid": 3, "command": "python",
                                  "gpu_bytes": 4, "host_bytes": 5}]})"));
  ASSERT_EQ(facts.holders.size(), 1);
  EXPECT_EQ(facts.holders[0].pid, 2);
  EXPECT_EQ(facts.holders[0].user, 3);
  EXPECT_EQ(facts.holders[0].command, "python");
  EXPECT_EQ(facts.holders[0].held, Bytes(9));
}

TEST(ToldFacts, LinksAreCountedByTheSourceOfTheirSpeed) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const DaemonFacts facts,
      ToldDaemon(R"({"version": "1", "driver": "cuda", "generation": 1,
                     "sessions": 0, "host": [],
                     "links": [{"speed_from": "measured"},
                               {"speed_from": "configuration"},
                               {"speed_from": null}, {}],
                     "measured_links": {"waits": true}})"));
  EXPECT_EQ(facts.links, 4);
  EXPECT_EQ(facts.links_configured, 1);
  EXPECT_EQ(facts.links_measured, 1);
  EXPECT_TRUE(facts.measured_waits);
}

TEST(Doctor, TheLinksCheckNamesSourcesAndHowToMeasure) {
  Facts facts = Good();
  facts.daemon.links = 3;
  EXPECT_EQ(FindingOf(facts, "links").health, Health::kOk);
  EXPECT_EQ(FindingOf(facts, "links").fix,
            "sluicectl bandwidth measure --keep");
  facts.daemon.links_measured = 2;
  EXPECT_EQ(FindingOf(facts, "links").said,
            "2 of 3 have a speed: 0 by the configuration, 2 measured");
}

TEST(ToldFacts, AnAnswerThatIsNoSnapshotIsAFault) {
  EXPECT_FALSE(ToldDaemon("{}").ok());
  EXPECT_FALSE(ToldDaemon("nonsense").ok());
}

}  // namespace
}  // namespace sluice::ctl
