// Recorded sessions of each protocol, packet by packet: today's daemon must
// answer each recorded request by a reply of the recorded kind, or with the
// recorded error code, and each recorded packet must decode to its text.
//
// tests/golden/session/protocolN.txt has a line per packet: ">" from the rank
// or "<" from the daemon, its bytes, and its text. SLUICE_UPDATE_GOLDEN=1
// records the file of this build's protocol again; those of other protocols are
// never recorded again.
#include <fmt/format.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/integration/daemon/harness.h"
#include "tests/proto/session_text.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"

namespace sluice::testing {
namespace {

struct Line {
  bool from_rank = false;
  std::string bytes, text;
};

std::string PathOf(uint32_t protocol) {
  return InTree(fmt::format("tests/golden/session/protocol{}.txt", protocol));
}

std::vector<Line> ReadLines(uint32_t protocol) {
  std::ifstream file(PathOf(protocol));
  std::vector<Line> lines;
  std::string who, hex, text;
  while (file >> who >> hex && std::getline(file, text)) {
    lines.push_back({who == ">", absl::HexStringToBytes(hex),
                     text.substr(std::min<size_t>(text.size(), 1))});
  }
  return lines;
}

wire::Packet Parsed(const std::string& bytes) {
  wire::Packet packet;
  EXPECT_TRUE(packet.ParseFromString(bytes));
  return packet;
}

std::string TextOf(const std::string& bytes) {
  return Described(Parsed(bytes))->ShortDebugString();
}

// Returns the kind of an answer, or its error's code.
std::string KindOf(const wire::Packet& packet) {
  if (packet.has_event()) {
    return fmt::format("event {}",
                       static_cast<int>(packet.event().body_case()));
  }
  const wire::Reply& reply = packet.reply();
  return reply.has_error()
             ? fmt::format("error {}", reply.error().code())
             : fmt::format("reply {}", static_cast<int>(reply.body_case()));
}

// Sends the packet, and with a Hello the descriptors of GPU 0's device nodes.
// Returns the answer.
std::string Ask(RawClient& rank, const std::string& bytes) {
  const wire::Packet packet = Parsed(bytes);
  std::vector<UniqueFd> nodes;
  if (packet.request().has_hello()) nodes = GpuNodes(rank.fd(), 0);
  std::vector<int> shown;
  for (const UniqueFd& node : nodes) shown.push_back(node.get());
  EXPECT_THAT(wire::Send(rank.fd(), packet, shown), IsOk());
  auto answer = wire::Receive(rank.fd());
  EXPECT_TRUE(answer.ok() && answer->has_value());
  if (!answer.ok() || !answer->has_value()) return "";
  EXPECT_EQ((*answer)->packet.id(), packet.id());
  return (*answer)->packet.SerializeAsString();
}

// Returns the requests that a rank makes in its life.
std::vector<wire::Packet> Requests() {
  std::vector<wire::Packet> packets;
  const auto add = [&]() -> wire::Request& {
    packets.emplace_back().set_id(packets.size());
    return *packets.back().mutable_request();
  };
  wire::Hello& hello = *add().mutable_hello();
  hello.set_protocol(wire::kProtocols.newest);
  hello.set_oldest_protocol(wire::kProtocols.oldest);
  hello.set_job("golden");
  hello.set_world_size(1);
  hello.set_local_ranks(1);
  wire::Lease& gpu = *add().mutable_lease();
  gpu.set_bytes(MiB(5).size());
  wire::Lease& host = *add().mutable_lease();
  host.set_kind(wire::Lease::HOST);
  host.set_bytes(KiB(64).size());
  host.set_wait_ms(1000);
  add().mutable_lease()->set_bytes(1);  // refused: below the granularity
  add().mutable_give_up()->set_request_id(2);
  wire::StepReport& step = *add().mutable_step_report();
  step.set_step(7);
  step.set_seconds(0.5);
  step.set_bytes_h2d(100);
  step.set_bytes_d2h(200);
  step.set_tokens(4096);
  step.set_loss(2.5);
  step.mutable_totals()->set_reports(1);
  step.mutable_totals()->set_bytes_h2d(100);
  step.mutable_totals()->set_bytes_d2h(200);
  step.mutable_totals()->set_tokens(4096);
  wire::PlanTaken& taken = *add().mutable_plan_taken();
  taken.set_plan_id(3);
  taken.set_taken(true);
  add().mutable_free()->set_lease_id(1);
  add().mutable_free()->set_lease_id(1);  // refused: freed already
  add().mutable_gpu_use()->set_used_bytes(MiB(2).size());
  return packets;
}

// Replaces the values that differ from daemon to daemon.
std::string WithoutChance(const std::string& answer) {
  wire::Packet packet = Parsed(answer);
  packet.set_generation(1);
  if (packet.reply().has_welcome()) {
    packet.mutable_reply()->mutable_welcome()->set_sim_directory("/sim");
  }
  return packet.SerializeAsString();
}

void Record() {
  RunningDaemon daemon;
  auto rank = RawClient::Connect(daemon.socket());
  ASSERT_THAT(rank, IsOk());
  std::ofstream file(PathOf(wire::kProtocols.newest));
  const auto write = [&](char who, const std::string& bytes) {
    file << fmt::format("{} {} {}\n", who, absl::BytesToHexString(bytes),
                        TextOf(bytes));
  };
  for (const wire::Packet& request : Requests()) {
    write('>', request.SerializeAsString());
    write('<', WithoutChance(Ask(*rank, request.SerializeAsString())));
  }
}

class GoldenPackets : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GoldenPackets, RequestsAreAnsweredAsRecorded) {
  if (GetParam() == wire::kProtocols.newest &&
      std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    Record();
  }
  RunningDaemon daemon;
  SLUICE_ASSERT_OK_AND_ASSIGN(RawClient rank,
                              RawClient::Connect(daemon.socket()));
  std::string answer;
  int asked = 0;
  for (const Line& line : ReadLines(GetParam())) {
    SCOPED_TRACE(line.text);
    if (line.from_rank) {
      answer = Ask(rank, line.bytes);
      ++asked;
    } else {
      EXPECT_EQ(KindOf(Parsed(answer)), KindOf(Parsed(line.bytes)));
      if (Parsed(answer).reply().has_welcome()) {
        EXPECT_EQ(Parsed(answer).reply().welcome().protocol(), GetParam());
      }
    }
  }
  EXPECT_GE(asked, 9);
}

TEST_P(GoldenPackets, PacketsDecodeToTheRecordedText) {
  for (const Line& line : ReadLines(GetParam())) {
    EXPECT_EQ(TextOf(line.bytes), line.text);
  }
}

INSTANTIATE_TEST_SUITE_P(Protocols, GoldenPackets, ::testing::Values(1));

}  // namespace
}  // namespace sluice::testing
