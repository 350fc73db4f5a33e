// Requests: executed once each, and the small ones.
#include <fmt/format.h>

#include <utility>

#include "daemon/core/core.h"
#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {

Effects Core::Receive(SessionId id, RequestId request, const Request& body,
                      absl::Time now) {
  Effects effects;
  Session* found = sessions_.Find(id);
  if (found == nullptr) return effects;
  Session& session = *found;
  if (session.state == Session::State::kClosed) return effects;
  switch (session.history.Begin(request)) {
    case RequestHistory::Seen::kRunning:
      return effects;  // its answer is on the way
    case RequestHistory::Seen::kAnswered:
      effects.push_back(SendReply{id, request, Repeat(session, request)});
      return effects;
    case RequestHistory::Seen::kForgotten:
      effects.push_back(SendReply{
          id, request,
          absl::InvalidArgumentError(fmt::format(
              "request id {} was acknowledged, or is older than the last {} "
              "requests: ids count up",
              request.value(), RequestHistory::kWindow))});
      return effects;
    case RequestHistory::Seen::kNew:
      break;
  }
  if (session.state == Session::State::kHalfOpen &&
      !std::holds_alternative<HelloRequest>(body)) {
    Answer(session, request,
           absl::FailedPreconditionError("a session begins with Hello"),
           effects);
    return effects;
  }
  std::visit(
      [&](const auto& typed) { Handle(session, request, typed, now, effects); },
      body);
  Settle(now, effects);
  return effects;
}

void Core::Acknowledge(SessionId id, RequestId up_to) {
  if (up_to == RequestId()) return;
  if (Session* session = sessions_.Find(id)) {
    session->history.Acknowledge(up_to);
  }
}

Reply Core::Repeat(const Session& session, RequestId request) const {
  const Reply& reply = session.history.answer(request);
  const auto* granted = std::get_if<GrantedReply>(&reply);
  if (granted == nullptr ||
      ledger_.LeasesOf(session.id).contains(granted->lease)) {
    return reply;
  }
  return absl::NotFoundError(
      fmt::format("request {} was granted as lease {}, which was freed since",
                  request.value(), granted->lease.value()));
}

void Core::Answer(Session& session, RequestId request, Reply reply,
                  Effects& effects) {
  session.history.Answer(request, reply);
  effects.push_back(SendReply{session.id, request, std::move(reply)});
}

absl::Status Core::CheckGpu(DeviceIndex gpu) const {
  if (gpu.value() >= config_.gpus.size()) {
    return absl::InvalidArgumentError(
        fmt::format("no GPU {}: this node has {} (0 to {})", gpu.value(),
                    config_.gpus.size(), config_.gpus.size() - 1));
  }
  const std::string& fault = config_.gpus[gpu.value()].fault;
  return fault.empty() ? absl::OkStatus() : absl::UnavailableError(fault);
}

absl::Status Core::AdmitHello(const Session& session,
                              const HelloRequest& hello) const {
  if (session.state != Session::State::kHalfOpen) {
    return absl::FailedPreconditionError(
        "this session has said Hello already: open another one");
  }
  if (hello.observer) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(CheckDrain());
  SLUICE_RETURN_IF_ERROR(CheckGpu(hello.gpu));
  if (hello.local_ranks < 1 || hello.world_size < hello.local_ranks ||
      hello.rank.value() >= static_cast<uint64_t>(hello.world_size)) {
    return absl::InvalidArgumentError(fmt::format(
        "rank {} of {} with {} on this node does not add up: 0 <= rank < "
        "world size, 1 <= local ranks <= world size",
        hello.rank.value(), hello.world_size, hello.local_ranks));
  }
  for (const auto& [id, other] : sessions_) {
    if (!other.is_rank() || other.hello.job != hello.job ||
        other.peer.principal != session.peer.principal) {
      continue;
    }
    if (other.hello.rank == hello.rank) {
      return absl::AlreadyExistsError(fmt::format(
          "{} is attached already, by process {}: choose another job name, or "
          "end it",
          other.Label(), other.peer.pid));
    }
    if (other.hello.world_size != hello.world_size ||
        other.hello.local_ranks != hello.local_ranks) {
      return absl::InvalidArgumentError(fmt::format(
          "rank {} says job {} has {} ranks, {} here; rank {} said {}, {}: "
          "choose another job name, or end it",
          hello.rank.value(), hello.job, hello.world_size, hello.local_ranks,
          other.hello.rank.value(), other.hello.world_size,
          other.hello.local_ranks));
    }
  }
  return absl::OkStatus();
}

int Core::TakeSlot() {
  for (int slot = 0; slot < kGrantSlots; ++slot) {
    if (!slots_[slot]) {
      slots_[slot] = true;
      return slot;
    }
  }
  return -1;
}

void Core::Handle(Session& session, RequestId request,
                  const HelloRequest& hello, absl::Time now, Effects& effects) {
  if (const absl::Status admitted = AdmitHello(session, hello);
      !admitted.ok()) {
    return Answer(session, request, admitted, effects);
  }
  if (!hello.observer) {
    const int slot = TakeSlot();
    if (slot < 0) {
      return Answer(
          session, request,
          absl::ResourceExhaustedError(fmt::format(
              "all {} rank sessions of this node are taken", kGrantSlots)),
          effects);
    }
    session.grant_slot = slot;
  }
  session.hello = hello;
  session.state = Session::State::kAttached;
  half_open_.erase(session.id);
  if (session.is_rank()) {
    Log(now, EventKind::kAttach,
        fmt::format("{}, on GPU {}", session.Described(), hello.gpu.value()),
        session.peer.principal, {session.id, request});
  }
  WelcomeReply welcome{.observer = hello.observer,
                       .grant_slot = session.grant_slot,
                       .gpu = hello.gpu,
                       .protocol = hello.protocol};
  if (session.is_rank()) {
    effects.push_back(AttachGrants{session.id, session.grant_slot, hello.gpu,
                                   WeightOf(config_, session.peer.principal)});
    ledger_.Open(session.id, session.job());
    joint_.RankAttached(
        session.id, {session.job(), hello.rank, hello.gpu, hello.local_ranks});
    journal_.stats.jobs.Began(session.job(), now);
  }
  Answer(session, request, std::move(welcome), effects);
}

void Core::Handle(Session& session, RequestId request,
                  const QueryRequest& query, absl::Time, Effects& effects) {
  // The plan of another principal is answered as one that does not exist.
  if (query.plan != PlanId()) {
    if (!FindPlan(query.plan, ViewerOf(session))) {
      return Answer(
          session, request,
          absl::NotFoundError(fmt::format(
              "no plan {}: sluicectl status lists them", query.plan.value())),
          effects);
    }
  }
  Answer(session, request, SnapshotReply{query.plan}, effects);
}

}  // namespace sluice::daemon
