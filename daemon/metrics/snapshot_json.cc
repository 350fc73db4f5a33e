#include "daemon/metrics/snapshot_json.h"

#include <cmath>
#include <cstddef>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/core/pool/held_outside.h"
#include "proto/base/grant_page.h"

namespace sluice::daemon {
namespace {

using nlohmann::json;

json OrNull(bool there, const auto& value) {
  return there ? json(value) : json(nullptr);
}

json OrNull(const std::string& text) { return OrNull(!text.empty(), text); }

json List(const auto& from, auto each, const auto&... arguments) {
  json to = json::array();
  for (const auto& item : from) to.push_back(each(item, arguments...));
  return to;
}

json AgeOf(absl::Time at, absl::Time now) {
  return OrNull(at != absl::InfinitePast(), absl::ToDoubleSeconds(now - at));
}

void AddPool(const PoolSnapshot& pool, absl::Time now, json& to) {
  to["total_bytes"] = pool.total.count();
  to["leased_bytes"] = pool.leased.count();
  to["free_bytes"] = pool.free.count();
  to["making_bytes"] = pool.making.count();
  to["kept_bytes"] = pool.kept.count();
  to["quarantined_bytes"] = pool.quarantined.count();
  to["lingering_bytes"] = pool.lingering.count();
  to["held_outside_bytes"] = pool.outside.count();
  to["held_outside_age_s"] = AgeOf(pool.outside_at, now);
  to["reserved_bytes"] = pool.reserved.count();
}

json Gpu(const GpuSnapshot& gpu, absl::Time now) {
  json to = {
      {"index", gpu.gpu.index.value()}, {"uuid", gpu.gpu.uuid},
      {"name", gpu.gpu.name},           {"link", gpu.gpu.link},
      {"numa", gpu.gpu.numa.value()},   {"fault", OrNull(gpu.gpu.fault)}};
  AddPool(gpu.pool, now, to);
  return to;
}

json Speed(double bytes) { return OrNull(bytes > 0, bytes); }

json Link(const LinkSpeed& link) {
  return {{"name", link.name},
          {"parent", OrNull(link.parent)},
          {"h2d_bytes_per_second", Speed(link.h2d_bytes_per_second)},
          {"d2h_bytes_per_second", Speed(link.d2h_bytes_per_second)},
          {"both_bytes_per_second", Speed(link.both_bytes_per_second)},
          {"speed_from", OrNull(link.measured || IsLimited(link),
                                link.measured ? "measured" : "configuration")}};
}

json MeasuredOf(const MeasuredLinks& measured, bool waits, absl::Time now) {
  const auto link = [](const auto& of) -> json {
    return {{"name", of.first},
            {"h2d_bytes_per_second", Speed(of.second.h2d)},
            {"d2h_bytes_per_second", Speed(of.second.d2h)},
            {"both_bytes_per_second", Speed(of.second.both)}};
  };
  return {{"by", measured.by.who},
          {"age_s", absl::ToDoubleSeconds(now - measured.by.at)},
          {"waits", waits},
          {"links", List(measured.links, link)}};
}

json CopiesOf(const std::optional<PlanCopies>& copies) {
  if (!copies) return nullptr;
  const PlanDemand& demand = copies->demand;
  return {{"h2d_bytes_per_second", demand.rates[kH2d]},
          {"d2h_bytes_per_second", demand.rates[kD2h]},
          {"h2d_bytes_per_step", demand.step_bytes[kH2d].count()},
          {"d2h_bytes_per_step", demand.step_bytes[kD2h].count()},
          {"promised_h2d_bytes_per_second", copies->promised[kH2d]},
          {"promised_d2h_bytes_per_second", copies->promised[kD2h]}};
}

json LateOf(const LateDirections& late) {
  return {{"h2d_copies", late[kH2d].copies},
          {"d2h_copies", late[kD2h].copies},
          {"h2d_seconds", late[kH2d].seconds},
          {"d2h_seconds", late[kD2h].seconds}};
}

json RankOf(const RankSnapshot& rank) {
  const StepReport step = rank.step.value_or(StepReport());
  return {{"rank", rank.rank.value()},
          {"pid", rank.pid},
          {"gpu", rank.gpu.value()},
          {"gpu_bytes", rank.gpu_bytes.count()},
          {"outside_bytes", OrNull(rank.outside.has_value(),
                                   rank.outside.value_or(Bytes()).count())},
          {"host_bytes", rank.host_bytes.count()},
          {"stall_seconds", rank.stall_seconds},
          {"grant_wait_seconds", rank.grant_wait_seconds},
          {"hbm_peak_bytes", rank.hbm_peak.count()},
          {"closed", rank.closed},
          // Constant, for scripts of earlier versions, which read these keys.
          {"guaranteed_bytes_per_second", 0.0},
          {"guarantee_lowered", nullptr},
          {"weight", rank.weight},
          {"plan_copies", CopiesOf(rank.plan_copies)},
          {"late", LateOf(rank.late)},
          {"step", OrNull(rank.step.has_value(), step.step)},
          // JSON has no NaN or infinity.
          {"loss", OrNull(rank.step && std::isfinite(step.loss), step.loss)},
          {"tokens_per_second",
           OrNull(step.seconds > 0,
                  static_cast<double>(step.tokens) / step.seconds)}};
}

json Job(const JobSnapshot& job) {
  return {{"name", job.name},
          {"uid", job.principal.uid},
          {"cgroup", job.principal.cgroup},
          {"world_size", job.world_size},
          {"ranks", List(job.ranks, RankOf)},
          {"plan_id", OrNull(job.plan != PlanId(), job.plan.value())}};
}

json LimitOf(Bytes limit) {
  return OrNull(limit != Limits::kUnlimited, limit.count());
}

json Budget(const BudgetLine& line) {
  return {{"uid", line.principal.uid},
          {"cgroup", line.principal.cgroup},
          {"job", OrNull(line.job)},
          {"gpu_used_bytes", line.gpu_used.count()},
          {"gpu_limit_bytes", LimitOf(line.limits.gpu)},
          {"host_used_bytes", line.host_used.count()},
          {"host_limit_bytes", LimitOf(line.limits.host)}};
}

json Limit(const LimitLine& line, absl::Time now) {
  const auto& uid = line.target.uid;
  return {
      {"of", Name(line.of)},
      {"uid", OrNull(uid.has_value(), uid.value_or(0))},
      {"cgroup", OrNull(line.target.cgroup)},
      {"job", OrNull(line.target.job)},
      {"gpu_limit_bytes", LimitOf(line.limits.gpu)},
      {"host_limit_bytes", LimitOf(line.limits.host)},
      {"set_by", line.by.live ? "live" : "configuration"},
      {"by", line.by.who},
      {"age_s", OrNull(line.by.live, absl::ToDoubleSeconds(now - line.by.at))}};
}

json ReservationOf(const ReservationLine& line, absl::Time now) {
  return {{"pool", line.pool.kind == PoolKind::kGpu ? "gpu" : "numa"},
          {"index", line.pool.ordinal},
          {"uid", line.whose.uid},
          {"cgroup", line.whose.cgroup},
          {"bytes", line.bytes.count()},
          {"withheld_bytes", line.withheld.count()},
          {"by", line.by.who},
          {"age_s", absl::ToDoubleSeconds(now - line.by.at)}};
}

json Counted(Resource what, int64_t amount) {
  return IsSharedInTurns(what) ? json(InUnits(what, amount)) : json(amount);
}

json QuotaList(const QuotasSnapshot& quotas) {
  json to = json::array();
  for (size_t i = 0; i < kResources; ++i) {
    const auto what = static_cast<Resource>(i);
    json users = json::array();
    for (const auto& [who, amounts] : quotas.users) {
      if (amounts[i] == 0) continue;
      users.push_back({{"uid", who.uid},
                       {"cgroup", who.cgroup},
                       {"used", Counted(what, amounts[i])}});
    }
    const bool limited = !IsSharedInTurns(what);
    to.push_back({{"of", Name(what)},
                  {"used", Counted(what, quotas.used[i])},
                  {"limit", OrNull(limited, quotas.shares[i].all)},
                  {"limit_per_user", OrNull(limited, quotas.shares[i].each)},
                  {"refused", quotas.refused[i]},
                  {"users", std::move(users)}});
  }
  return to;
}

json PlanOf(const plan::RankPlan& rank) {
  return {{"rank", rank.rank.value()},
          {"alpha", rank.alpha},
          {"alpha_limited_by", rank.alpha_limited_by},
          {"transient_peak_bytes", rank.transient_peak.count()},
          {"host_bytes", rank.host_bytes.count()}};
}

json Plan(const PlanSnapshot& kept) {
  return {{"id", kept.plan->id.value()},
          {"job", kept.job},
          {"uid", kept.principal.uid},
          {"seconds", kept.plan->seconds},
          {"infeasible", kept.plan->infeasible},
          {"profile_hash", kept.plan->profile_hash},
          {"units_solved", kept.plan->units_solved},
          {"units_known", kept.plan->units_known},
          {"ranks", List(kept.plan->ranks, PlanOf)}};
}

// Indexed by PlanningSnapshot::State.
constexpr const char* kStates[] = {
    "collecting", "queued", "solving", "waiting", "changing",
};
static_assert(std::size(kStates) ==
              static_cast<size_t>(PlanningSnapshot::State::kChanging) + 1);

json Planning(const PlanningSnapshot& planning) {
  using State = PlanningSnapshot::State;
  json to = {
      {"job", planning.job},
      {"uid", planning.principal.uid},
      {"state", kStates[static_cast<int>(planning.state)]},
      {"ranks", planning.ranks},
      {"ranks_wanted", planning.wanted},
      {"elapsed_s", OrNull(planning.state != State::kCollecting &&
                               planning.state != State::kQueued,
                           absl::ToDoubleSeconds(planning.elapsed))},
      {"deadline_in_s", OrNull(planning.left.has_value(),
                               absl::ToDoubleSeconds(planning.left.value_or(
                                   absl::ZeroDuration())))},
      {"plan_id", OrNull(planning.plan != PlanId(), planning.plan.value())},
      {"waiting_for", planning.waiting_for},
      {"progress", nullptr}};
  if (planning.progress) {
    to["progress"] = {
        {"segments_done", planning.progress->done},
        {"segments", planning.progress->all},
        {"segment", planning.progress->segment},
        {"arm", planning.progress->arm},
        {"peak_bytes", planning.progress->peak.count()},
        {"lower_bound_bytes", planning.progress->lower_bound.count()}};
  }
  return to;
}

json HolderOf(const HolderSnapshot& holder) {
  return {{"pid", holder.pid},
          {"uid", holder.uid},
          {"command", holder.command},
          {"gpu_bytes", holder.gpu.count()},
          {"host_bytes", holder.host.count()}};
}

json WaitingOf(const WaitingSnapshot& waits) {
  const auto& [pool, size, wait] = waits.lease.asked;
  return {{"job", waits.lease.job.name},
          {"uid", waits.lease.job.principal.uid},
          {"rank", waits.rank.value()},
          {"pool", pool.kind == PoolKind::kGpu ? "gpu" : "numa"},
          {"index", pool.ordinal},
          {"bytes", size.count()},
          {"background", false},
          {"lacks", Name(waits.lease.lacks)},
          {"in_front", waits.in_front},
          {"elapsed_s", absl::ToDoubleSeconds(waits.elapsed)},
          {"deadline_in_s", absl::ToDoubleSeconds(waits.left)}};
}

json Aggregates(const Snapshot& snapshot) {
  const absl::Time now = snapshot.now;
  const auto host = [&](const PoolSnapshot& pool) {
    json to = {{"numa", pool.id.ordinal}, {"ready_bytes", pool.ready.count()}};
    AddPool(pool, now, to);
    return to;
  };
  json to = {{"generation", snapshot.generation},
             {"hostname", snapshot.hostname},
             {"version", SLUICE_VERSION},
             {"driver", snapshot.driver},
             {"uptime_s", absl::ToDoubleSeconds(snapshot.uptime)},
             {"sessions", snapshot.sessions},
             {"held_outside_age_s", AgeOf(snapshot.outside_at, now)},
             {"held_outside_by", OutsideHolders(snapshot.driver)},
             {"drained", nullptr},
             {"host_memory", nullptr},
             {"gpus", List(snapshot.gpus, Gpu, now)},
             {"links", List(snapshot.links, Link)},
             {"host", List(snapshot.hosts, host)}};
  if (snapshot.drain) {
    to["drained"] = {
        {"by", ""},
        {"reason", ""},
        {"age_s", absl::ToDoubleSeconds(now - snapshot.drain->at)}};
  }
  if (!snapshot.host_memory.empty()) {
    to["host_memory"] = {{"kind", snapshot.host_memory},
                         {"why", snapshot.host_memory_why}};
  }
  return to;
}

// Formats JSON. Replaces invalid UTF-8, which messages may quote from a client.
std::string Text(const json& from) {
  return from.dump(-1, ' ', false, json::error_handler_t::replace);
}

}  // namespace

std::string SnapshotJson(const Snapshot& snapshot) {
  const absl::Time now = snapshot.now;
  const auto event = [&](const LoggedEvent& of) -> json {
    return {{"number", of.number},
            {"age_s", absl::ToDoubleSeconds(now - of.at)},
            {"kind", Name(of.kind)},
            {"request", OrNull(of.cause.session.value() > 0, of.cause.Text())},
            {"text", of.text}};
  };
  json to = Aggregates(snapshot);
  to.update({{"jobs", List(snapshot.jobs, Job)},
             {"budgets", List(snapshot.budgets, Budget)},
             {"limits", List(snapshot.limits, Limit, now)},
             {"reservations", List(snapshot.reservations, ReservationOf, now)},
             {"measured_links", nullptr},
             {"http", nullptr},
             {"quotas", QuotaList(snapshot.quotas)},
             {"plans", List(snapshot.plans, Plan)},
             {"planning", List(snapshot.planning, Planning)},
             {"waiting", List(snapshot.waiting, WaitingOf)},
             {"holders", List(snapshot.holders, HolderOf)},
             {"events_from", snapshot.events_from},
             {"events", List(snapshot.events, event)}});
  if (snapshot.measured) {
    to["measured_links"] =
        MeasuredOf(*snapshot.measured, snapshot.measured_waits, now);
  }
  if (snapshot.drain) {
    to["drained"]["by"] = snapshot.drain->who;
    to["drained"]["reason"] = snapshot.drain->reason;
  }
  if (!snapshot.http.address.empty()) {
    to["http"] = {{"listen", snapshot.http.address},
                  {"fault", OrNull(snapshot.http.fault)}};
  }
  return Text(to);
}

std::string AggregatesJson(const Snapshot& snapshot) {
  return Text(Aggregates(snapshot));
}

}  // namespace sluice::daemon
