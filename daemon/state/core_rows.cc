#include "daemon/state/core_rows.h"

#include <concepts>
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

// Writes rows to put or erase, in order. These rows name no objects, so their
// bytes do not depend on which objects the reader has.
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
  // Enough for nearly every request.
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
  FieldWriter to_{&rows_, nullptr};
};

// Writes the rows of planning, which name objects.
class PlanningWriter {
 public:
  explicit PlanningWriter(Objects* objects) : objects_(objects) {}

  void operator()(RowKind kind, const JobKey& job, const auto* row) {
    const std::string key = KeyOf(static_cast<char>(kind), job);
    if (row == nullptr) return AddRow(rows_, RowOp::kErase, key, "");
    std::string bytes;
    FieldWriter(&bytes, objects_).Element(*row);
    AddRow(rows_, RowOp::kPut, key, bytes);
  }
  // Returns the rows, after the objects that they name.
  std::string Take() {
    std::string rows;
    for (const auto& [number, bytes] : objects_->TakeNew()) {
      AddRow(rows, RowOp::kPut, KeyOf(kObjectRow, number), bytes);
    }
    return rows + std::exchange(rows_, {});
  }

 private:
  static std::string KeyOf(char kind, const auto& key) {
    std::string name(1, kind);
    FieldWriter(&name, nullptr).Element(key);
    return name;
  }

  Objects* objects_;
  std::string rows_;
};

template <typename Row>
constexpr bool kIsOfPlanning =
    std::same_as<Row, Member> || std::same_as<Row, PlanRounds::Kept>;

}  // namespace

std::string CoreRows::Changes(Core& core) {
  RowWriter rows;
  PlanningWriter planning(&objects_);
  core.TakeChanged(
      [&]<typename Row>(RowKind kind, const auto& key, const Row* row) {
        if constexpr (kIsOfPlanning<Row>) {
          planning(kind, key, row);
        } else {
          rows(kind, key, row);
        }
      });
  std::string record = planning.Take() + rows.Take();
  // Row of the state outside of tables, which is written only if it has
  // changed.
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

}  // namespace sluice::daemon
