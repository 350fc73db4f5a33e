// Readers of the input of the daemon, its keeper and its clients.
#include <algorithm>
#include <string>
#include <utility>
#include <variant>

#include "client/session/connection.h"
#include "client/session/welcome.h"
#include "daemon/config.h"
#include "daemon/keeper/notify_receiver.h"
#include "daemon/metrics/http_server.h"
#include "daemon/policy_file.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/units.h"
#include "tests/fuzz/packets.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

// Checks that a decoded input, encoded and decoded again, stays the same.
template <typename Decode, typename Encode>
void CheckCodec(std::string_view bytes, Decode decode, Encode encode) {
  const auto read = decode(bytes);
  if (!read.ok()) return CheckComplaint(read.status());
  const std::string written = encode(*read);
  const auto again = decode(written);
  SLUICE_CHECK_OK(again.status());
  SLUICE_CHECK(encode(*again) == written);
}

}  // namespace

// Reads the input as answers to a client that has sent two leases, a profile
// and a query. The caller of one lease has given up.
void ReadAsAnswer(std::string_view bytes) {
  Input input(bytes);
  PacketPipe pipe;
  client::PendingCalls calls;
  wire::Request lease, profile, query;
  lease.mutable_lease()->set_bytes(1);
  profile.mutable_submit_profile();
  query.mutable_query();
  using Waits = client::PendingCalls::Waits;
  for (const auto& [request, waits] :
       {std::pair(lease, Waits::kCaller), std::pair(lease, Waits::kNobody),
        std::pair(profile, Waits::kCaller), std::pair(query, Waits::kCaller)}) {
    SLUICE_CHECK_OK(calls.Add(request, {}, waits).status());
  }
  while (!input.empty()) {
    const uint8_t how = input.Byte();
    auto message = pipe.Pass(input.Piece(), how % 8);
    if (how >= 0x80) calls.Restart();
    if (!message.ok() || !message->has_value()) continue;
    const wire::Packet& packet = (*message)->packet;
    if (!packet.has_reply()) continue;
    const auto welcome = client::ReadWelcome(**message, DeviceIndex(0));
    if (!welcome.ok()) CheckLine(std::string(welcome.status().message()));
    const uint64_t id = packet.id();
    calls.Answer(**std::move(message));
    if (calls.complete(id)) SLUICE_CHECK(!calls.Take(id).empty());
  }
}

// Checks that a request is read the same however its bytes are split.
void ReadAsHttp(std::string_view bytes) {
  const auto whole = daemon::ReadHttpRequest(bytes);
  for (const size_t size : {1, 7}) {
    auto slow = daemon::ReadHttpRequest({});
    for (size_t end = size; !slow && end < bytes.size() + size; end += size) {
      slow = daemon::ReadHttpRequest(bytes.substr(0, end));
    }
    SLUICE_CHECK(slow.has_value() == whole.has_value());
    if (!slow) continue;
    SLUICE_CHECK(slow->status == whole->status && slow->why == whole->why &&
                 slow->path == whole->path);
    if (slow->status != daemon::kHttpOk) {
      CheckLine(slow->why);
    } else {
      SLUICE_CHECK(slow->path.starts_with('/'));
    }
  }
}

void ReadAsConfig(std::string_view bytes) {
  const auto config = daemon::ParseConfig(bytes, "fuzz");
  if (!config.ok()) return CheckComplaint(config.status());
  SLUICE_CHECK(config->sim.gpus >= 0 && config->sim.numa_nodes >= 1);
  SLUICE_CHECK(config->sim.granularity > Bytes(0));
  SLUICE_CHECK(config->longest_wait >= absl::ZeroDuration());
}

// Checks that a policy that was read, written and read again stays the same.
void ReadAsPolicy(std::string_view bytes) {
  const daemon::Clocks now = {absl::UnixEpoch() + absl::Seconds(1000),
                              absl::FromUnixSeconds(1'800'000'000)};
  const auto policy = daemon::DecodePolicy(std::string(bytes), now);
  if (!policy.ok()) return CheckComplaint(policy.status());
  const std::string written = daemon::EncodePolicy(*policy, now);
  const auto again = daemon::DecodePolicy(written, now);
  SLUICE_CHECK_OK(again.status());
  SLUICE_CHECK(daemon::EncodePolicy(*again, now) == written);
}

void ReadAsPlan(std::string_view bytes) {
  const auto encode = [](const auto& value) { return plan::Encode(value); };
  CheckCodec(bytes, plan::DecodeRankProfile, encode);
  CheckCodec(bytes, plan::DecodeProfiles, encode);
  CheckCodec(bytes, plan::DecodePlanRequest, encode);
  CheckCodec(bytes, plan::DecodeNodePlan, encode);
}

void ReadAsNotification(std::string_view bytes) {
  const auto read = daemon::ParseNotification(bytes);
  if (!read.ok()) return CheckComplaint(read.status());
  using Kind = daemon::Notification::Kind;
  SLUICE_CHECK(read->name.empty() || read->kind == Kind::kPut ||
               read->kind == Kind::kRemove);
  SLUICE_CHECK(read->name.size() <= daemon::kMaxNotification);
}

const std::vector<Reader>& Readers() {
  static const std::vector<Reader> readers = {
      {"config", ReadAsConfig}, {"session", ReadAsSession},
      {"answer", ReadAsAnswer}, {"http", ReadAsHttp},
      {"plan", ReadAsPlan},     {"notification", ReadAsNotification},
      {"policy", ReadAsPolicy}, {"state", ReadAsState},
      {"rows", ReadAsRows}};
  return readers;
}

}  // namespace sluice::fuzz
