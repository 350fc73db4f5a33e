// Tests a core's rows: after events of random stories, the checkpoint and the
// records together give the core again.
#include "daemon/state/core_rows.h"

#include <fmt/format.h>

#include <random>

#include "absl/time/clock.h"
#include "daemon/state/core_fields.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "proto/plan/codec.h"
#include "tests/daemon/core/core_story.h"
#include "tests/daemon/state/durable.h"
#include "tests/support/sanitizer.h"

namespace sluice::daemon {
namespace {

using ::testing::HasSubstr;

constexpr int kStory = testing::kSanitized ? 1000 : 4000;

// Returns all of a core's rows. Equal cores have equal rows, as a new CoreRows
// numbers shared objects from 1.
std::string RowsOf(const NodeConfig& node, CoreState state) {
  Core core(node, absl::UnixEpoch());
  core.Load(std::move(state));
  core.CheckInvariants();
  return CoreRows().Everything(core);
}

// Compares profiles and plans by content, as a state that was read has objects
// of its own.
void CheckSame(const ProfileWithHash& a, const ProfileWithHash& b) {
  SLUICE_CHECK(a.hash == b.hash && a.units == b.units);
  SLUICE_CHECK(plan::Encode(*a.profile) == plan::Encode(*b.profile));
}

void CheckSame(const Member& a, const Member& b) {
  SLUICE_CHECK(a.state == b.state && a.ranks == b.ranks);
  SLUICE_CHECK(a.change == b.change && a.settled == b.settled &&
               a.links == b.links);
  SLUICE_CHECK(a.profiles.size() == b.profiles.size());
  for (const auto& [rank, profile] : a.profiles) {
    CheckSame(profile, b.profiles.at(rank));
  }
}

void CheckSame(const PlanRounds& a, const PlanRounds& b) {
  SLUICE_CHECK(a.current == b.current && a.promised == b.promised);
  SLUICE_CHECK(a.next_round == b.next_round && a.next_plan == b.next_plan);
  SLUICE_CHECK(a.kept.size() == b.kept.size());
  for (size_t i = 0; i < a.kept.size(); ++i) {
    SLUICE_CHECK(a.kept[i].job == b.kept[i].job);
    SLUICE_CHECK(a.kept[i].cache_key == b.kept[i].cache_key);
    SLUICE_CHECK(plan::Encode(*a.kept[i].plan) ==
                 plan::Encode(*b.kept[i].plan));
  }
}

void CheckSame(const CoreState& a, const CoreState& b) {
  SLUICE_CHECK(a.ledger == b.ledger);
  SLUICE_CHECK(a.sessions == b.sessions);
  SLUICE_CHECK(a.drain == b.drain && a.last_session == b.last_session);
  SLUICE_CHECK(a.waiting == b.waiting);
  SLUICE_CHECK(a.joint.attached == b.joint.attached);
  SLUICE_CHECK(a.joint.next == b.joint.next);
  CheckSame(a.joint.rounds, b.joint.rounds);
  SLUICE_CHECK(a.joint.members.size() == b.joint.members.size());
  for (const auto& [job, member] : a.joint.members) {
    CheckSame(member, b.joint.members.at(job));
  }
}

// Executes the effects of a core that took over, and then ends all sessions.
class LastActs {
 public:
  explicit LastActs(Core& core) : core_(core) {}
  void Do(const Effects& effects) {
    core_.CheckInvariants();
    for (const Effect& effect : effects) {
      if (const auto* make = std::get_if<MakeExtent>(&effect)) {
        Do(core_.ExtentsMade({{make->id, absl::OkStatus()}}, now_));
      } else if (const auto* ask = std::get_if<AskHolders>(&effect)) {
        std::vector<Core::HolderAnswer> answers;
        for (ExtentId id : ask->extents) answers.push_back({id, Held::kNo});
        Do(core_.HoldersKnown(answers, now_));
      }
    }
  }
  void EndAll() {
    for (const auto& [id, session] : core_.Save().sessions) {
      Do(core_.ProcessesGone({{id, {}}}, now_));
    }
    Do(core_.OutsideKnown({{}, now_}, now_));
    now_ += absl::Minutes(1);
    Do(core_.Tick(now_));
    for (const auto& [id, pool] : core_.ledger().pools()) {
      SLUICE_CHECK(pool.free() == pool.total());
    }
  }

 private:
  Core& core_;
  absl::Time now_ = absl::FromUnixSeconds(1 << 20);
};

// Stores what a daemon would store of a core, event by event.
class Store {
 public:
  // Writes a checkpoint after `records` records.
  explicit Store(size_t records) : most_(records) {}

  void Save(Core& core) {
    if (contents_.checkpoint.empty() || contents_.records.size() >= most_) {
      contents_ = {rows_.Everything(core), {}};
      return;
    }
    std::string record = rows_.Changes(core);
    if (!record.empty()) contents_.records.push_back(std::move(record));
  }
  void Check(const Core& core) const {
    // The rows do not have the administrators' policy.
    Core fresh(core.config(), absl::UnixEpoch());
    SLUICE_CHECK_OK(
        fresh.SetPolicy(core.live_policy().policy(), absl::UnixEpoch()));
    auto read = ReadCore(contents_, fresh.Save());
    SLUICE_CHECK_OK(read.status());
    const CoreState kept = Durable(core.Save());
    CheckSame(*read, kept);
    SLUICE_CHECK(RowsOf(core.config(), *read) == RowsOf(core.config(), kept));
  }
  // Checks that a daemon that reaches only some of the sessions can read the
  // state, keep the invariants, and end all sessions.
  void CheckTakenOver(const Core& core) const {
    Core next(core.config(), absl::UnixEpoch());
    SLUICE_CHECK_OK(
        next.SetPolicy(core.live_policy().policy(), absl::UnixEpoch()));
    auto read = ReadCore(contents_, next.Save());
    SLUICE_CHECK_OK(read.status());
    std::set<SessionId> reached;
    for (const auto& [id, session] : read->sessions) {
      if (id.value() % 4 != 0) reached.insert(id);
    }
    next.Load(*std::move(read));
    LastActs acts(next);
    acts.Do(next.TakeOver(reached, absl::FromUnixSeconds(1 << 20)));
    acts.EndAll();
  }

 private:
  const size_t most_;
  CoreRows rows_;
  StateFile::Contents contents_;
};

class CoreRowsTest : public ::testing::TestWithParam<int> {
 protected:
  size_t records() const { return static_cast<size_t>(GetParam()) * 7 % 60; }
};

TEST_P(CoreRowsTest, ACheckpointAndItsRecordsAddUpToTheCore) {
  Store store(records());
  CoreStory story({.save = 0, .shadow = 0});
  int events = 0;
  story.Watch([&](Core& core) {
    store.Save(core);
    if (++events % 5 == 0) store.Check(core);
    if (events % 31 == 0) store.CheckTakenOver(core);
  });
  story.Run(RandomStory(static_cast<uint32_t>(GetParam()), kStory));
  story.Finish();
  EXPECT_GT(story.granted(), kStory / 200);
}

INSTANTIATE_TEST_SUITE_P(Stories, CoreRowsTest, ::testing::Range(0, 12));

TEST(CoreRowsRecordTest, ARecordHasOnlyTheChangedRows) {
  CoreDriver node;
  CoreRows rows;
  std::vector<SessionId> ranks;
  for (int i = 0; i < 64; ++i) {
    ranks.push_back(node.Attach(fmt::format("job{}", i), 0));
  }
  const size_t all = rows.Everything(node.core).size();
  ASSERT_TRUE(node.Lease(ranks[0], Gpu(0), MiB(4)).ok());
  const size_t one = rows.Changes(node.core).size();
  EXPECT_GT(one, 0);
  EXPECT_LT(one, all / 16);
  EXPECT_EQ(rows.Changes(node.core), "");
}

// Guards against an event per extent of a lease, each with a record of the
// whole lease.
TEST(CoreRowsRecordTest, ExtentsThatAreMadeTogetherAreOneRecord) {
  NodeConfig config = SmallNode();
  config.extent.gpu = KiB(64);
  CoreDriver node(config);
  node.make_at_once = false;
  CoreRows rows;
  const SessionId rank = node.Attach("job", 0);
  EXPECT_FALSE(node.Ask(rank, LeaseRequest{Gpu(0), MiB(16)}));
  const size_t all = rows.Everything(node.core).size();
  size_t records = 0;
  node.watch = [&](Core& core) { records += rows.Changes(core).size(); };
  node.MakeNext(std::vector(node.to_make.size(), absl::OkStatus()));
  EXPECT_GT(records, 256 * 4);
  EXPECT_LT(records, 2 * all);
}

// Prints what a checkpoint costs if sessions acknowledge no replies.
TEST(CoreRowsRecordTest, ACheckpointOfFullHistoriesHasEachReply) {
  CoreDriver node;
  constexpr size_t kRanks = 64;
  for (size_t i = 0; i < kRanks; ++i) {
    const SessionId rank = node.Attach(fmt::format("job{}", i), 0);
    for (size_t ask = 0; ask < RequestHistory::kWindow; ++ask) {
      node.Ask(rank, FreeRequest{LeaseId(7)});
    }
  }
  CoreRows rows;
  rows.Everything(node.core);
  const absl::Time before = absl::Now();
  const size_t bytes = rows.Everything(node.core).size();
  fmt::print(
      "a checkpoint of {} sessions with {} replies each: {:.1f} ms, {} "
      "bytes\n",
      kRanks, RequestHistory::kWindow,
      absl::ToDoubleMilliseconds(absl::Now() - before), bytes);
  EXPECT_GT(bytes, kRanks * RequestHistory::kWindow * 10);
}

// Guards against clients that fill the state with wrong requests.
TEST(CoreRowsRecordTest, RequestsOfSessionsThatAreNoRanksAreNotSaved) {
  CoreDriver node;
  CoreRows rows;
  const size_t before = rows.Everything(node.core).size();
  const SessionId half_open = node.Connect(), observer = node.Connect();
  node.Ask(observer, HelloRequest{.observer = true});
  for (int i = 0; i < 200; ++i) {
    node.Ask(half_open, FreeRequest{LeaseId(7)});
    node.Ask(observer, FreeRequest{LeaseId(7)});
  }
  EXPECT_LT(rows.Changes(node.core).size(), 100);
  EXPECT_LT(rows.Everything(node.core).size(), before + 100);
  // Once the session becomes a rank, its earlier requests are saved with it.
  node.Ask(half_open, HelloRequest{});
  EXPECT_GT(rows.Changes(node.core).size(), 200 * 10);
}

// Version 1 saved leases that wait for a plan outside the rows of waiters.
TEST(CoreRowsRecordTest, LeasesWaitingForPlansAreReadFromVersion1) {
  CoreDriver node;
  const SessionId rank = node.Attach("job", 0);
  const absl::Time now = node.clock.Now();
  LooseState loose = node.core.Loose();
  const WaitingLease lease = {{.session = rank,
                               .request = RequestId(7),
                               .asked = {Host(0), MiB(1)},
                               .since = now,
                               .deadline = now + absl::Seconds(45)}};
  loose.waiting_leases = {lease};
  std::string row, record;
  FieldWriter(&row, nullptr).Element(loose);
  FieldWriter writer(&record, nullptr);
  writer.Element(RowOp::kPut);
  writer.Element(std::string(1, kLooseRow));
  writer.Element(row);
  Core fresh(node.core.config(), absl::UnixEpoch());
  const std::string rows = CoreRows().Everything(node.core);
  auto read = ReadCore({rows, {record}}, fresh.Save());
  ASSERT_TRUE(read.ok());
  fresh.Load(*std::move(read));
  fresh.CheckInvariants();
  ASSERT_EQ(fresh.waiting().for_plans().size(), 1u);
  const Waiter& waiter = fresh.waiting().waiters().begin()->second;
  EXPECT_EQ(waiter.request, lease.request);
  EXPECT_EQ(waiter.asked, lease.asked);
  EXPECT_EQ(waiter.job, node.core.session(rank)->job());
  EXPECT_EQ(waiter.deadline, lease.deadline);
}

TEST(CoreRowsRecordTest, AllRanksWithFullHistoriesFitIntoACheckpoint) {
  CoreDriver node;
  for (int i = 0; i < kGrantSlots; ++i) {
    const SessionId rank = node.Attach(fmt::format("{:0>60}", i), 0);
    for (size_t ask = 0; ask < RequestHistory::kWindow; ++ask) {
      node.core.Receive(rank, RequestId(1000000 + ask),
                        LeaseRequest{Gpu(0), MiB(1 << 20)}, node.clock.Now());
    }
  }
  EXPECT_LT(CoreRows().Everything(node.core).size(),
            (StateFile::Sizes().checkpoint - ProfileLimit().all).size());
}

class DamagedTest : public ::testing::Test {
 protected:
  DamagedTest() {
    const SessionId rank = node_.Attach("a", 0);
    SLUICE_CHECK_OK(node_.Lease(rank, Gpu(0), MiB(8)).status());
    contents_.checkpoint = CoreRows().Everything(node_.core);
  }
  absl::Status Read() const {
    Core fresh(node_.core.config(), absl::UnixEpoch());
    return ReadCore(contents_, fresh.Save()).status();
  }
  CoreDriver node_;
  StateFile::Contents contents_;
};

TEST_F(DamagedTest, ACutOffCheckpointIsReadOrRefused) {
  ASSERT_TRUE(Read().ok());
  std::string& bytes = contents_.checkpoint;
  for (bytes.pop_back(); bytes.size() > 1; bytes.pop_back()) {
    // A cut between two rows leaves fewer rows, which may be read.
    Read().IgnoreError();
  }
  contents_.checkpoint = "x";
  EXPECT_THAT(std::string(Read().message()), HasSubstr("saved state"));
}

TEST_F(DamagedTest, AnyBytesAreReadOrRefused) {
  std::mt19937 random(1);
  const std::string bytes = contents_.checkpoint;
  for (int i = 0; i < 5000; ++i) {
    contents_.checkpoint = bytes;
    contents_.checkpoint[random() % bytes.size()] = static_cast<char>(random());
    // Guards against an error that quotes an unknown kind of row unescaped
    // (found by fuzzing).
    const std::string fault(Read().message());
    for (const char c : fault) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  }
}

TEST_F(DamagedTest, AStateWithAGpuThatIsMissingHereIsRefused) {
  NodeConfig smaller = node_.core.config();
  smaller.gpus.erase(smaller.gpus.begin());
  Core fresh(smaller, absl::UnixEpoch());
  const absl::Status read = ReadCore(contents_, fresh.Save()).status();
  EXPECT_THAT(std::string(read.message()), HasSubstr("GPU 0"));
}

}  // namespace
}  // namespace sluice::daemon
