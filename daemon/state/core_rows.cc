#include "daemon/state/core_rows.h"

#include <concepts>
#include <functional>
#include <utility>

#include "daemon/state/core_fields.h"
#include "daemon/state/row_format.h"

namespace sluice::daemon {
namespace {

void AddRow(std::string& to, RowOp op, const std::string& key,
            const std::string& row) {
  FieldWriter writer(&to, nullptr);
  writer.Element(op);
  writer.Element(key);
  writer.Element(row);
}

// Rows to put or to erase, in line. They name no objects, so their bytes do not
// depend on the reader.
class RowWriter {
 public:
  RowWriter() { rows_.reserve(kMostOfARequest); }

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
  static constexpr size_t kMostOfARequest = 2048;  // nearly always

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
  void AddKey(const auto& key) { to_.Element(key); }
  // Below its session's.
  void AddKey(const std::pair<SessionId, RequestId>& reply) {
    to_.Element(reply.first);
    to_.Element(reply.second);
  }

  std::string rows_;
  FieldWriter to_{&rows_, nullptr};
};

// The rows of planning, which name objects, and for which there may be no room.
class PlanningWriter {
 public:
  PlanningWriter(Objects* objects, PlanningShare* planning)
      : objects_(objects), planning_(planning) {}

  // Whether there is room for it is known when all of them are.
  void operator()(RowKind kind, const JobKey& job, const auto* row) {
    const std::string key = KeyOf(static_cast<char>(kind), job);
    planning_->Set(job, kind, row == nullptr ? 0 : SizeOf(key, *row));
    if (row == nullptr) return Erase(kind, job);
    considered_.push_back([this, key, job, row] {
      if (planning_->IsSaved(job)) Put(key, Bytes(*row));
    });
  }
  // The rows, after the objects that they name.
  std::string Take() {
    for (const JobKey& job : planning_->TakeEvicted()) {
      for (const RowKind kind : PlanningShare::kKinds) Erase(kind, job);
    }
    for (const auto& put : std::exchange(considered_, {})) put();
    std::string rows = std::exchange(rows_, {});
    for (const auto& [number, bytes] : objects_->TakeNew()) {
      Put(KeyOf(kObjectRow, number), bytes);
    }
    return std::exchange(rows_, {}) + rows;
  }

 private:
  // At most what a row takes, with the objects that it names.
  static size_t SizeOf(const std::string& key, const auto& row) {
    constexpr size_t kNumbers = 16;  // of an object, longer than here
    Objects objects;
    PlanningShare none(0);
    PlanningWriter to(&objects, &none);
    to.Put(key, to.Bytes(row));
    return to.Take().size() + kNumbers * objects.count();
  }
  static std::string KeyOf(char kind, const auto& key) {
    std::string name(1, kind);
    FieldWriter(&name, nullptr).Element(key);
    return name;
  }
  std::string Bytes(const auto& row) {
    std::string bytes;
    FieldWriter(&bytes, objects_).Element(row);
    return bytes;
  }
  void Erase(RowKind kind, const JobKey& job) {
    AddRow(rows_, RowOp::kErase, KeyOf(static_cast<char>(kind), job), "");
  }
  void Put(const std::string& key, const std::string& row) {
    AddRow(rows_, RowOp::kPut, key, row);
  }

  Objects* objects_;
  PlanningShare* planning_;
  std::vector<std::function<void()>> considered_;
  std::string rows_;
};

template <typename Row>
constexpr bool kIsOfPlanning =
    std::same_as<Row, Member> || std::same_as<Row, PlanRounds::Kept>;

}  // namespace

std::string CoreRows::Changes(Core& core) {
  RowWriter rows;
  PlanningWriter planning(&objects_, &planning_);
  core.TakeChanged(
      [&]<typename Row>(RowKind kind, const auto& key, const Row* row) {
        if constexpr (kIsOfPlanning<Row>) {
          planning(kind, key, row);
        } else {
          rows(kind, key, row);
        }
      });
  std::string record = planning.Take() + rows.Take();
  // What is in no table has a row whenever its value changes.
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
  planning_.Clear();
  loose_.clear();
  core.TouchAll();
  return Changes(core);
}

}  // namespace sluice::daemon
