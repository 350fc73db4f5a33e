#include "tests/attacks/scene.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/time/clock.h"
#include "tests/integration/daemon/http.h"

namespace sluice::testing {
namespace {

constexpr Bytes kHonestLease = MiB(1);

void PinWhereDeep(int core) {
  if (!Deep()) return;
  EXPECT_TRUE(PinThisProcess(core));
}

// Returns the number of sessions in all states, from the text of /metrics.
int Sessions(const std::string& metrics) {
  const std::string name = "\nsluice_sessions{";
  double sum = 0;
  for (size_t at = metrics.find(name); at != std::string::npos;
       at = metrics.find(name, at + 1)) {
    sum += std::stod(metrics.substr(metrics.find("} ", at) + 2));
  }
  return static_cast<int>(sum);
}

// The honest client. Opens a new session if its session has ended.
class Honest {
 public:
  Honest(std::string socket, std::string job)
      : socket_(std::move(socket)), job_(std::move(job)) {}

  bool Once() {
    if (!client_.ok()) Attach();
    if (!client_.ok()) return false;
    const auto lease = client_->Lease(wire::Lease::GPU, kHonestLease);
    const bool good =
        lease.ok() && client_->Free(lease->body.granted().lease_id()).ok();
    if (!good) client_ = absl::UnavailableError("ended");
    return good;
  }

 private:
  void Attach() {
    client_ = RawClient::Connect(socket_);
    if (!client_.ok()) return;
    const auto welcome = client_->Hello(fmt::format("{}{}", job_, ++attached_));
    if (!welcome.ok()) client_ = welcome.status();
  }

  const std::string socket_, job_;
  int attached_ = 0;
  absl::StatusOr<RawClient> client_ = absl::UnavailableError("not yet");
};

void Print(const Cost& cost) {
  const auto ms = [](absl::Duration time) {
    return absl::ToDoubleMilliseconds(time);
  };
  static const bool header = [] {
    fmt::print(
        "| attack | requests | failed | p50 ms | p99 ms | max ms | "
        "newcomer ms | /metrics ms | MB | left: sessions | "
        "descriptors | bytes |\n|---|---|---|---|---|---|---|---|---|"
        "---|---|---|\n");
    return true;
  }();
  (void)header;
  fmt::print(
      "| {} | {} | {} | {:.3f} | {:.2f} | {:.1f} | {:.1f} | {:.1f} | {:.0f} | "
      "{} | {} | {} |\n",
      cost.attack, cost.requests, cost.failed, ms(cost.p50), ms(cost.p99),
      ms(cost.max), ms(cost.newcomer), ms(cost.metrics),
      static_cast<double>(cost.memory.count()) / 1e6, cost.left_sessions,
      cost.left_descriptors, cost.left_memory.count());
  std::fflush(stdout);
}

}  // namespace

bool Deep() {
  const char* strength = std::getenv("SLUICE_ATTACKS");
  return strength != nullptr && std::string(strength) == "deep";
}

int Count(int reduced, int full) { return Deep() ? full : reduced; }

void Become(uid_t uid) {
  // Raises the limit of descriptors as far as allowed.
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  if (setresuid(uid, uid, uid) != 0) _exit(3);
  // A change of the user clears this setting of Child.
  prctl(PR_SET_PDEATHSIG, SIGKILL);
}

void SayReady() {
  if (write(STDOUT_FILENO, "ready\n", 6) != 6) _exit(3);
}

Scene::Scene(const std::string& toml, const DaemonLimits& limits) {
  PinWhereDeep(0);  // the daemon's threads inherit the core
  daemon_ = std::make_unique<RunningDaemon>(
      toml + "[http]\nlisten = \"127.0.0.1:0\"\n", limits);
  socket_ = daemon_->socket();
  EXPECT_EQ(chmod(daemon_->runtime_dir().c_str(), 0755), 0);
  EXPECT_TRUE(GpuPool(socket_, 0).ok());  // warms up
  descriptors_before_ = daemon_->Descriptors();
}

void Scene::Attack(const std::function<void()>& attack, uid_t uid) {
  attackers_.push_back(Child::Fork([&] {
    PinWhereDeep(1);
    Become(uid);
    attack();
  }));
  EXPECT_TRUE(attackers_.back()->WaitForOutput("ready", absl::Seconds(60)));
}

void Scene::Measure(Cost& cost) {
  Honest honest(socket_, "honest");
  std::vector<absl::Duration> times;
  honest.Once();  // makes the extent
  const int requests = Count(200, 1000);
  for (int i = 0; i < requests; ++i) {
    const absl::Time start = absl::Now();
    if (!honest.Once()) ++cost.failed;
    times.push_back(absl::Now() - start);
    absl::SleepFor(absl::Milliseconds(1));
  }
  std::sort(times.begin(), times.end());
  cost.requests = requests;
  cost.p50 = times[times.size() / 2];
  cost.p99 = times[times.size() * 99 / 100];
  cost.max = times.back();
  const absl::Time start = absl::Now();
  Honest newcomer(socket_, "newcomer");
  if (!newcomer.Once()) ++cost.failed;
  cost.newcomer = absl::Now() - start;
  const absl::Time asked = absl::Now();
  const std::string page = HttpGet(daemon_->ReadyField("http"), "/metrics");
  cost.metrics = absl::Now() - asked;
  EXPECT_TRUE(page.find("sluice_") != std::string::npos) << page;
}

void Scene::LookWhatIsLeft(Cost& cost) {
  const absl::Time end = absl::Now() + absl::Seconds(30);
  do {
    absl::SleepFor(absl::Milliseconds(100));
    // The daemon keeps up to four descriptors for idle extents of the honest
    // client.
    cost.left_descriptors =
        std::max(0, daemon_->Descriptors() - descriptors_before_ - 4);
    // The daemon keeps an ended session while its process, here this one,
    // lives.
    cost.left_sessions = std::max(
        0, Sessions(HttpGet(daemon_->ReadyField("http"), "/metrics")) - 1);
    const auto pool = GpuPool(socket_, 0);
    if (!pool.ok()) continue;
    cost.left_memory =
        Bytes(static_cast<int64_t>(pool->total_bytes() - pool->free_bytes()));
  } while (absl::Now() < end &&
           (cost.left_sessions > 0 || cost.left_descriptors > 0 ||
            cost.left_memory > Bytes(0)));
}

Cost Scene::Suffer(const std::string& name) {
  Cost cost;
  cost.attack = name;
  Measure(cost);
  for (const auto& attacker : attackers_) {
    const ChildResult ended = [&] {
      attacker->Kill(SIGKILL);
      return attacker->Join();
    }();
    EXPECT_EQ(ended.signal, SIGKILL)
        << "the attacker ended early, with exit status " << ended.exit_code
        << ": " << ended.out;
  }
  cost.memory = daemon_->Memory("VmHWM") - daemon_->Memory("RssShmem");
  LookWhatIsLeft(cost);
  Print(cost);
  return cost;
}

void ExpectUnharmed(const Cost& cost) {
  EXPECT_EQ(cost.failed, 0) << cost.attack;
  EXPECT_EQ(cost.left_sessions, 0) << cost.attack;
  EXPECT_EQ(cost.left_descriptors, 0) << cost.attack;
  EXPECT_EQ(cost.left_memory, Bytes(0)) << cost.attack;
  if (!Deep()) return;
  EXPECT_LE(cost.p99, absl::Milliseconds(10)) << cost.attack;
  EXPECT_LE(cost.max, absl::Milliseconds(100)) << cost.attack;
  EXPECT_LE(cost.newcomer, absl::Seconds(1)) << cost.attack;
  EXPECT_LE(cost.metrics, absl::Seconds(1)) << cost.attack;
  EXPECT_LE(cost.memory, Bytes(100'000'000)) << cost.attack;
}

}  // namespace sluice::testing
