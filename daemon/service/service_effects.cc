// One function per effect.
#include <fmt/format.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "daemon/crash/crash_point.h"
#include "daemon/service/log/log.h"
#include "daemon/service/service.h"
#include "daemon/service/threads/priority.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr absl::Duration kLookAgainAfter = absl::Milliseconds(250);

}  // namespace

void Service::Execute(Effects effects) {
  Pass(CrashPoint::kChangeUnsaved);
  Save();
  Pass(CrashPoint::kChangeSaved);
  ++executing_;
  for (Effect& effect : effects) {
    std::visit([this](auto& typed) { Do(typed); }, effect);
  }
  Pass(CrashPoint::kEffectsDone);
  if (--executing_ == 0 && core_.NoticesSent()) Save();
  events_.WriteNew(core_.log(), loop_->now());
}

void Service::Save() { handover_->Save(core_, loop_->now()); }

void Service::Do(MakeExtent& effect) {
  if (UniqueFd kept = handover_->Take(Handover::NameOf(effect.id))) {
    return extents_->AdoptMade(effect.id, effect.pool, effect.size,
                               std::move(kept));
  }
  extents_->Make(effect.id, effect.pool, effect.size, effect.who);
}

void Service::Do(DestroyExtent& effect) { extents_->Destroy(effect.id); }

// Runs at once: it is a system call per extent, and their number is bounded.
void Service::Do(AskHolders& effect) {
  std::vector<Core::HolderAnswer> answers;
  for (ExtentId id : effect.extents) {
    answers.push_back({id, extents_->HeldByOthers(id)});
    if (answers.back().held == Held::kYes) LookForHolders();
  }
  Execute(core_.HoldersKnown(answers, loop_->now()));
}

void Service::LookForHolders() {
  if (!options_.find_holders || looking_for_holders_ ||
      loop_->now() < look_for_holders_at_) {
    return;
  }
  looking_for_holders_ = true;
  codec_->Run([this] {
    const absl::Duration before = CpuTimeOfThisThread();
    auto found = options_.find_holders();
    const absl::Duration pause =
        std::max(kLookAgainAfter, 50 * (CpuTimeOfThisThread() - before));
    loop_->Post([this, pause, found = std::move(found)]() mutable {
      holders_ = std::move(found);
      looking_for_holders_ = false;
      look_for_holders_at_ = loop_->now() + pause;
    });
  });
}

void Service::Do(SendReply& effect) {
  if (const auto* query = std::get_if<SnapshotReply>(&effect.reply)) {
    return AnswerQuery(effect.session, effect.request, query->plan);
  }
  if (const auto* granted = std::get_if<GrantedReply>(&effect.reply)) {
    return SendGranted(effect.session, effect.request, *granted);
  }
  sessions_->Send(effect.session,
                  ToPacket(effect.session, effect.request, effect.reply));
}

void Service::SendGranted(SessionId session, RequestId request,
                          const GrantedReply& granted) {
  std::vector<std::shared_ptr<const UniqueFd>> fds;
  for (const Slice& slice : granted.slices) {
    auto fd = extents_->Fd(slice.id);
    if (!fd.ok()) {
      // Told by the loop's next turn: effects are being executed.
      loop_->Post([this, session, lease = granted.lease, why = fd.status()] {
        Execute(core_.GrantNotSent(session, lease, why, loop_->now()));
      });
      return;
    }
    fds.push_back(*std::move(fd));
  }
  for (Outgoing& part :
       GrantedParts(request, granted, fds, sessions_->most_descriptors())) {
    sessions_->Send(session, std::move(part));
  }
}

Outgoing Service::ToPacket(SessionId session, RequestId request,
                           const Reply& reply) {
  Outgoing out;
  if (const auto* error = std::get_if<absl::Status>(&reply)) {
    out.packet = ErrorPacket(request, *error);
  } else if (const auto* welcome = std::get_if<WelcomeReply>(&reply)) {
    out = WelcomePacket(session, *welcome);
  } else if (const auto* submitted = std::get_if<SubmittedReply>(&reply)) {
    out.packet.mutable_reply()->mutable_submitted()->set_waiting_for(
        submitted->waiting_for);
  } else if (std::holds_alternative<FreedReply>(reply)) {
    out.packet.mutable_reply()->mutable_freed();
  } else {
    wire::Noted* noted = out.packet.mutable_reply()->mutable_noted();
    const auto* from = std::get_if<NotedReply>(&reply);
    const Session* of = core_.session(session);
    if (from != nullptr && from->room && of != nullptr) {
      FillPool(core_, *from->room, &of->peer.principal, noted->mutable_gpu());
    }
  }
  out.packet.set_id(request.value());
  return out;
}

Outgoing Service::WelcomePacket(SessionId session,
                                const WelcomeReply& welcome) {
  Outgoing out;
  auto* body = out.packet.mutable_reply()->mutable_welcome();
  body->set_session_id(session.value());
  body->set_protocol(welcome.protocol);
  body->set_kept(handover_->keeps());
  const Session* of = core_.session(session);
  const bool rank = of != nullptr && !welcome.observer;
  FillNode(core_, options_.sim_directory, welcome.gpu,
           rank ? &of->peer.principal : nullptr, *body);
  const device::HostMemoryKind host = options_.driver->HostMemory();
  body->set_host_memory(host.name);
  body->set_host_memory_why(host.why);
  if (!welcome.observer) {
    const auto use = grants_->UsePageOf(session);
    if (!use.ok()) {
      out.packet = ErrorPacket(RequestId(), use.status());
      return out;
    }
    body->set_grant_slot(static_cast<uint32_t>(welcome.grant_slot));
    out.fds = {grants_->pages().limits(), *use};
    if (options_.sim_clocks) out.fds.push_back(options_.sim_clocks);
  }
  return out;
}

void Service::Do(SendNotice& effect) {
  Outgoing out;
  *out.packet.mutable_event() = ToEvent(effect.notice);
  PlanId plan;
  if (const auto* ready = std::get_if<PlanReadyNotice>(&effect.notice)) {
    plan = ready->plan;
  }
  const auto* changed = std::get_if<PlanChangedNotice>(&effect.notice);
  if (changed != nullptr) plan = changed->plan;
  const auto* taken_over = std::get_if<TakenOverNotice>(&effect.notice);
  if (taken_over != nullptr) plan = taken_over->plan;
  if (plan != PlanId()) {
    auto fd = plan_files_.Of(plan, loop_->now());
    if (fd.ok()) {
      out.fds.push_back(*fd);
    } else if (changed != nullptr) {
      // The rank goes on as it is. Told by the loop's next turn: effects are
      // being executed.
      WriteLog(LogLevel::kError, std::string(fd.status().message()));
      loop_->Post([this, session = effect.session, plan] {
        Execute(core_.ChangeNotSent(session, plan, loop_->now()));
      });
      return;
    } else if (taken_over != nullptr) {
      *out.packet.mutable_event() = ToEvent(TakenOverNotice{PlanId()});
    } else {
      *out.packet.mutable_event() = ToEvent(PlanFailedNotice{
          std::string(fd.status().message()), ShortageOf(fd.status())});
    }
  }
  sessions_->Send(effect.session, std::move(out));
}

void Service::Do(CloseSocket& effect) {
  sessions_->EndSocket(effect.session);
  grants_->DropUsePage(effect.session);
  profile_reader_->Forget(effect.session);
}

void Service::Do(Forget& effect) {
  sessions_->Forget(effect.session);
  gpus_.erase(effect.session);
}

void Service::Do(KillProcess& effect) {
  const Channel* channel = sessions_->Find(effect.session);
  if (channel == nullptr) return;
  syscall(SYS_pidfd_send_signal, channel->pidfd(), SIGKILL, nullptr, 0);
}

void Service::Do(AttachGrants& effect) {
  const Principal& who = sessions_->Find(effect.session)->who();
  const auto page = grants_->Attach(effect, who);
  if (page != nullptr) sessions_->HoldUntilKept(effect.session, page->get());
}

void Service::Do(HoldsMemory& effect) {
  grants_->pages().Hold(effect.slot, effect.holds);
}

void Service::Do(PromiseCopies& effect) {
  grants_->pages().Promise(effect.slot, effect.rates);
}

void Service::Do(UseLinks& effect) {
  grants_->pages().UseLinks(std::move(effect.links));
}

void Service::Do(DetachGrants& effect) { grants_->Detach(effect.slot); }

void Service::Do(ReadProfile& effect) {
  const Session* session = core_.session(effect.session);
  if (session == nullptr) return;
  const absl::Status taken = profile_reader_->Read(
      effect.session, effect.request, session->peer.principal,
      profiles_.at({effect.session, effect.request}));
  if (taken.ok()) return;
  // Told by the loop's next turn: effects are being executed.
  loop_->Post([this, id = effect.session, request = effect.request, taken] {
    Execute(core_.ProfileRead(id, request, taken, loop_->now()));
  });
}

void Service::Do(SolvePlan& effect) { solver_->Solve(std::move(effect)); }

void Service::Do(StopSolving& effect) { solver_->Stop(effect.round); }

void Service::Do(HurrySolving& effect) { solver_->Hurry(effect.round); }

void Service::ReadCopies() {
  core_.CopiesSeen(grants_->pages().Used());
  core_.LateSeen(grants_->pages().Late());
}

void Service::ReadProgress() {
  for (const auto& [round, progress] : solver_->Progress()) {
    core_.PlanProgressed(round, progress);
  }
}

}  // namespace sluice::daemon
