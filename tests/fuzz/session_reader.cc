// The fuzz target `session`: the input's bytes decide which clients connect to
// a daemon's policy, what they send and when they end. The ledger must add up,
// and nothing of an ended client may remain.
#include <cmath>
#include <iterator>
#include <set>
#include <string>
#include <utility>
#include <variant>

#include "daemon/service/convert.h"
#include "proto/base/status.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/fuzz/packets.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

constexpr int kMostSessions = 6;

class Node {
 public:
  Node() { Connect(); }

  void Run(Input& input) {
    while (!input.empty()) {
      const uint8_t how = input.Byte();
      Prune();
      switch (how % 8) {
        case 0:
          Connect();
          break;
        case 1:
          End(how / 8);
          break;
        case 2:
          node_.clock.Advance(absl::Milliseconds(100) * (1 + how / 8));
          node_.Run(
              [&](daemon::Core& to) { return to.Tick(node_.clock.Now()); });
          break;
        case 3:
          ReadProfiles();
          break;
        default:
          Packet(how / 8, how % 8 - 4, input.Piece());
      }
    }
    Finish();
  }

 private:
  void Connect() {
    if (open_.size() >= kMostSessions) return;
    const uint32_t uid = 1 + open_.size() % 2;
    open_.insert(node_.Connect(uid));
  }
  SessionId Any(int which) const {
    return *std::next(open_.begin(), which % static_cast<int>(open_.size()));
  }
  // Drops sessions that the core has closed or forgotten: like the service, the
  // test reads nothing more from them.
  void Prune() {
    std::erase_if(open_, [&](SessionId id) {
      if (!node_.closed.contains(id)) return node_.forgotten.contains(id);
      ended_.insert(id);
      return true;
    });
  }
  void End(int which) {
    if (open_.empty()) return;
    const SessionId id = Any(which);
    open_.erase(id);
    node_.Die(id);
  }
  // Answers each submitted profile with an error.
  void ReadProfiles() {
    for (const daemon::ReadProfile& each : std::exchange(node_.to_read, {})) {
      node_.Run([&](daemon::Core& to) {
        return to.ProfileRead(each.session, each.request,
                              absl::InvalidArgumentError("no profile"),
                              node_.clock.Now());
      });
    }
  }
  // Does what Service::OnMessage does, without acknowledgements, lost
  // descriptors, and the checks of the sender and of the memfd.
  void Packet(int which, int fds, std::string_view bytes) {
    if (open_.empty()) return;
    const SessionId id = Any(which);
    const auto message = pipe_.Pass(bytes, static_cast<size_t>(fds));
    if (message.ok() && !message->has_value()) return;
    if (!message.ok()) return Broken(id, message.status());
    const wire::Packet& packet = (*message)->packet;
    absl::Status checked = wire::CheckRequest(**message);
    const auto body = checked.ok() ? daemon::ToRequest(packet.request())
                                   : absl::StatusOr<daemon::Request>(checked);
    if (body.ok()) {
      const auto* report = std::get_if<daemon::StepReportRequest>(&*body);
      if (report != nullptr && std::isnan(report->step.loss)) has_nan_ = true;
      node_.Ask(id, *body, daemon::RequestId(packet.id()));
      return;
    }
    CheckLine(std::string(body.status().message()));
    if (!packet.has_request() || packet.id() == 0) Broken(id, body.status());
  }
  void Broken(SessionId id, const absl::Status& why) {
    node_.Run([&](daemon::Core& to) {
      return to.ProtocolBroken(id, std::string(why.message()),
                               node_.clock.Now());
    });
  }
  // A state with a NaN loss does not compare equal to itself.
  void CheckSaved() const {
    if (!has_nan_) node_.CheckSaved();
  }
  void Finish() {
    CheckSaved();
    Prune();
    while (!open_.empty()) End(0);
    for (const SessionId id : ended_) {
      if (node_.forgotten.contains(id)) continue;
      node_.Run([&](daemon::Core& to) {
        return to.ProcessesGone({{id, {}}}, node_.clock.Now());
      });
    }
    for (const auto& [id, pool] : node_.core.ledger().pools()) {
      SLUICE_CHECK(pool.free() == pool.total());
    }
    SLUICE_CHECK(node_.slots.empty());
    CheckSaved();
  }

  PacketPipe pipe_;
  daemon::CoreDriver node_;
  std::set<SessionId> open_, ended_;
  bool has_nan_ = false;
};

}  // namespace

void ReadAsSession(std::string_view bytes) {
  Input input(bytes);
  Node().Run(input);
}

}  // namespace sluice::fuzz
