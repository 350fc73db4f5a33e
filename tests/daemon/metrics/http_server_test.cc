#include "daemon/metrics/http_server.h"

#include <netdb.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/http.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::HttpAsk;
using ::sluice::testing::HttpConnect;
using ::sluice::testing::HttpGet;
using ::sluice::testing::HttpRest;
using ::sluice::testing::IsOk;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// Returns a node with job "secret" of user 3987654321 in a cgroup, a limit for
// this job, and a limit for every user.
Snapshot Node() {
  Snapshot node;
  node.driver = "sim";
  node.stats.emplace();
  node.gpus.resize(1);
  node.gpus[0].gpu.uuid = "GPU-0";
  node.stats->gpus.resize(1);
  JobSnapshot job;
  job.name = "secret";
  job.principal = {3987654321, "/secret.slice"};
  RankSnapshot rank;
  rank.pid = 1987654321;
  job.ranks = {rank};
  node.jobs = {job};
  node.stats->jobs.Began({job.principal, job.name}, absl::UnixEpoch());
  LimitLine named;
  named.target.job = "secret";
  named.limits.gpu = MiB(8);
  LimitLine all;
  all.limits.gpu = MiB(16);
  node.limits = {named, all};
  return node;
}

class HttpServerTest : public ::testing::Test {
 protected:
  HttpServerTest() {
    socket_ = directory_.File("http.sock");
    auto http = StartHttpServer(
        {.listen = "127.0.0.1:0", .socket = socket_, .socket_group = ""});
    if (http.ok()) http_ = *std::move(http);
  }
  void SetUp() override { ASSERT_NE(http_, nullptr); }

  void Serve() {
    http_->Serve({.snapshot = [this]() -> absl::StatusOr<Snapshot> {
                    ++snapshots_;
                    return Node();
                  },
                  .alive =
                      [this] {
                        return alive_ ? absl::OkStatus()
                                      : absl::UnavailableError("it hangs");
                      }});
  }
  std::string tcp() const { return http_->listener().address; }

  sluice::testing::TempDir directory_;
  std::string socket_;
  std::atomic<int> snapshots_ = 0;
  std::atomic<bool> alive_ = true;
  std::unique_ptr<HttpServer> http_;
};

TEST_F(HttpServerTest, AUsedPortIsServedOnceItIsFree) {
  const std::string address = tcp();
  auto late = StartHttpServer({.listen = address});
  ASSERT_THAT(late, IsOk());
  EXPECT_THAT((*late)->listener().fault, HasSubstr("cannot listen on"));
  std::promise<int> told;
  (*late)->WhenListening([&](int fd) { told.set_value(fd); });
  http_.reset();
  EXPECT_GE(told.get_future().get(), 0);
  EXPECT_EQ((*late)->listener().fault, "");
  EXPECT_THAT(HttpGet(address, "/readyz"), StartsWith("HTTP/1.1 503 "));
}

// A machine may be without IPv6, but the address is read in any case.
TEST_F(HttpServerTest, AnIpv6AddressIsReadWithoutItsBrackets) {
  auto other = StartHttpServer({.listen = "[::1]:0"});
  ASSERT_THAT(other, IsOk());
  EXPECT_THAT((*other)->listener().fault,
              Not(HasSubstr(gai_strerror(EAI_NONAME))));
}

// An earlier server's listening socket is used only at the same address.
TEST_F(HttpServerTest, AServerTakesOverAnEarlierSocketOfItsAddress) {
  UniqueFd left;
  http_->WhenListening([&](int fd) { left = UniqueFd(dup(fd)); });
  const std::string address = tcp();
  http_.reset();
  for (const std::string& listen : {address, std::string("127.0.0.1:0")}) {
    auto next = StartHttpServer({.listen = listen, .left = *left.Duplicate()});
    ASSERT_THAT(next, IsOk());
    EXPECT_TRUE((*next)->listener().goes_on) << listen;
    EXPECT_EQ((*next)->listener().address, address);
  }
  auto elsewhere =
      StartHttpServer({.listen = "127.0.0.2:0", .left = *left.Duplicate()});
  ASSERT_THAT(elsewhere, IsOk());
  EXPECT_FALSE((*elsewhere)->listener().goes_on);
}

TEST_F(HttpServerTest, AServerIsNeitherReadyNorHealthyBeforeItServes) {
  for (const std::string& address : {tcp(), socket_}) {
    for (const char* path : {"/readyz", "/healthz", "/metrics"}) {
      const std::string answer = HttpGet(address, path);
      EXPECT_THAT(answer, StartsWith("HTTP/1.1 503 "));
      EXPECT_THAT(answer, HasSubstr("\r\n\r\nsluiced is starting\n"));
    }
  }
  Serve();
  for (const char* path : {"/readyz", "/healthz"}) {
    EXPECT_THAT(HttpGet(tcp(), path), HasSubstr("\r\n\r\nok\n"));
  }
  alive_ = false;
  EXPECT_THAT(HttpGet(tcp(), "/readyz"), StartsWith("HTTP/1.1 503 "));
  EXPECT_THAT(HttpGet(tcp(), "/metrics"), HasSubstr("\r\n\r\nit hangs\n"));
}

// Guards against local users that read all jobs, users and processes.
TEST_F(HttpServerTest, NamesAreOnlyOnTheUnixSocket) {
  Serve();
  for (const char* path : {"/metrics", "/status.json"}) {
    const std::string sums = HttpGet(tcp(), path);
    EXPECT_THAT(sums, StartsWith("HTTP/1.1 200 OK"));
    EXPECT_THAT(sums, HasSubstr("GPU-0"));
    for (const char* name : {"secret", "3987654321", "1987654321"}) {
      EXPECT_THAT(sums, Not(HasSubstr(name))) << path;
      if (std::string(name) == "1987654321" &&
          std::string(path) == "/metrics") {
        continue;  // no series names a process
      }
      EXPECT_THAT(HttpGet(socket_, path), HasSubstr(name)) << path;
    }
  }
  // A limit that applies to every user is no secret.
  EXPECT_THAT(HttpGet(tcp(), "/metrics"),
              HasSubstr("memory=\"gpu\"} 16777216\n"));
}

TEST_F(HttpServerTest, TheSocketIsForTheDaemonsUserOrTheNamedGroup) {
  struct stat info;
  ASSERT_EQ(stat(socket_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto none = StartHttpServer({.listen = "",
                                     .socket = directory_.File("x.sock"),
                                     .socket_group = "no such group"});
  EXPECT_EQ(none.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(stat(directory_.File("x.sock").c_str(), &info), 0);
  if (geteuid() != 0)
    GTEST_SKIP() << "only root can give a socket to any group";
  const std::string path = directory_.File("group.sock");
  const auto group =
      StartHttpServer({.listen = "", .socket = path, .socket_group = "daemon"});
  ASSERT_THAT(group, IsOk());
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0660u);
  EXPECT_NE(info.st_gid, getegid());
}

TEST_F(HttpServerTest, TheServerRemovesItsSocket) {
  http_.reset();
  EXPECT_NE(access(socket_.c_str(), F_OK), 0);
}

TEST_F(HttpServerTest, RefusalsAreOneLineAndHeadHasNoBody) {
  Serve();
  const std::string without_end =
      "GET / HTTP/1.1\r\nA: " + std::string(8192, 'x');
  const char* const endless = without_end.c_str();
  for (const auto& [request, status] :
       {std::pair{"GET /metrics\r\n\r\n", "400 Bad Request"},
        std::pair{"GET /x HTTP/1.1\r\nHost: h\r\n\r\n", "404 Not Found"},
        std::pair{"POST /metrics HTTP/1.1\r\n\r\n", "405 Method Not Allowed"},
        std::pair{endless, "431 Request Header Fields Too Large"}}) {
    const std::string answer = HttpAsk(tcp(), request);
    EXPECT_THAT(answer, StartsWith(std::string("HTTP/1.1 ") + status));
    const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
    EXPECT_THAT(body, StartsWith(status));
    EXPECT_EQ(body.find('\n'), body.size() - 1);
  }
  const std::string head =
      HttpAsk(tcp(), "HEAD /healthz HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_THAT(head, StartsWith("HTTP/1.1 200 OK"));
  EXPECT_THAT(head, HasSubstr("Content-Length: 3\r\n"));
  EXPECT_TRUE(head.ends_with("\r\n\r\n"));
}

// A byte every 100 ms keeps an idle timeout from passing.
TEST_F(HttpServerTest, ASlowRequestTimesOutDespiteItsBytes) {
  Serve();
  const UniqueFd slow = HttpConnect(tcp());
  const absl::Time start = absl::Now();
  std::string answer;
  std::thread reader([&] { answer = HttpRest(slow.get()); });
  while (send(slow.get(), "x", 1, MSG_NOSIGNAL) == 1 &&
         absl::Now() - start < absl::Seconds(20)) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  reader.join();
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 408 Request Timeout"));
  EXPECT_LT(absl::Now() - start, absl::Seconds(10));
}

TEST_F(HttpServerTest, SimultaneousRequestsShareASnapshot) {
  Serve();
  constexpr int kAskers = 24;
  std::vector<UniqueFd> askers;
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";
  for (int i = 0; i < kAskers; ++i) {
    askers.push_back(HttpConnect(tcp()));
    ASSERT_TRUE(askers.back());
  }
  const absl::Time start = absl::Now();
  for (const UniqueFd& asker : askers) {
    ASSERT_EQ(send(asker.get(), request.data(), request.size(), 0),
              static_cast<ssize_t>(request.size()));
  }
  for (const UniqueFd& asker : askers) {
    EXPECT_THAT(HttpRest(asker.get()), StartsWith("HTTP/1.1 200 OK"));
  }
  // The server takes at most one snapshot per 50 ms, however many requests
  // come.
  const double rounds = (absl::Now() - start) / absl::Milliseconds(50) + 2;
  EXPECT_LE(snapshots_, rounds);
}

// Guards against keeping all connections, each with a thread.
TEST_F(HttpServerTest, IdleConnectionsMakeRoomForOthers) {
  Serve();
  for (const std::string& address : {tcp(), socket_}) {
    std::vector<UniqueFd> idle;
    for (int i = 0; i < 400; ++i) idle.push_back(HttpConnect(address));
    const absl::Time start = absl::Now();
    EXPECT_THAT(HttpGet(address, "/metrics"), StartsWith("HTTP/1.1 200 OK"));
    EXPECT_LT(absl::Now() - start, absl::Seconds(5));
    EXPECT_THAT(HttpRest(idle.front().get()), StartsWith("HTTP/1.1 503 "));
  }
}

// Guards against closing connections before their place is needed.
TEST_F(HttpServerTest, ConnectionsUpToTheLimitAreKept) {
  Serve();
  std::vector<UniqueFd> slow;
  for (size_t i = 0; i < HttpServer::kMaxTcp; ++i) {
    slow.push_back(HttpConnect(tcp()));
  }
  absl::SleepFor(absl::Milliseconds(100));  // until all are accepted
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";
  for (const UniqueFd& asker : slow) {
    EXPECT_EQ(send(asker.get(), request.data(), request.size(), MSG_NOSIGNAL),
              std::ssize(request));
  }
  for (const UniqueFd& asker : slow) {
    EXPECT_THAT(HttpRest(asker.get()), StartsWith("HTTP/1.1 200 OK"));
  }
}

// There are more complete requests than places for connections; all are
// answered.
TEST_F(HttpServerTest, ACompleteRequestIsNotClosedToMakeRoom) {
  Serve();
  const std::string request = "GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n";
  std::vector<UniqueFd> askers;
  for (size_t i = 0; i < 2 * HttpServer::kMaxTcp; ++i) {
    askers.push_back(HttpConnect(tcp()));
    ASSERT_GT(
        send(askers.back().get(), request.data(), request.size(), MSG_NOSIGNAL),
        0);
  }
  for (const UniqueFd& asker : askers) {
    EXPECT_THAT(HttpRest(asker.get()), StartsWith("HTTP/1.1 200 OK"));
  }
}

// Guards against a loop that spins when not even the spare descriptor is left.
TEST_F(HttpServerTest, WithoutAnyDescriptorTheServerPausesAndServesLater) {
  Serve();
  const auto cpu = [] {
    timespec spent;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
    return absl::DurationFromTimespec(spent);
  };
  // With this connection poll gets more sockets than the lowered limit, and
  // fails.
  const UniqueFd idle = HttpConnect(tcp());
  EXPECT_THAT(HttpGet(tcp(), "/readyz"), HasSubstr("\r\n\r\nok\n"));
  rlimit limit;
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  // No free descriptor number is below the new limit.
  const rlimit none = {3, limit.rlim_max};
  const UniqueFd waits(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  sockaddr_un address = {.sun_family = AF_UNIX, .sun_path = {}};
  socket_.copy(address.sun_path, sizeof(address.sun_path) - 1);
  ASSERT_EQ(connect(waits.get(), reinterpret_cast<sockaddr*>(&address),
                    sizeof(address)),
            0);
  const std::string ask = "GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n";
  ASSERT_EQ(write(waits.get(), ask.data(), ask.size()),
            static_cast<ssize_t>(ask.size()));
  const absl::Duration before = cpu();
  absl::SleepFor(absl::Milliseconds(600));
  EXPECT_LT(cpu() - before, absl::Milliseconds(300));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_THAT(HttpRest(waits.get()), HasSubstr("\r\n\r\nok\n"));
}

}  // namespace
}  // namespace sluice::daemon
