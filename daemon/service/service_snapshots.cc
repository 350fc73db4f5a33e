// Reading the state: what sessions ask, and what a snapshot has.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "daemon/service/log/log.h"
#include "daemon/service/service.h"

namespace sluice::daemon {
namespace {

// Limits of one session: queries that wait, and long answers not read.
constexpr int kMaxQueries = 16;
constexpr int kMaxUnread = 4;

// A user with something that policy counts has a session, and so a row here.
void AddTo(QuotasSnapshot& quotas, const Principal& who, Resource what,
           int64_t amount) {
  const auto user =
      std::find_if(quotas.users.begin(), quotas.users.end(),
                   [&](const auto& each) { return each.first == who; });
  if (user == quotas.users.end()) return;
  user->second[static_cast<size_t>(what)] += amount;
}

// Policy counts the leases that wait, and what is kept of profiles.
void AddCountedByPolicy(const Core& core, const Principal* viewer,
                        QuotasSnapshot& quotas) {
  const auto waiting = static_cast<size_t>(Resource::kWaiting);
  const WaitingQueue& queue = core.waiting();
  quotas.used[waiting] =
      std::ssize(queue.waiters()) - std::ssize(queue.for_plans());
  quotas.refused[waiting] = core.stats().waits_refused;
  for (const auto& [place, waiter] : queue.waiters()) {
    const Principal& who = waiter.job.principal;
    if (waiter.for_plan || (viewer != nullptr && who != *viewer)) continue;
    AddTo(quotas, who, Resource::kWaiting, 1);
  }
  const auto kept = static_cast<size_t>(Resource::kKeptProfiles);
  quotas.refused[kept] = core.stats().profiles_refused;
  for (const auto& [who, size] : core.KeptProfiles()) {
    quotas.used[kept] += size.count();
    if (viewer != nullptr && who != *viewer) continue;
    AddTo(quotas, who, Resource::kKeptProfiles, size.count());
  }
}

}  // namespace

void Service::AnswerQuery(SessionId id, RequestId request, PlanId plan) {
  const Session* session = core_.session(id);
  if (session == nullptr || sessions_->Find(id) == nullptr) return;
  const auto asked = queries_.find(id);
  const int waiting = asked != queries_.end() ? asked->second : 0;
  if (waiting >= kMaxQueries) {
    const auto refused = absl::ResourceExhaustedError(fmt::format(
        "{} queries of this session wait for an answer, and the limit is {}: "
        "wait for one",
        waiting, kMaxQueries));
    return sessions_->Send(id, {ErrorPacket(request, refused), {}});
  }
  ++queries_[id];
  const Principal* viewer = core_.ViewerOf(*session);
  Snapshots::View view{.observer = session->hello.observer, .text = true};
  if (viewer != nullptr) view.principal = *viewer;
  snapshots_->Ask(view, [this, id, request, plan](const auto& answer) {
    if (--queries_[id] == 0) queries_.erase(id);
    Channel* const to = sessions_->Find(id);
    if (to == nullptr) return;
    Outgoing out = SnapshotPacket(request, plan, answer);
    if (!out.fds.empty() && to->unread_memfds() >= kMaxUnread) {
      out = {ErrorPacket(request, absl::ResourceExhaustedError(fmt::format(
                                      "this session has {} long answers that "
                                      "it has not read, and the limit is {}: "
                                      "read one",
                                      to->unread_memfds(), kMaxUnread))),
             {}};
    }
    if (!out.fds.empty()) to->CountMemfd();
    sessions_->Send(id, std::move(out));
  });
}

Snapshot Service::TakeSnapshot(const Snapshots::View& view) {
  ReadProgress();
  ReadCopies();
  Snapshot snapshot = core_.TakeSnapshot(
      view.principal ? &*view.principal : nullptr, loop_->now());
  if (view.observer) --snapshot.sessions;  // an observer does not count
  for (PoolSnapshot& host : snapshot.hosts) {
    host.ready = arena_->ready(NumaIndex(host.id.ordinal));
  }
  const device::HostMemoryKind kind = options_.driver->HostMemory();
  snapshot.host_memory = kind.name;
  snapshot.host_memory_why = kind.why;
  profile_reader_->GiveBackDropped();
  snapshot.quotas =
      quotas_.TakeSnapshot(view.principal ? &*view.principal : nullptr);
  AddCountedByPolicy(core_, view.principal ? &*view.principal : nullptr,
                     snapshot.quotas);
  const LogLosses losses = ReadLogLosses();
  snapshot.log_lines_dropped = losses.dropped;
  snapshot.log_lines_suppressed = losses.suppressed;
  const DescriptorStore& store = handover_->store();
  if (store.keeps() || store.lost()) snapshot.kept = handover_->saves();
  if (options_.http) snapshot.http = options_.http();
  AddHolders(view, snapshot);
  snapshot.grant_stale_periods = grants_->pages().stale_periods();
  snapshot.descriptors_closing = closer_.waiting() + closer_.sockets_waiting();
  return snapshot;
}

void Service::AddHolders(const Snapshots::View& view, Snapshot& snapshot) {
  const auto returns = [](const PoolSnapshot& pool) {
    return pool.lingering + pool.quarantined + pool.outside > Bytes(0);
  };
  const bool any =
      std::ranges::any_of(snapshot.hosts, returns) ||
      std::ranges::any_of(snapshot.gpus, returns, &GpuSnapshot::pool);
  if (!any) return;
  LookForHolders();
  std::set<int> attached;
  for (const auto& [id, channel] : sessions_->channels()) {
    const Session* const session = core_.session(id);
    if (session != nullptr && session->is_rank()) {
      attached.insert(session->peer.pid);
    }
  }
  for (const HolderSnapshot& holder : holders_) {
    const bool shown = !view.principal || view.principal->uid == holder.uid;
    if (shown && !attached.contains(holder.pid)) {
      snapshot.holders.push_back(holder);
    }
  }
}

Outgoing Service::SnapshotPacket(
    RequestId request, PlanId plan,
    const absl::StatusOr<Snapshots::Answer>& answer) {
  if (!answer.ok()) return {ErrorPacket(request, answer.status()), {}};
  Outgoing out;
  out.packet.set_id(request.value());
  auto* body = out.packet.mutable_reply()->mutable_snapshot();
  body->set_json(answer->text);
  if (answer->memfd) out.fds.push_back(answer->memfd);
  if (plan != PlanId()) {
    auto fd = plan_files_.Of(plan, loop_->now());
    if (!fd.ok()) return {ErrorPacket(request, fd.status()), {}};
    out.fds.push_back(*fd);
  }
  return out;
}

}  // namespace sluice::daemon
