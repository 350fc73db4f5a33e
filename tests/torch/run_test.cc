// Tests client/torch/run without a trainer, on a real sluiced with a simulated
// GPU: calibrating, planning, stepping and refreshing. train_replan tests the
// effects of other jobs.
#include <ATen/Context.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/randint.h>

#include <algorithm>
#include <fstream>
#include <optional>

#include "client/torch/run/choose_settings.h"
#include "client/torch/run/streamed_stepper.h"
#include "proto/base/shortage.h"
#include "tests/support/child.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"
#include "tests/torch/initial_tensors.h"
#include "tests/torch/stream_oracle.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::IsOk;
using ::testing::ElementsAre;

constexpr int64_t kRows = 500;
const stream::ModelShape kModel = {.layers = 2,
                                   .hidden = 64,
                                   .heads = 4,
                                   .kv_heads = 2,
                                   .ffn = 96,
                                   .vocab = 256};

stream::StreamOptions Stream(double alpha) {
  return {.model = kModel,
          .layout = stream::ChunkLayout(kRows, 64, 1),
          .alpha = alpha};
}

class Daemon {
 public:
  Daemon() {
    std::ofstream(directory_.File("sluiced.toml"))
        << "[device]\ndriver = \"sim\"\n[http]\nlisten = \"\"\n"
           "[pools]\nhost_bytes = \"256MiB\"\nextent_bytes = \"4MiB\"\n"
           "[sim]\ngpus = 1\ngpu_memory = \"64MiB\"\n"
           "host_memory = \"256MiB\"\n";
    process_ = Child::Spawn({BinaryPath("sluiced"), "--config",
                             directory_.File("sluiced.toml"), "--runtime-dir",
                             directory_.path()});
    EXPECT_TRUE(process_->WaitForOutput("sluiced: ready", absl::Seconds(20)));
  }
  std::unique_ptr<client::Session> Open(const std::string& job) const {
    auto session = client::Session::Open(
        {.socket = directory_.File("session.sock"), .job = job});
    EXPECT_THAT(session, IsOk());
    return *std::move(session);
  }

 private:
  testing::TempDir directory_;
  std::unique_ptr<Child> process_;
};

// Records the parts that a step awaits and reports as done.
class Optimizer final : public PendingWeights {
 public:
  absl::Status AwaitPart(int64_t part) override {
    awaited.push_back(part);
    return absl::OkStatus();
  }
  absl::Status PartIsDone(int64_t part) override {
    done.push_back(part);
    return absl::OkStatus();
  }
  std::vector<int64_t> awaited, done;
};

// Owns the model's weights and gradients. Counts calibrations and plannings.
class Owner final : public WeightSource, public RunWatch {
 public:
  explicit Owner(at::Device device)
      : weights_(InitialTensors(kModel, at::kFloat, device, 1)),
        gradients_(ZeroTensors(kModel, at::kFloat, device)) {}

  const ModelTensors& weights() override { return weights_; }
  ModelTensors& gradients() override { return gradients_; }
  void ZeroGradients() override {
    for (const NamedTensor& t : NamedTensors(kModel, gradients_)) {
      t.tensor->zero_();
    }
  }
  void BeginCalibration(int64_t layers, int64_t) override {
    EXPECT_LE(layers, kModel.layers);
    ++calibrations;
  }
  void BeginPlanning() override { ++plannings; }
  void EndPlanning() override { ++planned; }

  PendingWeights* pending() override { return &optimizer; }

  int calibrations = 0, plannings = 0, planned = 0;
  Optimizer optimizer;

 private:
  ModelTensors weights_, gradients_;
};

class StreamedRun : public ::testing::Test {
 protected:
  ~StreamedRun() override {
    stepper_.reset();
    owner_.reset();
    tokens_ = at::Tensor();
    labels_ = at::Tensor();
    memory_.reset();
  }

  void Open(std::optional<Bytes> host_limit = std::nullopt) {
    daemon_.emplace();
    auto memory = RankMemory::Open({.session = daemon_->Open("first"),
                                    .gpu = {},
                                    .hbm = MiB(16),
                                    .host_limit = host_limit});
    ASSERT_THAT(memory, IsOk());
    memory_ = *std::move(memory);
    ASSERT_THAT(memory_->Lease(), IsOk());
    ASSERT_THAT(memory_->Arm(), IsOk());
    owner_.emplace(memory_->device());
    at::manual_seed(1);
    tokens_ = at::randint(kModel.vocab, {kRows}, at::kLong);
    labels_ = at::randint(kModel.vocab, {kRows}, at::kLong);
  }
  RunContext Context() {
    return {.memory = memory_.get(), .weights = &*owner_, .watch = &*owner_};
  }
  void Make(const SavedPlan* saved = nullptr) {
    auto stepper = StreamedStepper::Make(
        Context(), {.stream = Stream(-1), .may_keep = false}, saved);
    ASSERT_THAT(stepper, IsOk());
    stepper_ = *std::move(stepper);
  }
  // Runs a step and returns its loss; the owner holds the gradients.
  double Step() {
    owner_->ZeroGradients();
    const auto result = stepper_->Run(tokens_, labels_, kRows);
    EXPECT_THAT(result, IsOk());
    return result.ok() ? result->loss_sum : 0;
  }
  void ExpectStepIsRight() {
    const double loss = Step();
    const HostScope host("the oracle");
    const OracleResult truth =
        RunOracle(kModel, owner_->weights(), tokens_, labels_, kRows);
    EXPECT_NEAR(loss, truth.loss_sum, 1e-4 * truth.loss_sum);
    const GradientError error =
        CompareGradients(kModel, owner_->gradients(), truth.gradients);
    EXPECT_LT(error.worst, 1e-4) << error.parameter;
    EXPECT_EQ(stepper_->plan().mismatches, 0);
  }
  std::optional<Daemon> daemon_;
  std::unique_ptr<RankMemory> memory_;
  std::optional<Owner> owner_;
  std::unique_ptr<StreamedStepper> stepper_;
  at::Tensor tokens_, labels_;
};

TEST_F(StreamedRun, CalibratesPlansAndSteps) {
  HostScope::SetCap(Bytes(0));
  Open();
  Make();
  EXPECT_GE(owner_->calibrations, 1);
  EXPECT_EQ(owner_->calibrations, owner_->plannings);
  EXPECT_EQ(owner_->plannings, owner_->planned);
  ASSERT_NE(stepper_->saved_plan().own(), nullptr);
  EXPECT_GT(stepper_->plan().peak, Bytes(0));
  ExpectStepIsRight();
}

// Without these reports the optimizer would sum gradients only after backward.
TEST_F(StreamedRun, ReportsToTheOptimizerEachPartWithCompleteGradients) {
  Open();
  Make();
  owner_->optimizer = {};
  Step();
  EXPECT_THAT(owner_->optimizer.awaited, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(owner_->optimizer.done, ElementsAre(3, 2, 1, 0));
}

TEST_F(StreamedRun, ASavedPlanIsReplayedWithoutCalibration) {
  HostScope::SetCap(Bytes(0));
  Open();
  Make();
  const double loss = Step();
  const SavedPlan saved = stepper_->saved_plan();
  stepper_.reset();
  ASSERT_THAT(memory_->allocator().SetPlan({}, {}, Bytes(0)), IsOk());
  const int before = owner_->calibrations;
  Make(&saved);
  EXPECT_EQ(owner_->calibrations, before);
  EXPECT_EQ(stepper_->note(), "");
  EXPECT_EQ(Step(), loss);
}

TEST_F(StreamedRun, APlanOfGivenFractionsHasExactlyTheStepsHostBytes) {
  Open();
  stream::StreamOptions given = Stream(-1);
  given.fractions = stream::FillFractions(kModel, {}, /*alpha=*/0.5);
  auto stepper = StreamedStepper::Make(Context(), {.stream = given}, nullptr);
  ASSERT_THAT(stepper, IsOk());
  stepper_ = *std::move(stepper);
  ASSERT_NE(stepper_->saved_plan().own(), nullptr);
  EXPECT_EQ(stepper_->saved_plan().own()->host_bytes,
            memory_->fixed_host() + stream::HostBytes(given));
}

TEST_F(StreamedRun, SettingsAreChosenByCalibration) {
  Open();
  const auto chosen = ChooseSettings(
      Context(), {.stream = Stream(-1), .seq_len = kRows}, /*threads=*/1);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_TRUE(chosen->fits);
  EXPECT_FALSE(chosen->tried.empty());
  EXPECT_GT(chosen->settings.chunk, 0);
  EXPECT_GT(owner_->calibrations, 0);
}

// The rings fit but host memory does not suffice, so all chunks run again, with
// chunks of the largest size.
TEST_F(StreamedRun, WithoutHostMemoryAllChunksOfTheLargestSizeRunAgain) {
  Open(KiB(64));
  const auto chosen = ChooseSettings(
      Context(), {.stream = Stream(-1), .seq_len = kRows, .may_keep = false},
      /*threads=*/1);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_FALSE(chosen->fits);
  EXPECT_EQ(chosen->tried.front().settings.chunk, kRows);
  EXPECT_EQ(chosen->settings.chunk, kRows);
  EXPECT_EQ(chosen->settings.rerun_chunks, 1);
  EXPECT_EQ(chosen->settings.prefetch, 1);
  EXPECT_EQ(chosen->settings.order, stream::BackwardOrder::kKeysOuter);
  const auto asked =
      ChooseSettings(Context(),
                     {.stream = Stream(-1),
                      .seq_len = kRows,
                      .prefetch = 3,
                      .order = stream::BackwardOrder::kQueriesOuter,
                      .may_keep = false},
                     /*threads=*/1);
  ASSERT_THAT(asked, IsOk());
  EXPECT_EQ(asked->settings.prefetch, 3);
  EXPECT_EQ(asked->settings.order, stream::BackwardOrder::kQueriesOuter);
}

TEST_F(StreamedRun, WithoutGpuMemoryTheSmallestChunkIsChosen) {
  Open();
  const Bytes left = memory_->size() - memory_->allocator().stats().used;
  const at::Tensor rest =
      at::empty({(left - KiB(128)).count()},
                at::device(memory_->device()).dtype(at::kByte));
  const auto chosen = ChooseSettings(
      Context(), {.stream = Stream(-1), .seq_len = kRows, .may_keep = false},
      /*threads=*/1);
  ASSERT_THAT(chosen, IsOk());
  EXPECT_FALSE(chosen->fits);
  int64_t smallest = kRows;
  for (const RatedSettings& tried : chosen->tried) {
    smallest = std::min(smallest, tried.settings.chunk);
  }
  EXPECT_LT(smallest, kRows);
  EXPECT_EQ(chosen->settings.chunk, smallest);
}

TEST_F(StreamedRun, ARefreshWithoutAnOfferChangesNothing) {
  Open();
  Make();
  const double loss = Step();
  const Bytes host = stepper_->host_bytes();
  const int before = owner_->calibrations;
  EXPECT_EQ(stepper_->OfferedPlan(), 0u);
  const auto change = stepper_->Refresh(/*mine=*/false);
  ASSERT_THAT(change, IsOk());
  EXPECT_EQ(change->plan, 0u);
  EXPECT_EQ(stepper_->host_bytes(), host);
  EXPECT_EQ(owner_->calibrations, before);
  EXPECT_EQ(Step(), loss);
}

TEST_F(StreamedRun, MoreHostMemoryThanItsLimitIsRefusedWithBothSizes) {
  daemon_.emplace();
  auto memory = RankMemory::Open({.session = daemon_->Open("first"),
                                  .gpu = {},
                                  .hbm = MiB(16),
                                  .host_limit = KiB(192)});
  ASSERT_THAT(memory, IsOk());
  ASSERT_THAT((*memory)->Lease(), IsOk());
  EXPECT_EQ((*memory)->host_room(), KiB(192));
  ASSERT_THAT((*memory)->LeaseFixed(KiB(64)), IsOk());
  EXPECT_EQ((*memory)->host_room(), KiB(128));
  const absl::Status refused = (*memory)->LeaseHost(KiB(192)).status();
  EXPECT_EQ(ShortageOf(refused), Shortage::kHostMemory) << refused;
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr("192 KiB"),
                               ::testing::HasSubstr("128 KiB")));
}

}  // namespace
}  // namespace sluice::runtime
