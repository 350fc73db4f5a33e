#include "daemon/state/core_rows.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "daemon/state/core_fields.h"
#include "daemon/state/row_format.h"

namespace sluice::daemon {
namespace {

// Rows to put or to erase, in line.
class RowWriter {
 public:
  RowWriter(Objects* objects, PlanningShare* planning)
      : objects_(objects), planning_(planning) {
    rows_.reserve(kMostOfARequest);
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
  // Whether there is room for it is known when all of them are.
  void operator()(RowKind kind, const JobKey& job, const Member* member) {
    Consider(kind, job, member);
  }
  void operator()(RowKind kind, const JobKey& job,
                  const PlanRounds::Kept* plan) {
    Consider(kind, job, plan);
  }
  // Once for each value that it takes; `written`: the last one.
  void LooseIfNew(const std::string& row, std::string& written) {
    if (row == written) return;
    WriteBytes(std::string(1, kLooseRow), row);
    written = row;
  }
  template <typename Row>
  std::string Bytes(const Row& row) {
    std::string bytes;
    FieldWriter(&bytes, objects_).Element(row);
    return bytes;
  }
  // The rows, after the objects that they name.
  std::string Take() {
    for (const JobKey& job : planning_->TakeEvicted()) {
      for (const RowKind kind : PlanningShare::kKinds) {
        Write(RowOp::kErase, kind, job);
      }
    }
    for (const auto& put : std::exchange(considered_, {})) put();
    const auto objects = objects_->TakeNew();
    std::string rows = std::exchange(rows_, {});
    if (objects.empty()) return rows;
    for (const auto& [number, bytes] : objects) {
      WriteBytes(KeyOf(kObjectRow, number), bytes);
    }
    return std::exchange(rows_, {}) + rows;
  }

 private:
  static constexpr size_t kMostOfARequest = 2048;  // nearly always

  template <typename Row>
  void Consider(RowKind kind, const JobKey& job, const Row* row) {
    const std::string key = KeyOf(static_cast<char>(kind), job);
    planning_->Set(job, kind, row == nullptr ? 0 : SizeOf(key, *row));
    if (row == nullptr) return Write(RowOp::kErase, kind, job);
    considered_.push_back([this, key, job, row] {
      if (planning_->IsSaved(job)) WriteBytes(key, Bytes(*row));
    });
  }
  // At most what a row takes, with the objects that it names.
  template <typename Row>
  static size_t SizeOf(const std::string& key, const Row& row) {
    constexpr size_t kNumbers = 16;  // of an object, longer than here
    Objects objects;
    PlanningShare none(0);
    RowWriter to(&objects, &none);
    to.WriteBytes(key, to.Bytes(row));
    return to.Take().size() + kNumbers * objects.count();
  }
  template <typename Key>
  std::string KeyOf(char kind, const Key& key) {
    std::string name(1, kind);
    FieldWriter(&name, objects_).Element(key);
    return name;
  }
  // In place, and without a string of its own for anything: this is most of
  // what keeping a request costs.
  template <typename Key, typename... Parts>
  void Write(RowOp op, RowKind kind, const Key& key, const Parts&... row) {
    to_.Element(op);
    to_.Sized([&] {
      rows_.push_back(static_cast<char>(kind));
      AddKey(key);
    });
    to_.Sized([&] { (to_.Element(row), ...); });
  }
  template <typename Key>
  void AddKey(const Key& key) {
    to_.Element(key);
  }
  // Below its session's.
  void AddKey(const std::pair<SessionId, RequestId>& reply) {
    to_.Element(reply.first);
    to_.Element(reply.second);
  }
  void WriteBytes(const std::string& key, const std::string& row) {
    to_.Element(RowOp::kPut);
    to_.Element(key);
    to_.Element(row);
  }

  Objects* objects_;
  PlanningShare* planning_;
  std::vector<std::function<void()>> considered_;
  std::string rows_;
  FieldWriter to_{&rows_, objects_};
};

}  // namespace

std::string CoreRows::Changes(Core& core) {
  RowWriter to(&written_.objects, &written_.planning);
  std::optional<RowWriter> also;
  if (draft_) {
    also.emplace(&draft_->written.objects, &draft_->written.planning);
  }
  core.TakeChanged([&](RowKind kind, const auto& key, const auto* row) {
    to(kind, key, row);
    if (also) (*also)(kind, key, row);
  });
  const std::string loose = to.Bytes(core.Loose());
  to.LooseIfNew(loose, written_.loose);
  if (also) {
    also->LooseIfNew(loose, draft_->written.loose);
    draft_->bytes += also->Take();
  }
  return to.Take();
}

std::string CoreRows::Everything(Core& core) {
  draft_.reset();
  written_.objects.Clear();
  written_.planning.Clear();
  written_.loose.clear();
  core.TouchAll();
  return Changes(core);
}

void CoreRows::BeginDraft(Core& core) {
  draft_.emplace(
      Draft{{.objects = {}, .planning = written_.planning, .loose = {}}, {}});
  draft_->written.planning.Clear();
  core.BeginWalk();
}

CoreRows::Part CoreRows::NextPart(Core& core, size_t rows) {
  RowWriter to(&draft_->written.objects, &draft_->written.planning);
  Part part;
  part.is_last = core.Walk(rows, [&](RowKind kind, const auto& key,
                                     const auto* row) { to(kind, key, row); });
  if (part.is_last) {
    to.LooseIfNew(to.Bytes(core.Loose()), draft_->written.loose);
  }
  part.bytes = std::move(draft_->bytes) + to.Take();
  draft_->bytes.clear();
  if (!part.is_last) return part;
  draft_->written.planning.KnowTold(written_.planning);
  written_ = std::move(draft_->written);
  draft_.reset();
  return part;
}

CoreState Durable(CoreState state) {
  std::erase_if(state.sessions,
                [](const auto& each) { return !each.second.was_rank(); });
  JointPlanningState& joint = state.joint;
  joint.joining.clear();
  joint.held.clear();
  joint.positions.clear();
  joint.resources = {};
  PlanRounds::Saved& rounds = joint.rounds;
  joint.next = JointPlanning::DueWithout(
      rounds.solving, !joint.waiting_leases.empty(), std::move(joint.next));
  rounds.collecting.clear();
  rounds.solving.clear();
  rounds.together.clear();
  std::set<PlanId> used;
  for (const auto& [job, plan] : rounds.current) used.insert(plan);
  for (const auto& [job, plan] : rounds.promised) used.insert(plan);
  std::erase_if(rounds.kept, [&](const PlanRounds::Kept& kept) {
    return !used.contains(kept.plan->id);
  });
  return state;
}

}  // namespace sluice::daemon
