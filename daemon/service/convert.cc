#include "daemon/service/convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "daemon/bandwidth/topology.h"
#include "proto/base/grant_page.h"
#include "proto/base/overloaded.h"
#include "proto/base/shortage.h"
#include "proto/base/text.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

HelloRequest From(const wire::Hello& hello) {
  return {.job = hello.job(),
          .observer = hello.observer(),
          .rank = Rank(hello.rank()),
          .world_size = static_cast<int>(hello.world_size()),
          .local_ranks = static_cast<int>(hello.local_ranks()),
          .gpu = DeviceIndex(hello.gpu()),
          .protocol = *wire::AgreeOnProtocol(
              {hello.oldest_protocol(), hello.protocol()})};
}

LeaseRequest From(const wire::Lease& lease) {
  const PoolKind kind =
      lease.kind() == wire::Lease::GPU ? PoolKind::kGpu : PoolKind::kHost;
  return {.pool = {kind, lease.ordinal()},
          .size = Bytes(static_cast<int64_t>(lease.bytes())),
          .wait = absl::Milliseconds(lease.wait_ms())};
}

absl::StatusOr<Request> From(const wire::Query& query) {
  uint64_t plan = 0;
  if (!query.plan_id().empty() && !absl::SimpleAtoi(query.plan_id(), &plan)) {
    return absl::InvalidArgumentError(
        fmt::format("plan '{}' is not a number: sluicectl status lists the "
                    "plans",
                    query.plan_id()));
  }
  return QueryRequest{PlanId(plan)};
}

}  // namespace

absl::StatusOr<Request> ToRequest(const wire::Request& request) {
  switch (request.body_case()) {
    case wire::Request::kHello:
      return From(request.hello());
    case wire::Request::kLease:
      return From(request.lease());
    case wire::Request::kFree:
      return FreeRequest{LeaseId(request.free().lease_id())};
    case wire::Request::kSubmitProfile:
      return ProfileRequest{};
    case wire::Request::kStepReport:
      return StepReportRequest(wire::FromWire(request.step_report()),
                               {request.step_report().map_seconds().begin(),
                                request.step_report().map_seconds().end()});
    case wire::Request::kPlanTaken:
      // Printable: the note becomes part of a log line.
      return PlanTakenRequest{PlanId(request.plan_taken().plan_id()),
                              request.plan_taken().taken(),
                              Printable(request.plan_taken().note())};
    case wire::Request::kQuery:
      return From(request.query());
    case wire::Request::kGpuUse:
      return GpuUseRequest{
          Bytes(static_cast<int64_t>(request.gpu_use().used_bytes()))};
    case wire::Request::kGiveUp:
      return GiveUpRequest{RequestId(request.give_up().request_id())};
    case wire::Request::BODY_NOT_SET:
      break;
  }
  return absl::UnimplementedError("a request without a body");
}

wire::Packet ErrorPacket(RequestId request, const absl::Status& status) {
  wire::Packet packet;
  packet.set_id(request.value());
  auto* error = packet.mutable_reply()->mutable_error();
  error->set_code(static_cast<int>(status.code()));
  error->set_message(std::string(status.message()));
  const Shortage shortage = ShortageOf(status);
  if (shortage != Shortage::kNone) error->set_shortage(Name(shortage));
  return packet;
}

void FillPool(const Core& core, PoolId pool, const Principal* rank,
              wire::Pool* to) {
  PoolSnapshot from = core.pool(pool);
  if (rank != nullptr) {
    from.free -= std::min(core.ledger().Withheld(pool, rank), from.free);
  }
  to->set_total_bytes(from.total.size());
  to->set_leased_bytes(from.leased.size());
  to->set_free_bytes(from.free.size());
  to->set_quarantined_bytes(from.quarantined.size());
  to->set_lingering_bytes(from.lingering.size());
  to->set_held_outside_bytes(from.outside.size());
}

// Returns the speed of a GPU on `link` while all GPUs copy both ways.
double EvenSpeed(const NodeConfig& config, const std::string& link,
                 int direction) {
  double least = 0;
  for (const size_t i : LinkPath(config.links, link)) {
    const LinkSpeed& each = config.links[i];
    const auto sharing = std::count_if(
        config.gpus.begin(), config.gpus.end(), [&](const GpuConfig& gpu) {
          return Loads(config.links, gpu.link, each.name);
        });
    const double share =
        SpeedBothWays(each, direction) / static_cast<double>(sharing);
    if (share > 0 && (least <= 0 || share < least)) least = share;
  }
  return least;
}

void FillNode(const Core& core, const std::string& sim_directory,
              const Session* rank, wire::Welcome& welcome) {
  const NodeConfig& config = core.config();
  const Principal* user = rank != nullptr ? &rank->peer.principal : nullptr;
  const GpuConfig* gpu =
      rank != nullptr ? &config.gpus[rank->hello.gpu.value()] : nullptr;
  welcome.set_driver(config.driver);
  welcome.set_sim_directory(sim_directory);
  welcome.set_granularity(config.granularity.size());
  for (const GpuConfig& each : config.gpus) {
    wire::Gpu* to = welcome.add_gpus();
    to->set_index(each.index.value());
    to->set_uuid(each.uuid);
    to->set_name(each.name);
    to->set_link(each.link);
    to->set_numa(each.numa.value());
    FillPool(core, {PoolKind::kGpu, each.index.value()}, user,
             to->mutable_pool());
  }
  for (const HostConfig& host : config.hosts) {
    const PoolId id{PoolKind::kHost, host.numa.value()};
    wire::Pool* to = welcome.add_host_pools();
    FillPool(core, id, user, to);
    if (gpu != nullptr && gpu->numa != host.numa) {
      to->set_free_bytes(core.leases().Borrowable(*rank, id).size());
    }
  }
  if (gpu == nullptr) return;
  welcome.set_link_h2d_bytes_per_second(EvenSpeed(config, gpu->link, kH2d));
  welcome.set_link_d2h_bytes_per_second(EvenSpeed(config, gpu->link, kD2h));
}

std::vector<Outgoing> GrantedParts(RequestId request,
                                   const GrantedReply& granted,
                                   std::span<const SharedFd> fds, size_t most) {
  const size_t n = granted.slices.size();
  std::vector<Outgoing> packets((n + most - 1) / most);
  for (size_t part = 0; part < packets.size(); ++part) {
    Outgoing& out = packets[part];
    out.packet.set_id(request.value());
    auto* body = out.packet.mutable_reply()->mutable_granted();
    body->set_lease_id(granted.lease.value());
    body->set_part(static_cast<uint32_t>(part));
    body->set_parts(static_cast<uint32_t>(packets.size()));
    for (size_t i = part * most; i < std::min(n, (part + 1) * most); ++i) {
      body->add_extent_bytes(granted.slices[i].size.size());
      out.fds.push_back(fds[i]);
    }
  }
  return packets;
}

wire::Event ToEvent(const Notice& notice) {
  wire::Event event;
  std::visit(
      Overloaded{[&](const PeerDiedNotice& from) {
                   auto* to = event.mutable_peer_died();
                   to->set_job(from.job);
                   to->set_rank(from.rank.value());
                   to->set_reason(from.reason);
                 },
                 [&](const EvictedNotice& from) {
                   event.mutable_evicted()->set_reason(from.reason);
                 },
                 [&](const PlanReadyNotice& from) {
                   event.mutable_plan_ready()->set_plan_id(from.plan.value());
                 },
                 [&](const PlanChangedNotice& from) {
                   event.mutable_plan_changed()->set_plan_id(from.plan.value());
                 },
                 [&](const PlanFailedNotice& from) {
                   event.mutable_plan_failed()->set_reason(from.reason);
                   if (from.shortage != Shortage::kNone) {
                     event.mutable_plan_failed()->set_shortage(
                         Name(from.shortage));
                   }
                   event.mutable_plan_failed()->set_peer_left(from.peer_left);
                 },
                 [&](const ShuttingDownNotice& from) {
                   event.mutable_shutting_down()->set_reason(from.reason);
                 },
                 [&](const TakenOverNotice& from) {
                   event.mutable_taken_over()->set_plan_id(from.plan.value());
                 },
                 [&](const LeaseProgressNotice& from) {
                   auto* to = event.mutable_lease_progress();
                   to->set_request_id(from.request.value());
                   to->set_made_bytes(from.made.size());
                   to->set_bytes(from.size.size());
                 }},
      notice);
  return event;
}

}  // namespace sluice::daemon
