// Tests AdamW with its states in host memory under the streamed step, as the
// trainer runs it: the same bits as with states in HBM, exactly the predicted
// memory, and copies hidden by compute. On the fake CUDA driver its race
// detector checks the waits, too.
#include <ATen/ATen.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "client/train/optimizer/adamw.h"
#include "planner/stream/states.h"
#include "proto/base/mutex.h"
#include "proto/base/poison.h"
#include "tests/torch/careless_engine.h"
#include "tests/torch/stream_fixture.h"

namespace sluice::train {
namespace {

using client::CarelessEngine;
using runtime::Arena;
using runtime::NamedTensors;
using runtime::StepCase;
using runtime::StepData;
using ::sluice::testing::IsOk;
using stream::StatePlace;
using ::testing::IsEmpty;
using ::testing::Not;

constexpr int kSteps = 3;

struct Case {
  at::ScalarType dtype;
  int ranks;

  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << (c.dtype == at::kFloat ? "Fp32On" : "Bf16On") << c.ranks;
  }
};

// Each part is one unit, since a part of two units needs a model of gigabytes.
// There are more parts than slots.
StepCase StepOf(const Case& c, double speed) {
  const stream::ModelShape sizes{.layers = 6,
                                 .hidden = 32,
                                 .heads = 4,
                                 .kv_heads = 2,
                                 .ffn = 48,
                                 .vocab = 131};
  return {.model = stream::Llama(sizes),
          .seq_len = 64,
          .chunk = 16,
          .ranks = c.ranks,
          .stream = {.alpha = 0.5},
          .dtype = c.dtype,
          .in_speed = speed,
          .out_speed = speed};
}

// The optimizer's progress when forward requests `part`: `fetched` units have
// enqueued copies in, and `before` units are updated. `after` are updated when
// forward continues.
struct Asked {
  int64_t part, fetched, before, after;
};

// Counts fetched and updated units by the copies of their states.
class CountingEngine final : public client::ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  client::Ticket Enqueue(client::CopyRequest request) override {
    const bool in = request.direction == device::CopyDirection::kHostToDevice;
    ++(in ? fetched : updated);
    return ForwardingEngine::Enqueue(std::move(request));
  }
  int64_t fetched = 0, updated = 0;
};

// Records an optimizer's progress each time forward requests a part.
class WatchedWeights final : public runtime::PendingWeights {
 public:
  WatchedWeights(AdamW* optimizer, const CountingEngine* copies)
      : optimizer_(*optimizer), copies_(copies) {}

  absl::Status AwaitPart(int64_t part) override {
    if (copies_ == nullptr) return optimizer_.AwaitPart(part);
    Asked& asked =
        asked_.emplace_back(Asked{part, copies_->fetched, copies_->updated, 0});
    const absl::Status done = optimizer_.AwaitPart(part);
    asked.after = copies_->updated;
    return done;
  }
  absl::Status Advance() override { return optimizer_.Advance(); }
  absl::Status PartIsDone(int64_t part) override {
    return optimizer_.PartIsDone(part);
  }
  const std::vector<Asked>& asked() const { return asked_; }

 private:
  AdamW& optimizer_;
  const CountingEngine* const copies_;
  std::vector<Asked> asked_;
};

// The results of one rank's steps, on the CPU.
struct Outcome {
  std::vector<Asked> asked;      // in forward's order, over all steps
  std::vector<int64_t> fetched;  // at the end of each step's backward
  std::vector<double> losses;
  at::Tensor weights;
  std::vector<at::Tensor> states;
};

class RankTraining {
 public:
  RankTraining(const StepCase& c, const StepData& data,
               const runtime::TestNode& node, runtime::Collectives& collectives,
               StatePlace place, const CarelessEngine::LeaveOut& leave_out)
      : case_(c),
        data_(data),
        node_(node),
        rank_(collectives.rank()),
        through_(node.CollectivesOver(&collectives)),
        collectives_(through_ ? *through_ : collectives),
        place_(place),
        leave_out_(leave_out),
        options_(runtime::OptionsOf(c, rank_)) {}

  void Run(Outcome& outcome);

 private:
  std::unique_ptr<HostStates> States(std::byte* host);
  void MakeOptimizer();
  void Step(int64_t step, Outcome& outcome);
  Arena Stage() { return Arena(runtime::HostStage::kSize, node_); }

  const StepCase& case_;
  const StepData& data_;
  const runtime::TestNode& node_;
  const int rank_;
  const std::unique_ptr<runtime::Collectives> through_;
  runtime::Collectives& collectives_;
  const StatePlace place_;
  const CarelessEngine::LeaveOut& leave_out_;
  const stream::StreamOptions options_;
  std::optional<Arena> states_, step_;
  std::optional<FlatModel> weights_, gradients_;
  std::unique_ptr<client::CopyEngine> copies_, of_states_;
  std::unique_ptr<CarelessEngine> careless_;
  const CountingEngine* counts_ = nullptr;  // null if states are in HBM
  std::optional<AdamW> optimizer_;
  std::optional<WatchedWeights> watched_;
  std::unique_ptr<runtime::StreamContext> context_;
  at::Tensor tokens_, labels_;
};

std::unique_ptr<HostStates> RankTraining::States(std::byte* host) {
  auto engine = node_.StartCopies(rank_);
  EXPECT_THAT(engine, IsOk());
  of_states_ = *std::move(engine);
  careless_ = std::make_unique<CarelessEngine>(of_states_.get(), leave_out_);
  auto counts = std::make_unique<CountingEngine>(careless_.get());
  counts_ = counts.get();
  return std::make_unique<HostStates>(
      HostStates::Options{.model = case_.model,
                          .dtype = options_.dtype,
                          .ranks = case_.ranks,
                          .rank = rank_,
                          .device = node_.device(),
                          .copies = std::move(counts),
                          .host = host});
}

void RankTraining::MakeOptimizer() {
  std::unique_ptr<HostStates> host;
  if (place_ == StatePlace::kHost) {
    states_.emplace(stream::CountStates(case_.model, options_.dtype,
                                        case_.ranks, rank_, place_)
                        .host,
                    node_);
    host = States(states_->data());
  }
  const bool clear = host != nullptr;
  optimizer_.emplace(
      AdamWOptions{.lr = 1e-2, .warmup = 2, .clip = 0.5}, &*weights_,
      &*gradients_, case_.ranks > 1 ? &collectives_ : nullptr, std::move(host));
  if (!clear) return;
  const Arena pinned = Stage();
  runtime::HostStage stage(pinned.data(), runtime::HostStage::kSize);
  ASSERT_THAT(optimizer_->ClearHost(stage), IsOk());
}

void RankTraining::Step(int64_t step, Outcome& outcome) {
  optimizer_->ZeroGradients();
  auto done = runtime::StreamedStep(*context_, weights_->tensors(),
                                    gradients_->tensors(), tokens_, labels_,
                                    data_.count);
  ASSERT_THAT(done, IsOk());
  if (counts_ != nullptr) outcome.fetched.push_back(counts_->fetched);
  outcome.losses.push_back(done->loss_sum);
  const auto norm = optimizer_->ReduceGradients();
  ASSERT_THAT(norm, IsOk());
  EXPECT_FALSE(*norm <= 0.5);  // the gradients are clipped
  ASSERT_THAT(optimizer_->Update(step, *norm), IsOk());
}

void RankTraining::Run(Outcome& outcome) {
  node_.EnterRank();
  const at::Device device = node_.device();
  auto engine = node_.StartCopies(rank_);
  ASSERT_THAT(engine, IsOk());
  copies_ = *std::move(engine);
  weights_.emplace(case_.model, case_.dtype, device);
  gradients_.emplace(case_.model, at::kFloat, device);
  runtime::ModelTensors initial = data_.weights;
  const auto from = NamedTensors(case_.model, initial);
  const auto to = NamedTensors(case_.model, weights_->tensors());
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor->copy_(*from[i].tensor);
  MakeOptimizer();
  watched_.emplace(&*optimizer_, counts_);
  runtime::StreamContext::Options options{.stream = options_,
                                          .device = device,
                                          .collectives = &collectives_,
                                          .copies = copies_.get(),
                                          .pending = &*watched_};
  options.host_size = stream::HostBytes(options.stream);
  step_.emplace(options.host_size, node_);
  options.host = step_->data();
  auto context = runtime::StreamContext::Create(options);
  ASSERT_THAT(context, IsOk());
  context_ = *std::move(context);
  const stream::ChunkLayout& layout = options_.layout;
  tokens_ = runtime::Deal(data_.tokens, layout, rank_).to(device);
  labels_ = runtime::Deal(data_.labels, layout, rank_).to(device);
  for (int64_t step = 0; step < kSteps; ++step) Step(step, outcome);
  ASSERT_THAT(optimizer_->FinishUpdate(), IsOk());
  outcome.asked = watched_->asked();
  outcome.weights = weights_->flat().to(at::kCPU, at::kFloat);
  const AdamW::States& states = optimizer_->states();
  for (const at::Tensor& t : {states.m, states.v, states.master}) {
    if (t.defined()) outcome.states.push_back(t.cpu().clone());
  }
  ASSERT_THAT(copies_->Drain(), IsOk());
  if (states_.has_value()) {
    EXPECT_TRUE(states_->GuardIntact());
  }
  context_.reset();
  optimizer_.reset();
}

std::vector<Outcome> Train(
    const Case& of, StatePlace place, double speed,
    const CarelessEngine::LeaveOut& leave_out = [](const auto&) {
      return false;
    }) {
  const StepCase c = StepOf(of, speed);
  const StepData data = runtime::MakeStepData(c, 5);
  const runtime::TestNode node(c.ranks, c.in_speed, c.out_speed);
  std::vector<Outcome> outcomes(static_cast<size_t>(c.ranks));
  runtime::RunRanks(c.ranks, [&](runtime::Collectives& collectives) {
    RankTraining(c, data, node, collectives, place, leave_out)
        .Run(outcomes[static_cast<size_t>(collectives.rank())]);
  });
  return outcomes;
}

bool Same(const Outcome& a, const Outcome& b) {
  bool same = a.losses == b.losses && at::equal(a.weights, b.weights) &&
              a.states.size() == b.states.size();
  for (size_t i = 0; same && i < a.states.size(); ++i) {
    same = at::equal(a.states[i], b.states[i]);
  }
  return same;
}

class HostStatesOf : public ::testing::TestWithParam<Case> {};

TEST_P(HostStatesOf, TrainsToTheSameBitsAsStatesInHbm) {
  const auto hbm = Train(GetParam(), StatePlace::kHbm, 0);
  for (const double speed : {0.0, 1e8}) {
    if (runtime::OnCuda() && speed > 0)
      break;  // links have no speed limit there
    const auto host = Train(GetParam(), StatePlace::kHost, speed);
    ASSERT_EQ(hbm.size(), host.size());
    for (size_t r = 0; r < hbm.size(); ++r) {
      ASSERT_EQ(hbm[r].losses.size(), size_t(kSteps));
      EXPECT_TRUE(Same(hbm[r], host[r])) << "rank " << r;
    }
  }
  if (runtime::OnCuda()) {
    EXPECT_THAT(runtime::TakeFindings(), IsEmpty());
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, HostStatesOf,
                         ::testing::Values(Case{at::kFloat, 1},
                                           Case{at::kBFloat16, 1},
                                           Case{at::kBFloat16, 2},
                                           Case{at::kFloat, 4}));

constexpr int64_t kParts = 8;  // of StepOf's model; each is one unit

// Backward fetches as many units as the ring has slots. Forward waits only for
// its next part, and that number of units stays in flight.
TEST(HostStates, CopiesRunDuringBackwardAndForwardOfEarlierParts) {
  const auto ranks = Train({at::kBFloat16, 1}, StatePlace::kHost, 2e7);
  const Outcome& outcome = ranks[0];
  ASSERT_EQ(outcome.fetched.size(), size_t(kSteps));
  for (int64_t step = 1; step < kSteps; ++step) {
    EXPECT_EQ(outcome.fetched[static_cast<size_t>(step)],
              step * kParts + stream::kStateSlots);
  }
  ASSERT_EQ(outcome.asked.size(), size_t(kSteps * kParts));
  for (int64_t i = kParts; i < kSteps * kParts; ++i) {
    const Asked& asked = outcome.asked[static_cast<size_t>(i)];
    const int64_t unit = i - kParts;  // counted over all updates
    EXPECT_GE(asked.fetched, unit + stream::kStateSlots) << i;
    EXPECT_EQ(asked.after, std::max(asked.before, unit + 1)) << i;
  }
}

// Units that have arrived are updated between pieces of compute, so that their
// slots are free before forward requests the part.
TEST(HostStates, ArrivedUnitsAreUpdatedDuringForward) {
  if (runtime::OnCuda() || PoisonsBuffers()) {
    GTEST_SKIP() << "copies may arrive at any time";
  }
  const auto ranks = Train({at::kBFloat16, 1}, StatePlace::kHost, 0);
  ASSERT_EQ(ranks[0].asked.size(), size_t(kSteps * kParts));
  for (int64_t i = kParts; i < kSteps * kParts; ++i) {
    const Asked& asked = ranks[0].asked[static_cast<size_t>(i)];
    if (asked.part > 1) {
      EXPECT_GT(asked.before, i - kParts) << i;
    }
  }
}

// Removes each wait of the ring. The fakes report each removal as a race. On
// sim the calling thread computes, so copies out wait for nothing, and
// different results show that compute did not wait for copies in.
TEST(HostStates, EachWaitThatIsLeftOutIsFound) {
  const Case of{at::kBFloat16, 1};
  const auto whole = Train(of, StatePlace::kHbm, 0);
  std::vector<std::pair<std::string, std::string>> waits = {
      {CarelessEngine::kCompute, "optimizer states in"}};
  if (runtime::OnCuda()) {
    waits.emplace_back("optimizer states in", "optimizer states out");
    waits.emplace_back("optimizer states out", CarelessEngine::kCompute);
    EXPECT_THAT(runtime::TakeFindings(), IsEmpty());
  }
  for (const auto& each : waits) {
    const std::string &waiter = each.first, &waited = each.second;
    bool made = false;
    const auto careless =
        Train(of, StatePlace::kHost, 2e7, [&](const auto& wait) {
          const bool left = wait.waiter == waiter && wait.waited == waited;
          made |= left;
          return left;
        });
    EXPECT_TRUE(made) << waiter << " waits for " << waited;
    if (runtime::OnCuda()) {
      EXPECT_THAT(runtime::TakeFindings(), Not(IsEmpty()))
          << waiter << " waits for " << waited;
    } else {
      EXPECT_FALSE(Same(whole[0], careless[0]))
          << waiter << " waits for " << waited;
    }
  }
}

}  // namespace
}  // namespace sluice::train
