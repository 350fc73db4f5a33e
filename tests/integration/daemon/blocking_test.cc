// Tests that the daemon is blocked neither by descriptors that take long to
// close nor by a standard error or answers that are not read, and that
// sluicectl is not blocked by a stopped daemon.
#include <arpa/inet.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/integration/daemon/lingering_socket.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

// Sends ordinary requests, and expects an answer to each within 4 s.
void ExpectPrompt(const std::string& socket) {
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Hello("honest"), IsOk());
  for (int i = 0; i < 20; ++i) {
    const absl::Time start = absl::Now();
    SLUICE_ASSERT_OK_AND_ASSIGN(auto lease,
                                client.Lease(wire::Lease::HOST, MiB(1)));
    ASSERT_THAT(client.Free(lease.body.granted().lease_id()), IsOk());
    EXPECT_LT(absl::Now() - start, absl::Seconds(4));
    absl::SleepFor(absl::Milliseconds(20));
  }
}

wire::Packet FreePacket() {
  wire::Packet packet;
  packet.set_id(1);
  packet.mutable_request()->mutable_free()->set_lease_id(1);
  return packet;
}

wire::Packet ProfilePacket() {
  wire::Packet packet;
  packet.set_id(2);
  packet.mutable_request()->mutable_submit_profile();
  return packet;
}

// Returns a packet that is no request: a reply that states one descriptor.
wire::Packet ReplyPacket() {
  wire::Packet packet;
  packet.set_id(3);
  packet.mutable_reply()->mutable_granted()->add_extent_bytes(1);
  return packet;
}

// Stops the daemon while the object lives, so that the test can send
// descriptors and close its own copies before the daemon reads them. Only the
// last close of a socket lingers, and the daemon then makes that close.
class Stopped {
 public:
  explicit Stopped(RunningDaemon& daemon) : daemon_(daemon) {
    daemon_.process().Kill(SIGSTOP);
  }
  ~Stopped() { daemon_.process().Kill(SIGCONT); }

 private:
  RunningDaemon& daemon_;
};

// Sends each packet with one descriptor that takes long to close.
void SendLingering(int socket, const std::vector<wire::Packet>& packets,
                   std::vector<UniqueFd>& readers) {
  for (const wire::Packet& packet : packets) {
    UniqueFd& reader = readers.emplace_back();
    const UniqueFd lingering = LingeringSocket(reader);
    ASSERT_TRUE(lingering);
    const int fd = lingering.get();
    ASSERT_THAT(wire::Send(socket, packet, std::vector<int>{fd}), IsOk());
  }
}

TEST(DaemonBlocking, ALingeringDescriptorBlocksNothing) {
  RunningDaemon daemon;
  std::vector<UniqueFd> readers;
  SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd client, wire::Connect(daemon.socket()));
  {
    const Stopped stopped(daemon);
    // The daemon has no use for these descriptors: Free takes none, the profile
    // comes before Hello, and the last packet is no request.
    SendLingering(client.get(), {FreePacket(), ProfilePacket(), ReplyPacket()},
                  readers);
  }
  ExpectPrompt(daemon.socket());
}

TEST(DaemonBlocking, ALingeringDescriptorInAnUnreadPacketBlocksNothing) {
  RunningDaemon daemon;
  std::vector<UniqueFd> readers;
  std::vector<UniqueFd> clients;
  {
    const Stopped stopped(daemon);
    for (int i = 0; i < 5; ++i) {
      SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd client,
                                  wire::Connect(daemon.socket()));
      // This packet ends the session, so the daemon never reads a later one.
      ASSERT_EQ(send(client.get(), "\xff\xff", 2, 0), 2);
      SendLingering(client.get(), {FreePacket(), FreePacket(), FreePacket()},
                    readers);
      clients.push_back(std::move(client));
    }
  }
  ExpectPrompt(daemon.socket());
}

int CountFiles(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<int>(std::distance(begin(files), end(files)));
}

bool HasEnded(const UniqueFd& client, absl::Duration within) {
  pollfd ended = {client.get(), POLLRDHUP, 0};
  return poll(&ended, 1, static_cast<int>(within / absl::Milliseconds(1))) == 1;
}

// Sends 16 lingering descriptors with each packet of 20 sessions.
TEST(DaemonBlocking, AFloodOfLingeringDescriptorsEndsItsSessions) {
  RunningDaemon daemon;
  const std::string fds =
      "/proc/" + std::to_string(daemon.process().pid()) + "/fd";
  std::vector<UniqueFd> readers, lingering, clients;
  std::vector<int> raw;
  for (int i = 0; i < 16; ++i) {
    UniqueFd& reader = readers.emplace_back();
    raw.push_back(lingering.emplace_back(LingeringSocket(reader)).get());
    ASSERT_GE(raw.back(), 0);
  }
  {
    const Stopped stopped(daemon);
    for (int session = 0; session < 20; ++session) {
      SLUICE_ASSERT_OK_AND_ASSIGN(UniqueFd client,
                                  wire::Connect(daemon.socket()));
      for (int i = 0; i < 64; ++i) {
        wire::Send(client.get(), FreePacket(), raw).IgnoreError();
      }
      clients.push_back(std::move(client));
    }
    lingering.clear();
  }
  for (const UniqueFd& client : clients) {
    EXPECT_TRUE(HasEnded(client, absl::Seconds(30)));
  }
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (CountFiles(fds) > 100 && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_LE(CountFiles(fds), 100);
  ExpectPrompt(daemon.socket());
}

// Standard error is a pipe of one page that is not read.
TEST(DaemonBlocking, AnUnreadStandardErrorDelaysNoRequest) {
  TempDir directory;
  const std::string fifo = directory.File("stderr");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const UniqueFd reader(open(fifo.c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_GT(fcntl(reader.get(), F_SETPIPE_SZ, 4096), 0);
  const auto daemon = Child::Spawn(
      {"/bin/sh", "-c", "exec \"$0\" \"$@\" 2>" + fifo, BinaryPath("sluiced"),
       "--driver", "sim", "--runtime-dir", directory.File("run")});
  ASSERT_TRUE(daemon->WaitForOutput("sluiced: ready", absl::Seconds(20)));
  const std::string socket = directory.File("run/session.sock");
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client, RawClient::Connect(socket));
  ASSERT_THAT(client.Hello("warned"), IsOk());
  for (int i = 0; i < 300; ++i) {  // each logs a line
    const absl::Time start = absl::Now();
    ASSERT_THAT(client.Lease(wire::Lease::GPU, GiB(900)),
                StatusIs(absl::StatusCode::kResourceExhausted));
    ASSERT_LT(absl::Now() - start, absl::Seconds(4));
  }
  ExpectPrompt(socket);
  const absl::Time start = absl::Now();
  daemon->Kill(SIGTERM);
  EXPECT_EQ(daemon->Join(absl::Seconds(10)).exit_code, 0);
  EXPECT_LT(absl::Now() - start, absl::Seconds(4));
}

// The daemon keeps only few unread long answers, and the session goes on.
TEST(DaemonBlocking, AnswersThatAreNotReadDoNotPileUp) {
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(rank.Hello("a-job-with-as-long-a-name-as-there-is"), IsOk());
  for (int i = 0; i < 260; ++i) {  // an answer has the last 256 events
    ASSERT_THAT(rank.Lease(wire::Lease::GPU, GiB(900)),
                StatusIs(absl::StatusCode::kResourceExhausted));
  }
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient client,
                              RawClient::Connect(daemon.socket()));
  ASSERT_THAT(client.Observe(), IsOk());
  wire::Packet packet;
  packet.mutable_request()->mutable_query();
  for (int id = 100; id < 140; ++id) {
    packet.set_id(static_cast<uint64_t>(id));
    ASSERT_THAT(wire::Send(client.fd(), packet), IsOk());
    absl::SleepFor(absl::Milliseconds(10));
  }
  absl::SleepFor(absl::Seconds(1));  // all are answered, none is read
  std::set<ino_t> memfds;
  int refused = 0;
  for (int i = 0; i < 40; ++i) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto message, wire::Receive(client.fd()));
    ASSERT_TRUE(message.has_value());
    refused += message->packet.reply().has_error();
    for (const UniqueFd& fd : message->fds) {
      struct stat info;
      ASSERT_EQ(fstat(fd.get(), &info), 0);
      memfds.insert(info.st_ino);
    }
  }
  EXPECT_LE(memfds.size(), 4u);
  EXPECT_GT(refused, 0);
  wire::Request query;
  query.mutable_query();
  EXPECT_THAT(client.Call(query, {}, 1000), IsOk());
}

TEST(DaemonBlocking, SluicectlReportsAStoppedDaemonWithinSeconds) {
  RunningDaemon daemon;
  daemon.process().Kill(SIGSTOP);
  const absl::Time start = absl::Now();
  const ChildResult status = Child::Spawn({BinaryPath("sluicectl"), "status",
                                           "--socket", daemon.socket()})
                                 ->Join();
  EXPECT_LT(absl::Now() - start, absl::Seconds(30));
  EXPECT_NE(status.exit_code, 0);
  EXPECT_THAT(status.err, ::testing::HasSubstr("does not answer (5 s): is it "
                                               "stopped?"));
  EXPECT_EQ(std::count(status.err.begin(), status.err.end(), '\n'), 1);
  daemon.process().Kill(SIGCONT);
}

}  // namespace
}  // namespace sluice::testing
