#include "tests/fake_cuda/nccl/sequence.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

namespace sluice::fake_nccl {
namespace {

// Another rank's log. Its records must match ours, one by one.
struct Other {
  int rank = 0;
  Log* log = nullptr;
};
struct Logs {
  Log* own = nullptr;
  std::vector<Other> others;
};

Logs MessageLogs(const Hold& in, int peer, bool sends) {
  const int own = in.place.rank;
  if (sends) {
    Channel& channel = in.shared->channels[own][peer];
    return {&channel.sends, {{peer, &channel.receives}}};
  }
  Channel& channel = in.shared->channels[peer][own];
  return {&channel.receives, {{peer, &channel.sends}}};
}

Logs CollectiveLogs(const Hold& in) {
  Logs logs{&in.shared->members[in.place.rank].collectives, {}};
  for (int rank = 0; rank < in.place.ranks; ++rank) {
    if (rank == in.place.rank) continue;
    logs.others.push_back({rank, &in.shared->members[rank].collectives});
  }
  return logs;
}

bool IsMessageCall(const What& what) {
  return what.operation == Operation::kSend ||
         what.operation == Operation::kReceive;
}

Logs LogsOf(const Hold& in, const What& what) {
  return IsMessageCall(what)
             ? MessageLogs(in, what.root, what.operation == Operation::kSend)
             : CollectiveLogs(in);
}

std::string Sentence(const Hold& in, uint64_t index, const std::string& why) {
  return fmt::format("communicator {}, operation {}: {}", NameOf(in.shared->id),
                     index, why);
}

// Compares record `index` of our log with that of each other log.
std::string Compare(const Hold& in, const Logs& logs, uint64_t index) {
  const Side own{in.place.rank, logs.own->at(index)};
  for (const Other& other : logs.others) {
    if (other.log->count <= index) continue;
    const Side there{other.rank, other.log->at(index)};
    auto why = Mismatch(own, there);
    if (!why) why = Crossing(own, there);
    if (why) return Sentence(in, index, *why);
  }
  return "";
}

}  // namespace

bool IsFull(const Hold& in, const What& what) {
  const Logs logs = LogsOf(in, what);
  return std::any_of(logs.others.begin(), logs.others.end(),
                     [&](const Other& other) {
                       return logs.own->count >= other.log->count + kLog;
                     });
}

bool Sequence::Add(const Hold& hold) {
  if (holds_.size() == kMaxCommunicators) return false;
  holds_.push_back(hold);
  return true;
}

void Sequence::Remove(const Hold& hold) {
  std::erase_if(holds_,
                [&](const Hold& one) { return one.shared == hold.shared; });
}

std::string Sequence::Publish(const Hold& in, const std::vector<What>& group) {
  // A group's operations are issued at once: each record has the position
  // before the group.
  std::vector<Record> records;
  for (const What& what : group) {
    const Member& peer =
        in.shared->members[IsMessageCall(what) ? what.root : 0];
    records.push_back(RecordOf(what, {peer.process, peer.device}));
  }
  for (const Record& record : records) {
    LogsOf(in, record.what).own->Append(record);
  }
  std::vector<const Log*> compared;
  for (auto record = records.rbegin(); record != records.rend(); ++record) {
    const Logs logs = LogsOf(in, record->what);
    const auto behind = static_cast<uint64_t>(
        std::count(compared.begin(), compared.end(), logs.own));
    compared.push_back(logs.own);
    std::string wrong = Compare(in, logs, logs.own->count - 1 - behind);
    if (!wrong.empty()) return wrong;
  }
  return FindPassed();
}

Position Sequence::PositionIn(const Hold& hold, Identity peer) {
  const auto& [rank, ranks] = hold.place;
  Shared& shared = *hold.shared;
  Position at{shared.id, shared.members[rank].collectives.count, 0};
  for (int other = 0; other < ranks; ++other) {
    const Member& member = shared.members[other];
    if (member.process != peer.process || member.device != peer.device) {
      continue;
    }
    at.with_peer += shared.channels[rank][other].sends.count +
                    shared.channels[other][rank].receives.count;
  }
  return at;
}

Record Sequence::RecordOf(const What& what, Identity peer) const {
  Record record{what};
  for (size_t i = 0; i < holds_.size(); ++i) {
    record.positions[i] = PositionIn(holds_[i], peer);
  }
  return record;
}

std::string Sequence::FindPassed() const {
  for (const Hold& hold : holds_) {
    std::string wrong = FindPassed(hold);
    if (!wrong.empty()) return wrong;
  }
  return "";
}

std::string Sequence::FindPassed(const Hold& hold) const {
  std::vector<Logs> all = {CollectiveLogs(hold)};
  for (int peer = 0; peer < hold.place.ranks; ++peer) {
    if (peer == hold.place.rank) continue;
    all.push_back(MessageLogs(hold, peer, /*sends=*/true));
    all.push_back(MessageLogs(hold, peer, /*sends=*/false));
  }
  for (const Logs& logs : all) {
    const uint64_t next = logs.own->count;
    for (const Other& other : logs.others) {
      if (other.log->count <= next) continue;
      const Member& peer = hold.shared->members[other.rank];
      const Record now = RecordOf({}, {peer.process, peer.device});
      const auto why =
          Passed(hold.place.rank, now, {other.rank, other.log->at(next)});
      if (why) return Sentence(hold, next, *why);
    }
  }
  return "";
}

}  // namespace sluice::fake_nccl
