#include "daemon/core/session_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/grant_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

size_t TextOf(const std::optional<Reply>& reply) {
  const auto* error = reply ? std::get_if<absl::Status>(&*reply) : nullptr;
  return error != nullptr ? error->message().size() : 0;
}

std::pair<Death, std::string> Describe(Exit exit) {
  if (exit.kind == Exit::Kind::kSignal) {
    return {Death::kSignal, fmt::format("killed by signal {}", exit.code)};
  }
  if (exit.kind == Exit::Kind::kStatus) {
    return {Death::kStatus, fmt::format("ended with status {}", exit.code)};
  }
  return {Death::kUnknown, "its process ended"};
}

}  // namespace

// --- one session

RequestHistory::Seen RequestHistory::Begin(RequestId id) {
  if (const auto known = requests_.find(id); known != requests_.end()) {
    return known->second.has_value() ? Seen::kAnswered : Seen::kRunning;
  }
  if (id <= newest_forgotten_) return Seen::kForgotten;
  // Running requests are kept, but they are few: leases are limited by their
  // pool, waiting leases by their quota, and profiles by ProfileLimits.
  ForgetAnswered([this](RequestId) {
    return requests_.size() >= kWindow || text_ > kMostText;
  });
  requests_.Insert(id);
  return Seen::kNew;
}

void RequestHistory::Answer(RequestId id, const Reply& reply) {
  std::optional<Reply>& answer = requests_.Edit(id);
  SLUICE_CHECK(!answer.has_value());
  answer = reply;
  text_ += TextOf(answer);
}

void RequestHistory::Acknowledge(RequestId up_to) {
  ForgetAnswered([up_to](RequestId id) { return id <= up_to; });
}

void RequestHistory::ForgetAnswered(auto more) {
  for (auto each = requests_.begin();
       each != requests_.end() && more(each->first);) {
    const auto& [id, reply] = *each++;
    if (reply.has_value()) Forget(RequestId(id));
  }
}

void RequestHistory::Forget(RequestId id) {
  newest_forgotten_ = std::max(newest_forgotten_, id);
  text_ -= TextOf(requests_.at(id));
  requests_.erase(id);
}

void RequestHistory::TakeBack(RequestId id, const absl::Status& why) {
  std::optional<Reply>* known = requests_.Find(id);
  if (known == nullptr) return;  // forgotten: many requests came after it
  text_ -= TextOf(*known);
  known->reset();
  Answer(id, why);
}

void RequestHistory::Load(Requests::Rows requests, RequestId newest_forgotten) {
  requests_.Load(std::move(requests));
  newest_forgotten_ = newest_forgotten;
  text_ = 0;
  for (const auto& [id, reply] : requests_) text_ += TextOf(reply);
}

void RequestHistory::Clear() {
  while (!requests_.empty()) Forget(RequestId(requests_.begin()->first));
}

void RequestHistory::LeaseEnded(RequestId id) {
  std::optional<Reply>* known = requests_.Find(id);
  if (known == nullptr || !known->has_value()) return;
  if (auto* granted = std::get_if<GrantedReply>(&**known)) {
    granted->slices = {};
  }
}

void RequestHistory::ForgetRunning(const std::set<RequestId>& but_for) {
  requests_.EraseIf([&](RequestId id, const std::optional<Reply>& reply) {
    return !reply.has_value() && !but_for.contains(id);
  });
}

void Session::Answer(RequestId request, Reply reply, Effects& effects) {
  history.Answer(request, reply);
  effects.push_back(SendReply{id, request, std::move(reply)});
}

std::string Session::Label() const {
  if (hello.observer) return "observer";
  return fmt::format("rank {} of job {}", hello.rank.value(), hello.job);
}

std::string Session::Described() const {
  if (state == State::kHalfOpen) return fmt::format("process {}", peer.pid);
  return fmt::format("{}, process {}", Label(), peer.pid);
}

// --- all sessions

const Principal* SessionTable::ViewerOf(const Session& session) const {
  // Many unrelated processes in containers and user namespaces have uid 0.
  const Principal& who = session.peer.principal;
  return who.uid == config_.own_uid && who.uid != 0 && who.cgroup.empty()
             ? nullptr
             : &who;
}

absl::Status SessionTable::CheckGpu(DeviceIndex gpu) const {
  if (gpu.value() >= config_.gpus.size()) {
    return absl::InvalidArgumentError(
        fmt::format("no GPU {}: this node has {} (0 to {})", gpu.value(),
                    config_.gpus.size(), config_.gpus.size() - 1));
  }
  const std::string& fault = config_.gpus[gpu.value()].fault;
  return fault.empty() ? absl::OkStatus() : absl::UnavailableError(fault);
}

std::optional<SessionId> SessionTable::EndedByOneMore(
    const Principal& who) const {
  std::map<Principal, std::vector<SessionId>> half_open;  // oldest first
  for (SessionId id : half_open_) {
    half_open[at(id).peer.principal].push_back(id);
  }
  const std::vector<SessionId>& own = half_open[who];
  if (std::ssize(own) >= config_.max_half_open_each) return own.front();
  if (!full() && std::ssize(half_open_) < config_.max_half_open) {
    return std::nullopt;
  }
  const auto most = std::ranges::max_element(
      half_open, {}, [](const auto& each) { return each.second.size(); });
  if (most->second.empty()) return std::nullopt;
  return most->second.front();
}

absl::Status SessionTable::MayAttach(const Session& session,
                                     const HelloRequest& hello) const {
  SLUICE_RETURN_IF_ERROR(CheckGpu(hello.gpu));
  if (hello.local_ranks < 1 || hello.world_size < hello.local_ranks ||
      hello.rank.value() >= static_cast<uint64_t>(hello.world_size)) {
    return absl::InvalidArgumentError(fmt::format(
        "rank {} of {} with {} on this node does not add up: 0 <= rank < "
        "world size, 1 <= local ranks <= world size",
        hello.rank.value(), hello.world_size, hello.local_ranks));
  }
  for (const auto& [id, other] : rows_) {
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
          "rank {} says job {} has {} ranks, {} on this node, but rank {} said "
          "{} and {}: choose another job name, or end that job",
          hello.rank.value(), hello.job, hello.world_size, hello.local_ranks,
          other.hello.rank.value(), other.hello.world_size,
          other.hello.local_ranks));
    }
  }
  return absl::OkStatus();
}

absl::Status SessionTable::Attach(Session& session, const HelloRequest& hello,
                                  absl::Time now) {
  if (!hello.observer) {
    std::set<int> taken;
    for (const auto& [id, other] : rows_) {
      if (other.is_rank()) taken.insert(other.grant_slot);
    }
    int slot = 0;
    while (taken.contains(slot)) ++slot;
    if (slot == kGrantSlots) {
      return absl::ResourceExhaustedError(fmt::format(
          "all {} rank sessions of this node are taken", kGrantSlots));
    }
    session.grant_slot = slot;
  }
  session.hello = hello;
  if (!hello.observer) journal_.stats.jobs.Began(session.job(), now);
  session.state = Session::State::kAttached;
  half_open_.erase(session.id);
  return absl::OkStatus();
}

void SessionTable::Close(Session& session) {
  session.state = Session::State::kClosed;
  half_open_.erase(session.id);
  session.history.Clear();
}

void SessionTable::Drop(SessionId id, absl::Time now) {
  SLUICE_CHECK(at(id).state == Session::State::kClosed);
  const JobKey job = at(id).job();
  rows_.erase(id);
  const bool job_lives = std::ranges::any_of(rows(), [&](const auto& each) {
    return each.second.state != Session::State::kHalfOpen &&
           each.second.job() == job;
  });
  if (!job_lives) journal_.stats.jobs.Ended(job, now);
}

std::vector<SessionId> SessionTable::ClosedBeside(
    const Session& session) const {
  std::vector<SessionId> closed;
  for (const auto& [id, other] : rows_) {
    if (id != session.id && other.was_rank() &&
        other.state == Session::State::kClosed &&
        other.peer.pid == session.peer.pid &&
        other.peer.start_ticks == session.peer.start_ticks) {
      closed.push_back(id);
    }
  }
  return closed;
}

void SessionTable::NotePlansTold(const Effects& effects) {
  for (const Effect& effect : effects) {
    const auto* notice = std::get_if<SendNotice>(&effect);
    if (notice == nullptr) continue;
    const auto* ready = std::get_if<PlanReadyNotice>(&notice->notice);
    Session* const to = ready ? rows_.Find(notice->session) : nullptr;
    if (to != nullptr) to->told_plan = ready->plan;
  }
}

void SessionTable::Exited(const Session& session, const Exit& exit,
                          absl::Time now, Effects& effects) {
  // Without an exit status from the kernel, unfreed leases count as a failure.
  const bool clean =
      exit.kind == Exit::Kind::kStatus
          ? exit.code == 0
          : exit.kind == Exit::Kind::kUnknown && !session.had_leases_at_close;
  if (!session.was_rank() || clean) return;
  const auto [death, text] = Describe(exit);
  ++journal_.stats.client_deaths[death];
  TellPeers(session, text, effects);
  journal_.LogOf(session, now, EventKind::kDeath,
                 fmt::format("{}: {}", session.Described(), text));
}

void SessionTable::TellPeers(const Session& session, const std::string& reason,
                             Effects& effects) {
  for (const auto& [id, peer] : rows_) {
    if (!peer.is_rank() || peer.job() != session.job()) continue;
    effects.push_back(SendNotice{
        id, PeerDiedNotice{session.hello.job, session.hello.rank, reason}});
    Edit(id).deaths_to_tell.push_back({session.hello.rank, reason});
    to_tell_.insert(id);
  }
}

void SessionTable::TellAgain(const Session& session, Effects& effects) const {
  for (const Session::PeerDeath& death : session.deaths_to_tell) {
    effects.push_back(SendNotice{
        session.id,
        PeerDiedNotice{session.hello.job, death.rank, death.reason}});
  }
}

void SessionTable::Load(std::map<SessionId, Session> saved, absl::Time now) {
  SLUICE_CHECK(rows_.empty());
  rows_.Load(std::move(saved));
  for (const auto& [id, session] : rows_) {
    if (session.was_rank()) journal_.stats.jobs.Began(session.job(), now);
    if (session.state == Session::State::kHalfOpen) half_open_.insert(id);
    if (!session.deaths_to_tell.empty()) to_tell_.insert(id);
  }
}

void SessionTable::TouchAll() {
  rows_.TouchAll();
  for (const auto& [id, session] : rows_) {
    Edit(id).history.requests().TouchAll();
  }
}

// Checks the list of half-open sessions, and that no two ranks share a slot.
void SessionTable::CheckInvariants() const {
  std::set<int> slots;
  size_t half_open = 0;
  for (const auto& [id, session] : rows_) {
    if (session.state == Session::State::kHalfOpen) {
      SLUICE_CHECK(half_open_.contains(id));
      ++half_open;
    }
    if (!session.is_rank()) continue;
    SLUICE_CHECK(session.grant_slot < kGrantSlots);
    SLUICE_CHECK(slots.insert(session.grant_slot).second);
  }
  SLUICE_CHECK(half_open == half_open_.size());
}

}  // namespace sluice::daemon
