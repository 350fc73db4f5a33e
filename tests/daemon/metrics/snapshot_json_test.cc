// Tests a snapshot's JSON. All values of an object differ, to detect swaps.
#include "daemon/metrics/snapshot_json.h"

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "proto/base/grant_page.h"
#include "tests/daemon/core/core_driver.h"

namespace sluice::daemon {
namespace {

using nlohmann::json;

const Principal kUser = {7, "/team"};

json JsonOf(const Snapshot& snapshot) {
  return json::parse(SnapshotJson(snapshot));
}

TEST(SnapshotJson, APoolHasEachByteCountUnderItsName) {
  Snapshot snapshot;
  snapshot.now = absl::UnixEpoch() + absl::Seconds(100);
  PoolSnapshot pool{.id = Host(3),
                    .total = Bytes(1),
                    .leased = Bytes(2),
                    .free = Bytes(3),
                    .kept = Bytes(4),
                    .quarantined = Bytes(5),
                    .lingering = Bytes(6),
                    .making = Bytes(7),
                    .outside = Bytes(8),
                    .ready = Bytes(9),
                    .reserved = Bytes(10)};
  snapshot.hosts = {pool};
  json host = {{"numa", 3},
               {"total_bytes", 1},
               {"leased_bytes", 2},
               {"free_bytes", 3},
               {"kept_bytes", 4},
               {"quarantined_bytes", 5},
               {"lingering_bytes", 6},
               {"making_bytes", 7},
               {"held_outside_bytes", 8},
               {"held_outside_age_s", nullptr},
               {"ready_bytes", 9},
               {"reserved_bytes", 10}};
  EXPECT_EQ(JsonOf(snapshot)["host"], json::array({host}));
  snapshot.hosts[0].outside_at = snapshot.now - absl::Seconds(30);
  EXPECT_EQ(JsonOf(snapshot)["host"][0]["held_outside_age_s"], 30);
  EXPECT_EQ(json::parse(AggregatesJson(snapshot))["host"],
            JsonOf(snapshot)["host"]);
}

TEST(SnapshotJson, ALinkNamesTheSourceOfItsSpeed) {
  Snapshot snapshot;
  snapshot.links = {{.name = "free"},
                    {.name = "pcie0",
                     .h2d_bytes_per_second = 1,
                     .d2h_bytes_per_second = 2,
                     .parent = "cpu0",
                     .both_bytes_per_second = 3},
                    {.name = "pcie1", .d2h_bytes_per_second = 4}};
  snapshot.links[2].measured = true;
  const auto link = [](const char* name, json parent, json h2d, json d2h,
                       json both, json from) {
    return json{{"name", name},
                {"parent", std::move(parent)},
                {"h2d_bytes_per_second", std::move(h2d)},
                {"d2h_bytes_per_second", std::move(d2h)},
                {"both_bytes_per_second", std::move(both)},
                {"speed_from", std::move(from)}};
  };
  const json none;
  EXPECT_EQ(JsonOf(snapshot)["links"],
            json::array({link("free", none, none, none, none, none),
                         link("pcie0", "cpu0", 1, 2, 3, "configuration"),
                         link("pcie1", none, none, 4, none, "measured")}));
}

TEST(SnapshotJson, ARankHasItsFiguresAndItsLastStep) {
  Snapshot snapshot;
  snapshot.jobs = {{.name = "tune", .principal = kUser, .world_size = 4}};
  RankSnapshot rank;
  rank.rank = Rank(2);
  rank.pid = 3;
  rank.gpu = DeviceIndex(1);
  rank.gpu_bytes = Bytes(10);
  rank.host_bytes = Bytes(11);
  rank.hbm_peak = Bytes(12);
  rank.stall_seconds = 1.5;
  rank.grant_wait_seconds = 2.5;
  rank.late[kH2d] = {20, 0.5};
  rank.late[kD2h] = {21, 0.25};
  snapshot.jobs[0].ranks = {rank};
  json job = JsonOf(snapshot)["jobs"][0];
  EXPECT_EQ(job["name"], "tune");
  EXPECT_EQ(job["uid"], 7);
  EXPECT_EQ(job["cgroup"], "/team");
  EXPECT_EQ(job["world_size"], 4);
  EXPECT_EQ(job["plan_id"], nullptr);
  json of = job["ranks"][0];
  const json expected = {{"rank", 2},
                         {"pid", 3},
                         {"gpu", 1},
                         {"gpu_bytes", 10},
                         {"host_bytes", 11},
                         {"hbm_peak_bytes", 12},
                         {"stall_seconds", 1.5},
                         {"grant_wait_seconds", 2.5},
                         {"closed", false},
                         {"outside_bytes", nullptr},
                         {"plan_copies", nullptr},
                         {"step", nullptr},
                         {"loss", nullptr},
                         {"tokens_per_second", nullptr},
                         {"late",
                          {{"h2d_copies", 20},
                           {"d2h_copies", 21},
                           {"h2d_seconds", 0.5},
                           {"d2h_seconds", 0.25}}}};
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(of[key], value) << key;
  }
  RankSnapshot& steps = snapshot.jobs[0].ranks[0];
  steps.outside = Bytes(13);
  steps.closed = true;
  steps.plan_copies = {{{1, 2}, {Bytes(3), Bytes(4)}}, {5, 6}};
  steps.step = {.step = 9, .seconds = 2, .tokens = 300, .loss = NAN};
  snapshot.jobs[0].plan = PlanId(5);
  EXPECT_EQ(JsonOf(snapshot)["jobs"][0]["plan_id"], 5);
  of = JsonOf(snapshot)["jobs"][0]["ranks"][0];
  EXPECT_EQ(of["outside_bytes"], 13);
  EXPECT_EQ(of["closed"], true);
  EXPECT_EQ(of["step"], 9);
  EXPECT_EQ(of["loss"], nullptr);  // JSON has no NaN
  EXPECT_EQ(of["tokens_per_second"], 150);
  const json copies = of["plan_copies"];
  EXPECT_EQ(copies["h2d_bytes_per_second"], 1);
  EXPECT_EQ(copies["d2h_bytes_per_second"], 2);
  EXPECT_EQ(copies["h2d_bytes_per_step"], 3);
  EXPECT_EQ(copies["d2h_bytes_per_step"], 4);
  steps.step = {.step = 9, .seconds = 0, .tokens = 300, .loss = 0.5};
  of = JsonOf(snapshot)["jobs"][0]["ranks"][0];
  EXPECT_EQ(of["loss"], 0.5);
  EXPECT_EQ(of["tokens_per_second"], nullptr);
}

TEST(SnapshotJson, APlanHasItsRanks) {
  auto plan = std::make_shared<plan::NodePlan>();
  plan->id = PlanId(5);
  plan->profile_hash = "hash";
  plan->seconds = 0.5;
  plan->infeasible = "too much";
  plan->units_solved = 2;
  plan->units_known = 3;
  plan->ranks.push_back({});
  plan->ranks[0].rank = Rank(1);
  plan->ranks[0].alpha = 0.25;
  plan->ranks[0].alpha_limited_by = "host";
  plan->ranks[0].transient_peak = Bytes(10);
  plan->ranks[0].host_bytes = Bytes(11);
  Snapshot snapshot;
  snapshot.plans = {{"tune", kUser, plan}};
  EXPECT_EQ(JsonOf(snapshot)["plans"], json::array({{
                                           {"id", 5},
                                           {"job", "tune"},
                                           {"uid", 7},
                                           {"seconds", 0.5},
                                           {"infeasible", "too much"},
                                           {"profile_hash", "hash"},
                                           {"units_solved", 2},
                                           {"units_known", 3},
                                           {"ranks",
                                            {{{"rank", 1},
                                              {"alpha", 0.25},
                                              {"alpha_limited_by", "host"},
                                              {"transient_peak_bytes", 10},
                                              {"host_bytes", 11}}}},
                                       }}));
}

TEST(SnapshotJson, PlanningShowsItsStateAndProgress) {
  using State = PlanningSnapshot::State;
  Snapshot snapshot;
  snapshot.planning = {{.job = "tune",
                        .principal = kUser,
                        .ranks = 1,
                        .wanted = 2,
                        .elapsed = absl::Seconds(3)}};
  const auto first = [&] { return JsonOf(snapshot)["planning"][0]; };
  const json collecting = {{"job", "tune"},
                           {"uid", 7},
                           {"state", "collecting"},
                           {"ranks", 1},
                           {"ranks_wanted", 2},
                           {"elapsed_s", nullptr},
                           {"deadline_in_s", nullptr},
                           {"plan_id", nullptr},
                           {"waiting_for", json::array()},
                           {"progress", nullptr}};
  EXPECT_EQ(first(), collecting);
  PlanningSnapshot& planning = snapshot.planning[0];
  for (const auto& [state, name, times] :
       {std::tuple{State::kQueued, "queued", false},
        {State::kSolving, "solving", true},
        {State::kWaiting, "waiting", true},
        {State::kChanging, "changing", true}}) {
    planning.state = state;
    EXPECT_EQ(first()["state"], name);
    EXPECT_EQ(first()["elapsed_s"], times ? json(3) : json());
  }
  planning.left = absl::Seconds(4);
  planning.plan = PlanId(5);
  planning.waiting_for = {"a", "b"};
  planning.progress = {6, 8, "loss", "search", Bytes(9), Bytes(10)};
  EXPECT_EQ(first()["deadline_in_s"], 4);
  EXPECT_EQ(first()["plan_id"], 5);
  EXPECT_EQ(first()["waiting_for"], json({"a", "b"}));
  EXPECT_EQ(first()["progress"], json({{"segments_done", 6},
                                       {"segments", 8},
                                       {"segment", "loss"},
                                       {"arm", "search"},
                                       {"peak_bytes", 9},
                                       {"lower_bound_bytes", 10}}));
}

// Null means unlimited, and 0 is a limit of 0 bytes.
TEST(SnapshotJson, LimitsAreBytesOrNull) {
  Snapshot snapshot;
  snapshot.now = absl::UnixEpoch() + absl::Seconds(100);
  snapshot.budgets = {
      {kUser, "", Bytes(1), Bytes(2), {Limits::kUnlimited, Bytes(0)}},
      {kUser, "tune", Bytes(3), Bytes(4), {Bytes(5), Limits::kUnlimited}}};
  const auto budget = [](json job, int gpu, json gpu_limit, int host,
                         json host_limit) {
    return json{{"uid", 7},
                {"cgroup", "/team"},
                {"job", std::move(job)},
                {"gpu_used_bytes", gpu},
                {"gpu_limit_bytes", std::move(gpu_limit)},
                {"host_used_bytes", host},
                {"host_limit_bytes", std::move(host_limit)}};
  };
  EXPECT_EQ(JsonOf(snapshot)["budgets"],
            json::array({budget(nullptr, 1, nullptr, 2, 0),
                         budget("tune", 3, 5, 4, nullptr)}));
  const absl::Time set = snapshot.now - absl::Seconds(20);
  snapshot.limits = {{LimitLine::Of::kEveryUser, {}, {Bytes(1), Bytes(2)}, {}},
                     {LimitLine::Of::kUser,
                      {.uid = 7, .cgroup = "/team"},
                      {Limits::kUnlimited, Bytes(3)},
                      {true, "root", set}}};
  EXPECT_EQ(JsonOf(snapshot)["limits"],
            json::array({{{"of", "every user"},
                          {"uid", nullptr},
                          {"cgroup", nullptr},
                          {"job", nullptr},
                          {"gpu_limit_bytes", 1},
                          {"host_limit_bytes", 2},
                          {"set_by", "configuration"},
                          {"by", ""},
                          {"age_s", nullptr}},
                         {{"of", "user"},
                          {"uid", 7},
                          {"cgroup", "/team"},
                          {"job", nullptr},
                          {"gpu_limit_bytes", nullptr},
                          {"host_limit_bytes", 3},
                          {"set_by", "live"},
                          {"by", "root"},
                          {"age_s", 20}}}));
  snapshot.reservations = {
      {Gpu(1), kUser, Bytes(4), Bytes(5), {true, "root", set}},
      {Host(2), kUser, Bytes(6), Bytes(7), {true, "ops", set}}};
  const auto reservation = [](const char* pool, int index, int bytes,
                              int withheld, const char* by) {
    return json{{"pool", pool},   {"index", index},
                {"uid", 7},       {"cgroup", "/team"},
                {"bytes", bytes}, {"withheld_bytes", withheld},
                {"by", by},       {"age_s", 20}};
  };
  EXPECT_EQ(JsonOf(snapshot)["reservations"],
            json::array({reservation("gpu", 1, 4, 5, "root"),
                         reservation("numa", 2, 6, 7, "ops")}));
}

TEST(SnapshotJson, WaitingLeasesAndHoldersOfMemoryAreListed) {
  Snapshot snapshot;
  snapshot.waiting = {{.lease = {.lacks = Waiter::Lacks::kUser,
                                 .asked = {Host(2), Bytes(3)},
                                 .job = {kUser, "tune"}},
                       .rank = Rank(1),
                       .in_front = 4,
                       .elapsed = absl::Seconds(5),
                       .left = absl::Seconds(6)}};
  const json waiting = JsonOf(snapshot)["waiting"][0];
  const json expected = {{"job", "tune"},     {"uid", 7},      {"rank", 1},
                         {"pool", "numa"},    {"index", 2},    {"bytes", 3},
                         {"lacks", "user"},   {"in_front", 4}, {"elapsed_s", 5},
                         {"deadline_in_s", 6}};
  for (const auto& [key, value] : expected.items()) {
    EXPECT_EQ(waiting[key], value) << key;
  }
  snapshot.waiting[0].lease.asked.pool = Gpu(0);
  EXPECT_EQ(JsonOf(snapshot)["waiting"][0]["pool"], "gpu");
  snapshot.holders = {{1, 2, "python", Bytes(3), Bytes(4)}};
  EXPECT_EQ(JsonOf(snapshot)["holders"], json::array({{{"pid", 1},
                                                       {"uid", 2},
                                                       {"command", "python"},
                                                       {"gpu_bytes", 3},
                                                       {"host_bytes", 4}}}));
}

// A user outside the node's group sees that the node is drained, but not by
// which administrator.
TEST(SnapshotJson, ADrainNamesItsAdministratorToOperatorsOnly) {
  Snapshot snapshot;
  snapshot.now = absl::UnixEpoch() + absl::Seconds(100);
  EXPECT_EQ(JsonOf(snapshot)["drained"], nullptr);
  snapshot.drain = {"root", "disks", snapshot.now - absl::Seconds(9)};
  EXPECT_EQ(JsonOf(snapshot)["drained"],
            json({{"by", "root"}, {"reason", "disks"}, {"age_s", 9}}));
  EXPECT_EQ(json::parse(AggregatesJson(snapshot))["drained"],
            json({{"by", ""}, {"reason", ""}, {"age_s", 9}}));
}

}  // namespace
}  // namespace sluice::daemon
