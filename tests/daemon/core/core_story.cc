#include "tests/daemon/core/core_story.h"

#include <fmt/format.h>

#include <iterator>
#include <random>
#include <utility>

namespace sluice::daemon {
namespace {

constexpr const char* kOps[] = {
    "kAttach",  "kLease",   "kFree",   "kEndSocket", "kEndProcess", "kMake",
    "kBudget",  "kTick",    "kSubmit", "kSolve",     "kTakePlan",   "kDrain",
    "kOutside", "kReserve", "kWait",   "kGiveUp"};

NodeConfig Config() {
  NodeConfig config = SmallNode();
  config.principal_limits = {.gpu = MiB(24), .host = MiB(24)};
  config.job_limits = {.gpu = MiB(14)};
  config.max_sessions = 24;
  config.extent_limits = {.all = 40,
                          .each = 20,
                          .per_rank = 2,
                          .changes_per_second = 40,
                          .kept_for = absl::Seconds(20),
                          .orphans_kept_for = absl::Seconds(2)};
  config.wait_limits = {.each = 4, .all = 8, .longest = absl::Seconds(30)};
  return config;
}

}  // namespace

Instructions RandomStory(uint32_t seed, int length) {
  // One entry per 1/16 of the instructions. A draw from kRare replaces kTick.
  constexpr Op kOften[] = {
      Op::kAttach, Op::kAttach, Op::kLease,     Op::kLease,
      Op::kLease,  Op::kFree,   Op::kEndSocket, Op::kEndProcess,
      Op::kMake,   Op::kMake,   Op::kMake,      Op::kTick,
      Op::kSubmit, Op::kSubmit, Op::kSolve,     Op::kTakePlan};
  std::mt19937 random(seed);
  Instructions instructions;
  for (int i = 0; i < length; ++i) {
    Op op = kOften[random() % 16];
    constexpr Op kRare[] = {Op::kTick,   Op::kTick,    Op::kTick,
                            Op::kBudget, Op::kBudget,  Op::kBudget,
                            Op::kDrain,  Op::kOutside, Op::kReserve};
    if (op == Op::kTick) op = kRare[random() % 9];
    if (op == Op::kLease && random() % 3 == 0) op = Op::kWait;
    if (op == Op::kFree && random() % 8 == 0) op = Op::kGiveUp;
    const auto any = [&] { return static_cast<uint32_t>(random() % 65536); };
    instructions.push_back({op, any(), any(), any()});
  }
  return instructions;
}

std::string ToText(const Instructions& instructions) {
  std::string text;
  for (const Instruction& in : instructions) {
    text += fmt::format("{{Op::{}, {}, {}, {}}},\n",
                        kOps[static_cast<size_t>(in.op)], in.a, in.b, in.c);
  }
  return text;
}

CoreStory::CoreStory(Every every) : every_(every), node_(Config()) {
  node_.make_at_once = false;
}

void CoreStory::Run(const Instructions& instructions) {
  for (const Instruction& in : instructions) {
    if (every_.shadow > 0 && done_ % every_.shadow == 0) node_.Shadow();
    Do(in);
    ++done_;
    if (every_.save == 0 || done_ % every_.save != 0) continue;
    node_.CheckSaved();
    node_.CheckQuiet();
  }
}

void CoreStory::Do(const Instruction& in) {
  // The core itself ends half-open sessions (after a refused Hello).
  std::erase_if(open_, [&](const auto& entry) {
    return node_.forgotten.contains(entry.first);
  });
  // The device's answer to queries during this instruction.
  constexpr Held kSays[] = {Held::kNo, Held::kNo, Held::kYes, Held::kUnknown};
  node_.held = kSays[(in.c >> 8) % 4];
  switch (in.op) {
    case Op::kAttach:
      return Attach(in);
    case Op::kLease:
      return Lease(in);
    case Op::kFree:
      return Free(in);
    case Op::kEndSocket:
      return EndSocket(in);
    case Op::kEndProcess:
      return EndProcess(in);
    case Op::kMake:
      return Make(in);
    case Op::kBudget:
      return SetBudget(in);
    case Op::kTick:
      return Tick(in);
    case Op::kSubmit:
      return Submit(in);
    case Op::kSolve:
      return Solve(in);
    case Op::kTakePlan:
      return TakePlan(in);
    case Op::kDrain:
      return Drain(in);
    case Op::kOutside:
      return Outside(in);
    case Op::kReserve:
      return Reserve(in);
    case Op::kWait:
      return Wait(in);
    case Op::kGiveUp:
      return GiveUp(in);
  }
}

SessionId CoreStory::AnyOpen(uint32_t which) const {
  return std::next(open_.begin(), which % open_.size())->first;
}

void CoreStory::Attach(const Instruction& in) {
  const uint32_t uid = 1 + in.a % 3;
  const bool odd = in.c % 2 != 0;
  const SessionId id =
      in.b % 3 != 0
          ? node_.Attach(odd ? "z" : "w", 0, 1, uid, in.c / 2 % 2)
          : node_.Attach(odd ? "x" : "y", in.c / 4 % 2, 2, uid, in.c / 2 % 2);
  if (!node_.closed.contains(id)) open_[id] = uid;
}

void CoreStory::Lease(const Instruction& in) {
  if (open_.empty()) return;
  const PoolId pool = in.b % 3 == 0 ? Host(0) : Gpu(in.b / 3 % 2);
  node_.Lease(AnyOpen(in.a), pool, (1 + in.c % 128) * KiB(64))
      .status()
      .IgnoreError();
  NoteGrants();
}

void CoreStory::Free(const Instruction& in) {
  if (open_.empty()) return;
  const SessionId id = AnyOpen(in.a);
  const auto leases = node_.core.ledger().LeasesOf(id);
  if (leases.empty()) return;
  node_.Ask(id, FreeRequest{*std::next(leases.begin(), in.b % leases.size())});
}

void CoreStory::EndSocket(const Instruction& in) {
  if (open_.empty()) return;
  const SessionId id = AnyOpen(in.a);
  open_.erase(id);
  const absl::Time now = node_.clock.Now();
  node_.Run([&](Core& core) { return core.SocketEnded(id, now); });
  if (!node_.forgotten.contains(id)) closed_.push_back(id);
}

void CoreStory::EndProcess(const Instruction& in) {
  std::erase_if(closed_,
                [&](SessionId id) { return node_.forgotten.contains(id); });
  const absl::Time now = node_.clock.Now();
  if (!closed_.empty() && in.a % 2 != 0) {
    const auto which = closed_.begin() + in.b % closed_.size();
    const SessionId id = *which;
    closed_.erase(which);
    node_.Run([&](Core& core) { return core.ProcessesGone({{id, {}}}, now); });
  } else if (!open_.empty()) {
    const SessionId id = AnyOpen(in.b);
    open_.erase(id);
    node_.Run([&](Core& core) {
      return core.ProcessesGone({{id, {Exit::Kind::kSignal, 9}}}, now);
    });
  }
}

void CoreStory::Make(const Instruction& in) {
  std::vector<absl::Status> made;
  for (uint32_t n = in.a % 6; n > 0 && made.size() < node_.to_make.size();
       --n) {
    made.push_back((in.b >> n) % 20 == 0
                       ? absl::ResourceExhaustedError("no memory")
                       : absl::OkStatus());
  }
  if (in.c % 2 == 0) {
    node_.MakeNext(made);
  } else {
    for (const absl::Status& status : made) node_.MakeNext(status);
  }
  NoteGrants();
}

void CoreStory::SetBudget(const Instruction& in) {
  const Bytes limit = MiB(4 + in.a % 24);
  const BudgetTarget target = in.b % 2 != 0 ? BudgetTarget{.uid = 1 + in.c % 3}
                                            : BudgetTarget{.job = "x"};
  node_.Change(BudgetChange{target, limit, {}, ""}).IgnoreError();
}

void CoreStory::Tick(const Instruction& in) {
  node_.clock.Advance(absl::Milliseconds(in.a % 2000));
  const absl::Time now = node_.clock.Now();
  node_.Run([&](Core& core) { return core.Tick(now); });
}

void CoreStory::Submit(const Instruction& in) {
  if (open_.empty()) return;
  const SessionId id = AnyOpen(in.a);
  const HelloRequest hello = node_.core.session(id)->hello;
  node_.Ask(id, ProfileRequest{});
  if (node_.to_read.empty()) return;
  const ReadProfile read = node_.to_read.back();
  node_.to_read.clear();
  auto profile = std::make_shared<plan::RankProfile>();
  profile->rank = hello.rank;
  profile->gpu = hello.gpu;
  profile->kinds[0].layers = 1;
  profile->settled = in.b % 4 == 0;
  profile->classes = {{.name = "x", .bytes_per_layer = MiB(1)}};
  const ProfileWithHash with_hash{profile, std::to_string(in.c % 3), {}};
  const absl::Time now = node_.clock.Now();
  node_.Run([&](Core& core) {
    return core.ProfileRead(read.session, read.request, with_hash, now);
  });
}

void CoreStory::Solve(const Instruction& in) {
  if (node_.to_solve.empty()) return;
  const SolvePlan question = node_.to_solve.front();
  node_.to_solve.erase(node_.to_solve.begin());
  absl::StatusOr<plan::NodePlan> answer = plan::NodePlan{};
  for (size_t i = 0; i < question.profiles.size(); ++i) {
    plan::RankPlan rank;
    rank.job = question.jobs[i];
    rank.rank = question.profiles[i]->rank;
    rank.host_bytes = KiB(64) * static_cast<int64_t>((in.a >> (2 * i)) % 128);
    const double swap = (in.b >> i) % 5 / 4.0;
    rank.classes = {{.name = "x", .fractions = {0, swap, 1 - swap}, .why = {}}};
    answer->ranks.push_back(rank);
  }
  if (in.c % 6 == 0) answer->infeasible = "too much";
  if (in.c / 6 % 6 == 0) answer = absl::InternalError("it crashed");
  const absl::Time now = node_.clock.Now();
  node_.Run(
      [&](Core& core) { return core.PlanSolved(question.round, answer, now); });
}

void CoreStory::TakePlan(const Instruction& in) {
  uint32_t bits = in.a;
  for (const auto& [id, notice] : std::exchange(node_.notices, {})) {
    const auto* changed = std::get_if<PlanChangedNotice>(&notice);
    if (changed == nullptr || !open_.contains(id)) continue;
    bits = bits * 1664525 + 1013904223;
    if ((bits >> 8) % 3 == 0) continue;
    node_.Ask(id, PlanTakenRequest{changed->plan, (bits >> 16) % 3 > 0, "so"});
    ++changes_;
  }
}

void CoreStory::Drain(const Instruction& in) {
  std::optional<daemon::Drain> drain;
  const absl::Time now = node_.clock.Now();
  if (in.a % 4 == 0) drain = {"root", in.b % 2 != 0 ? "so" : "", now};
  node_.Change(DrainChange{drain}).IgnoreError();
  SLUICE_CHECK(node_.core.live_policy().policy().drain == drain);
}

// Reports no outside memory, some, or more than the unleased memory.
void CoreStory::Outside(const Instruction& in) {
  const absl::Time now = node_.clock.Now();
  HeldOutside held{.pools = {}, .at = now};
  const auto add = [&](PoolId pool, uint32_t amount, Bytes total) {
    if (amount % 3 == 0) return;
    held.pools[pool] = std::min(total, KiB(64) * (1 + amount % 600));
  };
  add(Gpu(0), in.a, MiB(16));
  add(Gpu(1), in.b, MiB(16));
  add(Host(0), in.c, MiB(32));
  node_.Run([&](Core& core) { return core.OutsideKnown(held, now); });
}

void CoreStory::Reserve(const Instruction& in) {
  const PoolId pool = in.b % 3 == 0 ? Host(0) : Gpu(in.b / 3 % 2);
  // The reservation is for a user's cgroup, or for the whole user.
  const Principal whose{1 + in.c % 3, in.c / 4 % 2 == 0 ? "" : "/a"};
  // Half of the changes end a reservation, so that some memory can be leased.
  const Bytes bytes =
      in.a % 2 == 0 ? Bytes(0) : KiB(512) * static_cast<int64_t>(in.a % 16);
  const ReservationChange change{pool, whose, bytes, ""};
  const auto kept = node_.core.live_policy().With(change, node_.clock.Now());
  const absl::Status done = node_.Change(change);
  SLUICE_CHECK(done == kept.status());
  SLUICE_CHECK(!done.ok() || node_.core.live_policy().policy() == *kept);
}

void CoreStory::Wait(const Instruction& in) {
  if (open_.empty()) return;
  const PoolId pool = in.b % 3 == 0 ? Host(0) : Gpu(in.b / 3 % 2);
  // Some waits exceed the limit.
  const absl::Duration wait = absl::Milliseconds(1 + in.b % 32'000);
  // Some sizes exceed the pool.
  const Bytes size = (1 + in.c % 270) * KiB(64);
  node_.Ask(AnyOpen(in.a), LeaseRequest{pool, size, wait});
  NoteGrants();
}

void CoreStory::GiveUp(const Instruction& in) {
  const auto& waiters = node_.core.waiting().waiters();
  if (waiters.empty()) return;
  const Waiter waiter =
      std::next(waiters.begin(), in.a % waiters.size())->second;
  node_.Ask(waiter.session, GiveUpRequest{waiter.request});
}

void CoreStory::NoteGrants() {
  for (const auto& [key, reply] : node_.replies) {
    const auto* granted = std::get_if<GrantedReply>(&reply);
    const auto session = open_.find(key.first);
    if (granted == nullptr || session == open_.end()) continue;
    for (const Slice& slice : granted->slices) {
      const auto [owner, is_new] =
          owner_.try_emplace(slice.id, session->second);
      SLUICE_CHECK(owner->second == session->second);
    }
    ++granted_;
  }
  node_.replies.clear();
}

void CoreStory::Finish() {
  node_.held = Held::kNo;
  Outside({Op::kOutside, 0, 0, 0});
  Tick({Op::kTick, 1999});
  node_.clock.Advance(absl::Minutes(1));
  Tick({});
  while (!open_.empty()) {
    if (!node_.forgotten.contains(open_.begin()->first)) {
      node_.Die(open_.begin()->first);
    }
    open_.erase(open_.begin());
  }
  const absl::Time now = node_.clock.Now();
  for (SessionId id : closed_) {
    node_.Run([&](Core& core) { return core.ProcessesGone({{id, {}}}, now); });
  }
  while (!node_.to_make.empty()) node_.MakeNext();
  // The core asks again about all extents that the device reported as held.
  node_.clock.Advance(absl::Seconds(1));
  Tick({});
  for (PoolId pool : {Gpu(0), Gpu(1), Host(0)}) {
    SLUICE_CHECK(node_.core.pool(pool).free == node_.core.pool(pool).total);
  }
  const Snapshot end = node_.core.TakeSnapshot(nullptr, now);
  SLUICE_CHECK(end.sessions == 0 && end.budgets.empty());
  SLUICE_CHECK(node_.slots.empty() && end.planning.empty());
  SLUICE_CHECK(node_.core.waiting().empty());
  // The device has exactly the extents that the pools know.
  SLUICE_CHECK(node_.extents.size() == end.extents);
}

}  // namespace sluice::daemon
