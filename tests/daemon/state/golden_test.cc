// Checks that this build reads states that earlier builds wrote.
//
// tests/golden/state/vN.state is a state file of version N as a daemon leaves
// it: a checkpoint and records, from a random story. vN.txt describes its
// content. SLUICE_UPDATE_GOLDEN=1 writes both again for the version that this
// build writes. The files of other versions are never written again.
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "daemon/state/core_rows.h"
#include "daemon/state/state_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/base/unique_fd.h"
#include "tests/daemon/core/core_story.h"
#include "tests/daemon/state/durable.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"

namespace sluice::daemon {
namespace {

using ::sluice::testing::IsOk;
using ::sluice::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr auto kUnknownVersion = absl::StatusCode::kUnimplemented;
constexpr StateFile::Sizes kGoldenSizes = {KiB(24), KiB(4)};
constexpr int kRecords = 6;

std::string PathOf(uint32_t version, const std::string& suffix) {
  return InTree(fmt::format("tests/golden/state/v{}.{}", version, suffix));
}

std::string FileText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Returns a random story without the administrators' changes, which are on disk
// and not in the state.
Instructions Story() {
  Instructions story = RandomStory(21, 600);
  std::erase_if(story, [](const Instruction& in) {
    return in.op == Op::kBudget || in.op == Op::kReserve || in.op == Op::kDrain;
  });
  return story;
}

// Returns the kinds of rows in the state, one letter each (RowKind), and '+' if
// a lease waits for a plan.
std::string KindsIn(const CoreState& state) {
  std::string kinds;
  const auto add = [&](RowKind kind, bool any) {
    if (any) kinds += static_cast<char>(kind);
  };
  bool extents = false, replies = false;
  for (const auto& [id, pool] : state.ledger.pools) {
    extents |= !pool.extents.empty();
  }
  for (const auto& [id, session] : state.sessions) {
    replies |= !session.history.requests().empty();
  }
  add(RowKind::kExtent, extents);
  add(RowKind::kLease, !state.ledger.leases.empty());
  add(RowKind::kMaking, !state.ledger.making.empty());
  add(RowKind::kHolder, !state.ledger.holders.empty());
  add(RowKind::kLingering, !state.ledger.lingering.empty());
  add(RowKind::kPrincipal, !state.ledger.principals.empty());
  add(RowKind::kSession, !state.sessions.empty());
  add(RowKind::kReply, replies);
  add(RowKind::kMember, !state.joint.members.empty());
  add(RowKind::kPlanInUse, !state.joint.rounds.current.empty());
  add(RowKind::kPlanPromised, !state.joint.rounds.promised.empty());
  add(RowKind::kWaiter, !state.waiting.waiters.empty());
  bool for_plans = false;
  for (const auto& [place, waiter] : state.waiting.waiters) {
    for_plans |= waiter.for_plan;
  }
  if (for_plans) kinds += '+';
  return kinds;
}

std::string Describe(const CoreState& state) {
  std::string text = fmt::format("rows of the kinds {}\n", KindsIn(state));
  for (const auto& [id, session] : state.sessions) {
    text += fmt::format(
        "session {} of {}, process {}, state {}: job {}, rank {} of {}, GPU "
        "{}, protocol {}, slot {}, {} requests, plan {}\n",
        id.value(), Name(session.peer.principal), session.peer.pid,
        static_cast<int>(session.state), session.hello.job,
        session.hello.rank.value(), session.hello.world_size,
        session.hello.gpu.value(), session.hello.protocol, session.grant_slot,
        session.history.requests().size(), session.told_plan.value());
  }
  for (const auto& [id, lease] : state.ledger.leases) {
    text += fmt::format(
        "lease {} of session {}, request {}, state {}: {} of {}", id.value(),
        lease.session.value(), lease.request.value(),
        static_cast<int>(lease.state), lease.size.size(), Name(lease.pool));
    for (const Slice& slice : lease.slices) {
      text += fmt::format(", extent {}", slice.id.value());
    }
    text += '\n';
  }
  for (const auto& [pool, saved] : state.ledger.pools) {
    for (const auto& [id, extent] : saved.extents) {
      text += fmt::format("extent {} of {}: {} bytes, state {}\n", id.value(),
                          Name(pool), extent.size.size(),
                          static_cast<int>(extent.state));
    }
  }
  for (const auto& [id, lingering] : state.ledger.lingering) {
    text += fmt::format("extent {} lingers, of job {}\n", id.value(),
                        lingering.job.name);
  }
  for (const auto& [job, member] : state.joint.members) {
    text += fmt::format("job {} is planned: state {}, {} ranks\n", job.name,
                        static_cast<int>(member.state), member.ranks.size());
  }
  for (const auto& [job, plan] : state.joint.rounds.current) {
    text += fmt::format("job {} runs by plan {}\n", job.name, plan.value());
  }
  for (const auto& [place, waiter] : state.waiting.waiters) {
    text +=
        fmt::format("session {} waits for {} of {}{}\n", waiter.session.value(),
                    waiter.asked.size.size(), Name(waiter.asked.pool),
                    waiter.for_plan ? " (plan)" : "");
  }
  return text + fmt::format(
                    "next: extent {}, lease {}, plan {}; last session "
                    "{}\n",
                    state.ledger.next_extent, state.ledger.next_lease,
                    state.joint.rounds.next_plan, state.last_session.value());
}

// Calls visit(event, core) after each event of the story.
void Tell(const std::function<void(int, Core&)>& visit) {
  CoreStory story({.save = 0, .shadow = 0});
  int event = 0;
  story.Watch([&](Core& core) { visit(event++, core); });
  story.Run(Story());
}

NodeConfig NodeOfStory() {
  std::optional<NodeConfig> node;
  Tell([&](int, Core& core) {
    if (!node) node = core.config();
  });
  return *node;
}

// Returns the event after which the state has the most kinds of rows.
int RichestEvent() {
  int richest = 0;
  size_t most = 0;
  Tell([&](int event, Core& core) {
    const size_t kinds = KindsIn(Durable(core.Save())).size();
    if (kinds <= most || event < kRecords) return;
    most = kinds;
    richest = event;
  });
  return richest;
}

void WriteGolden(uint32_t version) {
  const int last = RichestEvent();
  const UniqueFd fd(memfd_create("golden", MFD_CLOEXEC));
  auto file = StateFile::Create(fd.get(), kGoldenSizes);
  SLUICE_CHECK_OK(file.status());
  CoreRows rows;
  Tell([&](int event, Core& core) {
    if (event > last || event < last - kRecords) return;
    SLUICE_CHECK_OK(event == last - kRecords
                        ? (*file)->Checkpoint(rows.Everything(core))
                        : (*file)->Append(rows.Changes(core)));
    if (event != last) return;
    std::ofstream(PathOf(version, "txt")) << Describe(Durable(core.Save()));
  });
  const std::string copy = fmt::format("/proc/self/fd/{}", fd.get());
  std::ofstream(PathOf(version, "state"), std::ios::binary) << FileText(copy);
}

UniqueFd MemoryWith(const std::string& bytes) {
  UniqueFd fd(memfd_create("golden", MFD_CLOEXEC));
  SLUICE_CHECK(write(fd.get(), bytes.data(), bytes.size()) ==
               static_cast<ssize_t>(bytes.size()));
  return fd;
}

UniqueFd Golden(uint32_t version) {
  return MemoryWith(FileText(PathOf(version, "state")));
}

class GoldenState : public ::testing::TestWithParam<uint32_t> {};

TEST_P(GoldenState, AGoldenStateIsReadAsItsTextDescribes) {
  if (GetParam() == kStateVersions.written &&
      std::getenv("SLUICE_UPDATE_GOLDEN") != nullptr) {
    WriteGolden(GetParam());
  }
  const UniqueFd fd = Golden(GetParam());
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto file, StateFile::Open(fd.get()));
  const StateFile::Contents contents = file->TakeContents();
  EXPECT_EQ(contents.records.size(), size_t{kRecords});
  Core next(NodeOfStory(), absl::UnixEpoch());
  SLUICE_ASSERT_OK_AND_ASSIGN(CoreState read, ReadCore(contents, next.Save()));
  EXPECT_EQ(Describe(read), FileText(PathOf(GetParam(), "txt")));

  // This build's core loads the state, takes over, and saves it again.
  std::set<SessionId> reached;
  for (const auto& [id, session] : read.sessions) {
    if (session.is_rank()) reached.insert(id);
  }
  next.Load(std::move(read));
  next.CheckInvariants();
  next.TakeOver(reached, absl::FromUnixSeconds(1 << 20));
  next.CheckInvariants();
  CoreRows rows;
  EXPECT_THAT(file->Checkpoint(rows.Everything(next)), IsOk());
  EXPECT_THAT(StateFile::Open(fd.get()), IsOk());
}

TEST_P(GoldenState, AGoldenStateContainsSessionsLeasesExtentsAndPlans) {
  const std::string text = FileText(PathOf(GetParam(), "txt"));
  for (const char* what : {"\nsession ", "\nlease ", "\nextent ", "is planned",
                           "runs by plan", "waits for"}) {
    EXPECT_THAT(text, HasSubstr(what));
  }
}

INSTANTIATE_TEST_SUITE_P(Versions, GoldenState, ::testing::Values(1, 2));

// A new version keeps the old files and adds new ones.
TEST(GoldenStates, AGoldenStateExistsForTheWrittenVersion) {
  EXPECT_NE(FileText(PathOf(kStateVersions.written, "state")), "");
}

const StateVersions kNext = {.written = kStateVersions.written + 1,
                             .oldest_read = 1,
                             .oldest_reader = kStateVersions.written};
const StateVersions kFar = {.written = kStateVersions.written + 1,
                            .oldest_read = kStateVersions.written + 1,
                            .oldest_reader = kStateVersions.written + 1};

TEST(StateVersionsTest, TheNextVersionAndThisOneReadEachOthersState) {
  const UniqueFd fd = Golden(kStateVersions.written);
  for (const StateVersions& each : {kNext, kStateVersions, kNext}) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto file,
                                StateFile::Open(fd.get(), each));
    EXPECT_THAT(file->Checkpoint("x"), IsOk());
  }
}

TEST(StateVersionsTest, ATooOldStateIsRefusedWithItsVersionAndKept) {
  const UniqueFd fd = Golden(kStateVersions.written);
  const std::string before =
      FileText(fmt::format("/proc/self/fd/{}", fd.get()));
  EXPECT_THAT(StateFile::Open(fd.get(), kFar),
              StatusIs(kUnknownVersion,
                       AllOf(HasSubstr(fmt::format("state is of version {}",
                                                   kStateVersions.written)),
                             HasSubstr(fmt::format("this one is of version {}",
                                                   kFar.written)))));
  EXPECT_EQ(FileText(fmt::format("/proc/self/fd/{}", fd.get())), before);
}

TEST(StateVersionsTest, ALaterStateThatExcludesThisVersionIsRefused) {
  const UniqueFd fd(memfd_create("golden", MFD_CLOEXEC));
  ASSERT_THAT(StateFile::Create(fd.get(), kGoldenSizes, kFar), IsOk());
  EXPECT_THAT(
      StateFile::Open(fd.get()),
      StatusIs(kUnknownVersion, HasSubstr("start the daemon that wrote it")));
}

}  // namespace
}  // namespace sluice::daemon
