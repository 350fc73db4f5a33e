#include "daemon/state/core_rows.h"

#include <fmt/format.h>

#include <concepts>
#include <map>
#include <string_view>
#include <utility>

#include "daemon/state/core_fields.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

// --- writing ----------------------------------------------------------------
void AddRow(std::string& to, RowOp op, const std::string& key,
            const std::string& row) {
  FieldWriter writer(&to, nullptr);
  writer.Element(op);
  writer.Element(key);
  writer.Element(row);
}

// Writes rows to put or erase, in order. `objects` is null if rows name none.
class RowWriter {
 public:
  // Rows that name objects are rare, so no memory is reserved for them.
  explicit RowWriter(Objects* objects) : to_(&rows_, objects) {
    if (objects == nullptr) rows_.reserve(kMostOfARequest);
  }

  template <typename Key, typename Row>
  void operator()(RowKind kind, const Key& key, const Row* row) {
    if (row == nullptr) return Write(RowOp::kErase, kind, key);
    Write(RowOp::kPut, kind, key, *row);
  }
  void operator()(RowKind kind, SessionId id, const Session* session) {
    if (session == nullptr) {
      Write(RowOp::kErase, kind, id);
      return Write(RowOp::kEraseBelow, RowKind::kReply, id);
    }
    Write(RowOp::kPut, kind, id, *session, session->history.newest_forgotten());
  }
  std::string Take() { return std::exchange(rows_, {}); }

 private:
  // Bytes that hold the rows of nearly every request.
  static constexpr size_t kMostOfARequest = 2048;

  // Writes in place, without temporary strings, because this is most of the
  // cost of saving a request.
  template <typename Key, typename... Parts>
  void Write(RowOp op, RowKind kind, const Key& key, const Parts&... row) {
    to_.Element(op);
    to_.Sized([&] {
      rows_.push_back(static_cast<char>(kind));
      AddKey(key);
    });
    to_.Sized([&] { (to_.Element(row), ...); });
  }
  void AddKey(const auto& key) { to_.Element(key); }
  // The key of a reply begins with the key of its session, so that erasing a
  // session can erase all its replies.
  void AddKey(const std::pair<SessionId, RequestId>& reply) {
    to_.Element(reply.first);
    to_.Element(reply.second);
  }

  std::string rows_;
  FieldWriter to_;
};

template <typename Row>
constexpr bool kIsOfPlanning =
    std::same_as<Row, Member> || std::same_as<Row, PlanRounds::Kept>;

// --- reading ----------------------------------------------------------------
using Rows = std::map<std::string, std::string>;

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(
      fmt::format("the saved state is not what a daemon wrote: {}", what));
}

absl::Status Apply(std::string_view record, Rows& rows) {
  Objects none;
  FieldReader from(record, &none);
  while (!from.Done()) {
    RowOp op{};
    std::string key, row;
    from.Element(op);
    from.Element(key);
    from.Element(row);
    if (!from.ok() || key.empty()) return Bad("a record is cut off");
    switch (op) {
      case RowOp::kPut:
        rows[key] = std::move(row);
        break;
      case RowOp::kErase:
        rows.erase(key);
        break;
      case RowOp::kEraseBelow: {
        auto at = rows.lower_bound(key);
        while (at != rows.end() && at->first.starts_with(key)) {
          at = rows.erase(at);
        }
        break;
      }
      default:
        return Bad(fmt::format("operation {} on a row is not known",
                               static_cast<int>(op)));
    }
  }
  return absl::OkStatus();
}

class RowReader {
 public:
  RowReader(Objects* objects, CoreState* to) : objects_(objects), to_(to) {}

  absl::Status Read(const std::string& name, const std::string& bytes) {
    FieldReader key(std::string_view(name).substr(1), objects_);
    FieldReader row(bytes, objects_);
    const char kind = name[0];
    bool no_plan = false;
    const auto into = [&](RowKind each, auto& map) {
      if (kind != static_cast<char>(each)) return false;
      typename std::decay_t<decltype(map)>::key_type at{};
      key.Element(at);
      row.Element(map[at]);
      if constexpr (std::same_as<decltype(map), Sessions&>) {
        row.Element(newest_forgotten_[at]);
      }
      if constexpr (std::same_as<decltype(map), PlansOfJobs&>) {
        no_plan = map[at].plan == nullptr;
      }
      return true;
    };
    LedgerState& ledger = to_->ledger;
    if (kind == kLooseRow) {
      row.Element(loose_.emplace());
    } else if (kind == static_cast<char>(RowKind::kReply)) {
      SessionId id;
      RequestId request;
      key.Element(id);
      key.Element(request);
      row.Element(replies_[id][request]);
    } else if (!into(RowKind::kExtent, extents_) &&
               !into(RowKind::kLease, ledger.leases) &&
               !into(RowKind::kMaking, ledger.making) &&
               !into(RowKind::kHolder, ledger.holders) &&
               !into(RowKind::kLingering, ledger.lingering) &&
               !into(RowKind::kPrincipal, ledger.principals) &&
               !into(RowKind::kAllowance, ledger.allowances) &&
               !into(RowKind::kSession, to_->sessions) &&
               !into(RowKind::kMember, to_->joint.members) &&
               !into(RowKind::kPlanInUse, in_use_) &&
               !into(RowKind::kPlanPromised, promised_) &&
               !into(RowKind::kWaiter, to_->waiting.waiters)) {
      return Bad(fmt::format("a row of kind {} is not known", int{kind}));
    }
    if (no_plan) return Bad("a plan is missing");
    if (key.Done() && row.Done()) return absl::OkStatus();
    return Bad(fmt::format("a row of kind {} is damaged", int{kind}));
  }

  // Restores the state that is computed from several rows.
  absl::Status Join() {
    const LooseState loose = loose_.value_or(LooseState());
    for (const auto& [id, order] : loose.next_idle_order) {
      const bool is_here = to_->ledger.pools.contains(id);
      if (!is_here && id.kind == PoolKind::kGpu) continue;  // used by no job
      SLUICE_ASSIGN_OR_RETURN(Pool::Saved * pool, PoolOf(id));
      pool->next_idle_order = order;
    }
    for (auto& [id, row] : extents_) {
      SLUICE_ASSIGN_OR_RETURN(Pool::Saved * pool, PoolOf(row.pool));
      pool->extents[id] = std::move(row.extent);
    }
    for (const auto& [id, lease] : to_->ledger.leases) {
      const auto holder = to_->ledger.holders.find(lease.session);
      if (holder == to_->ledger.holders.end()) {
        return Bad("a lease has no holder");
      }
      holder->second.leases.insert(id);
    }
    for (auto& [id, session] : to_->sessions) {
      session.history.Load(std::move(replies_[id]), newest_forgotten_[id]);
      if (!session.was_rank()) continue;
      SLUICE_RETURN_IF_ERROR(PoolOf(session.gpu()).status());
      if (!session.is_rank()) continue;
      const HelloRequest& hello = session.hello;
      to_->joint.attached[id] = {session.job(), hello.rank, hello.gpu,
                                 hello.local_ranks};
    }
    PlanRounds& rounds = to_->joint.rounds;
    JoinPlans(in_use_, rounds.current);
    JoinPlans(promised_, rounds.promised);
    for (auto& [plan, kept] : plans_) rounds.kept.push_back(std::move(kept));
    if (!loose_) return absl::OkStatus();
    static_cast<LedgerRest&>(to_->ledger) = loose;
    rounds.next_round = loose.next_round;
    rounds.next_plan = loose.next_plan;
    to_->joint.next = loose.next_joint;
    to_->last_session = loose.last_session;
    to_->gpus = loose.gpus;
    to_->waiting.next = loose.next_place;
    for (const WaitingLease& lease :
         loose.waiting_leases.value_or(std::vector<WaitingLease>())) {
      const auto session = to_->sessions.find(lease.session);
      if (session == to_->sessions.end()) {
        return Bad("a lease waits without its session");
      }
      Waiter& waiter = to_->waiting.waiters[{to_->waiting.next++}];
      waiter = lease;
      waiter.job = session->second.job();
      waiter.for_plan = true;
    }
    for (const auto& [place, waiter] : to_->waiting.waiters) {
      SLUICE_RETURN_IF_ERROR(PoolOf(waiter.asked.pool).status());
    }
    return absl::OkStatus();
  }

 private:
  using Sessions = decltype(CoreState::sessions);
  using PlansOfJobs = std::map<JobKey, PlanRounds::Kept>;

  void JoinPlans(const PlansOfJobs& from, Table<JobKey, PlanId>& to) {
    for (const auto& [job, kept] : from) {
      to.Put(job) = kept.plan->id;
      plans_[kept.plan->id] = kept;
    }
  }
  absl::StatusOr<Pool::Saved*> PoolOf(PoolId id) {
    const auto pool = to_->ledger.pools.find(id);
    if (pool != to_->ledger.pools.end()) return &pool->second;
    return absl::FailedPreconditionError(
        fmt::format("{} was here when this was saved, and is not now: start "
                    "sluiced with it, or end the jobs that use it",
                    Name(id)));
  }

  Objects* objects_;
  CoreState* to_;
  // The rows that Join moves into the state.
  std::map<ExtentId, ExtentRow> extents_;
  std::map<SessionId, RequestHistory::Requests::Rows> replies_;
  std::map<SessionId, RequestId> newest_forgotten_;
  PlansOfJobs in_use_, promised_;
  std::map<PlanId, PlanRounds::Kept> plans_;  // in the order of their making
  std::optional<LooseState> loose_;
};

}  // namespace

std::string CoreRows::Changes(Core& core) {
  RowWriter rows(nullptr), planning(&objects_);
  core.TakeChanged(
      [&]<typename Row>(RowKind kind, const auto& key, const Row* row) {
        if constexpr (kIsOfPlanning<Row>) {
          planning(kind, key, row);
        } else {
          rows(kind, key, row);
        }
      });
  // Objects precede the rows that name them.
  std::string record;
  for (const auto& [number, bytes] : objects_.TakeNew()) {
    std::string key(1, kObjectRow);
    FieldWriter(&key, nullptr).Element(number);
    AddRow(record, RowOp::kPut, key, bytes);
  }
  // Nearly always only `rows` has bytes, and its memory is moved.
  record = std::move(record) + planning.Take() + rows.Take();
  std::string loose;
  FieldWriter(&loose, nullptr).Element(core.Loose());
  if (loose != loose_) {
    AddRow(record, RowOp::kPut, std::string(1, kLooseRow), loose);
    loose_ = std::move(loose);
  }
  return record;
}

std::string CoreRows::Everything(Core& core) {
  objects_.Clear();
  loose_.clear();
  core.TouchAll();
  return Changes(core);
}

absl::StatusOr<CoreState> ReadCore(const StateFile::Contents& contents,
                                   CoreState fresh) {
  Rows rows;
  SLUICE_RETURN_IF_ERROR(Apply(contents.checkpoint, rows));
  for (const std::string& record : contents.records) {
    SLUICE_RETURN_IF_ERROR(Apply(record, rows));
  }
  Objects objects;
  for (const auto& [name, bytes] : rows) {
    if (name[0] != kObjectRow) continue;
    uint64_t number = 0;
    FieldReader key(std::string_view(name).substr(1), &objects);
    key.Element(number);
    if (!key.Done()) {
      return Bad(fmt::format("a row of kind {} is damaged", int{kObjectRow}));
    }
    objects.Add(number, bytes);
  }
  RowReader reader(&objects, &fresh);
  for (const auto& [name, bytes] : rows) {
    if (name[0] == kObjectRow) continue;
    SLUICE_RETURN_IF_ERROR(reader.Read(name, bytes));
  }
  SLUICE_RETURN_IF_ERROR(reader.Join());
  return fresh;
}

}  // namespace sluice::daemon
