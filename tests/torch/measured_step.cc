#include "tests/torch/measured_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "client/train/optimizer/adamw.h"
#include "kernels/device/sim/sim.h"
#include "tests/support/temp_dir.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::IsOk;

constexpr Bytes kRegion = MiB(64);
constexpr size_t kLine = 64;
constexpr auto kUnwritten = std::byte{0xff};  // an Arena's initial bytes

// Returns the process's only region. All steps share one, because another
// thread may still hold blocks of an earlier step's region.
const Arena& Region() {
  static const Arena* region = new Arena(kRegion);
  return *region;
}

UsedMemory LookInto(const std::byte* data, Bytes size) {
  UsedMemory used{.size = size};
  for (size_t at = 0; at < size.size(); at += kLine) {
    const std::byte* end = data + std::min(at + kLine, size.size());
    if (std::all_of(data + at, end,
                    [](std::byte b) { return b == kUnwritten; })) {
      continue;
    }
    used.written += Bytes(kLine);
    used.written_end = Bytes(static_cast<int64_t>(at + kLine));
  }
  return used;
}

class RankRun {
 public:
  // `measured` is null for ranks that are not measured.
  RankRun(const StepCase& c, const StepData& data, device::Driver* driver,
          Collectives& collectives, stream::StatePlace states,
          MeasuredStep* measured)
      : case_(c),
        data_(data),
        driver_(driver),
        collectives_(collectives),
        place_(states),
        measured_(measured) {
    if (measured_ == nullptr) return;
    allocator_.emplace(at::kCPU, Region().data(), kRegion);
    allocator_->Arm();
  }

  void Run(int steps);

 private:
  void MakeStates();
  std::unique_ptr<train::HostStates> MakeHostStates();
  void MakeContext();
  void Step();
  void LookIntoMemory();
  // Waits for all ranks. Ranks are threads of one process and share the region,
  // so the measured rank allocates alone.
  void Meet() { EXPECT_THAT(collectives_.Barrier(), IsOk()); }

  const StepCase& case_;
  const StepData& data_;
  device::Driver* const driver_;
  Collectives& collectives_;
  const stream::StatePlace place_;
  MeasuredStep* const measured_;

  std::optional<RegionAllocator> allocator_;
  std::optional<train::FlatModel> weights_, gradients_;
  std::optional<Arena> states_;
  std::optional<train::AdamW> optimizer_;
  std::unique_ptr<client::CopyEngine> engine_;
  std::optional<Arena> host_;
  std::unique_ptr<StreamContext> context_;
  Bytes host_size_;
  struct Taken {
    std::byte* data;
    Bytes size;
  };
  std::vector<Taken> taken_;  // the context's blocks in the region
};

std::unique_ptr<train::HostStates> RankRun::MakeHostStates() {
  if (place_ == stream::StatePlace::kHbm) return nullptr;
  const stream::StreamOptions options = OptionsOf(case_, collectives_.rank());
  auto engine = client::CopyEngine::Start(
      {.driver = driver_, .device = DeviceIndex(collectives_.rank())});
  EXPECT_THAT(engine, IsOk());
  states_.emplace(stream::CountStates(case_.model, options.dtype, case_.ranks,
                                      collectives_.rank(), place_)
                      .host);
  return std::make_unique<train::HostStates>(
      train::HostStates::Options{.model = case_.model,
                                 .dtype = options.dtype,
                                 .ranks = case_.ranks,
                                 .rank = collectives_.rank(),
                                 .device = at::kCPU,
                                 .copies = *std::move(engine),
                                 .host = states_->data()});
}

// Makes the states as the trainer does.
void RankRun::MakeStates() {
  const Bytes before = measured_ ? allocator_->stats().used : Bytes(0);
  weights_.emplace(case_.model, case_.dtype, at::kCPU);
  ModelTensors initial = data_.weights;
  const auto from = NamedTensors(case_.model, initial);
  const auto to = NamedTensors(case_.model, weights_->tensors());
  for (size_t i = 0; i < to.size(); ++i) to[i].tensor->copy_(*from[i].tensor);
  gradients_.emplace(case_.model, at::kFloat, at::kCPU);
  optimizer_.emplace(train::AdamWOptions{}, &*weights_, &*gradients_,
                     case_.ranks > 1 ? &collectives_ : nullptr,
                     MakeHostStates());
  HostStage stage;
  if (states_.has_value()) {
    EXPECT_THAT(optimizer_->ClearHost(stage), IsOk());
  }
  if (measured_) measured_->states = allocator_->stats().used - before;
}

void RankRun::MakeContext() {
  StreamContext::Options options{
      .stream = OptionsOf(case_, collectives_.rank()),
      .device = at::kCPU,
      .collectives = &collectives_,
      .copies = engine_.get(),
      .allocator = measured_ ? &*allocator_ : nullptr,
      .pending = &*optimizer_};
  host_size_ = stream::HostBytes(options.stream);
  host_.emplace(host_size_);
  options.host = host_->data();
  options.host_size = host_size_;
  std::vector<BlockRecord> before;
  if (measured_) before = allocator_->TakeBlocks();
  auto context = StreamContext::Create(options);
  ASSERT_THAT(context, IsOk());
  context_ = *std::move(context);
  if (!measured_) return;
  std::vector<BlockRecord> made = allocator_->TakeBlocks();
  std::erase_if(made, [&](const BlockRecord& block) {
    return std::any_of(before.begin(), before.end(), [&](const auto& old) {
      return old.offset == block.offset;
    });
  });
  std::ranges::sort(made, {}, &BlockRecord::born_s);
  // The blocks are resident classes, kept rows and rings, in this order; only
  // the rings always exist.
  ASSERT_LE(made.size(), 3u);
  ASSERT_GE(made.size(), 1u);
  for (const BlockRecord& block : made) {
    taken_.push_back({Region().data() + block.offset.count(), block.size});
    std::memset(taken_.back().data, 0xff, block.size.size());
  }
}

void RankRun::Step() {
  const int rank = collectives_.rank();
  const stream::ChunkLayout layout(case_.seq_len, case_.chunk, case_.ranks);
  gradients_->flat().zero_();
  ASSERT_THAT(
      StreamedStep(*context_, weights_->tensors(), gradients_->tensors(),
                   Deal(data_.tokens, layout, rank),
                   Deal(data_.labels, layout, rank), data_.count),
      IsOk());
  ASSERT_THAT(engine_->Drain(), IsOk());
}

void RankRun::LookIntoMemory() {
  measured_->host = LookInto(host_->data(), host_size_);
  measured_->host_guard_intact =
      host_->GuardIntact() && (!states_ || states_->GuardIntact());
  for (size_t i = 0; i < taken_.size(); ++i) {
    const UsedMemory used = LookInto(taken_[i].data, taken_[i].size);
    if (i + 1 == taken_.size()) {
      measured_->rings = used;
    } else {
      measured_->kept.size += used.size;
      measured_->kept.written += used.written;
    }
  }
  measured_->kinds = allocator_->TakeRecorded();
}

void RankRun::Run(int steps) {
  auto engine = client::CopyEngine::Start(
      {.driver = driver_, .device = DeviceIndex(collectives_.rank())});
  ASSERT_THAT(engine, IsOk());
  engine_ = *std::move(engine);
  if (measured_) {
    allocator_->RecordTimeline(true);
    MakeStates();
    MakeContext();
    allocator_->RecordTimeline(false);
    allocator_->RecordSegments(true);
  }
  Meet();
  if (!measured_) {
    MakeStates();
    MakeContext();
  }
  Meet();
  for (int step = 0; step < steps; ++step) Step();
  if (measured_) LookIntoMemory();
  Meet();
}

}  // namespace

MeasuredStep MeasureStep(const StepCase& c, int rank, int steps,
                         stream::StatePlace states) {
  MeasuredStep measured;
  const StepData data = MakeStepData(c, 7);
  const testing::TempDir directory;
  device::SimConfig node{.links = {{"pcie0", 0, 0}}, .host_memory = MiB(1)};
  node.gpus.assign(c.ranks, {MiB(1), "pcie0", NumaIndex(0)});
  EXPECT_THAT(device::CreateSimNode(directory.path(), node), IsOk());
  auto driver = device::OpenSimDriver(directory.path());
  EXPECT_THAT(driver, IsOk());
  RunRanks(c.ranks, [&](Collectives& collectives) {
    RankRun(c, data, driver->get(), collectives, states,
            collectives.rank() == rank ? &measured : nullptr)
        .Run(steps);
  });
  return measured;
}

Bytes PeakOf(const plan::Trace& trace) {
  std::vector<std::pair<int64_t, Bytes>> changes;
  for (const plan::Buffer& buffer : trace.buffers) {
    const Bytes size = RoundUp(buffer.size, trace.alignment);
    changes.push_back({buffer.lower, size});
    changes.push_back({buffer.upper, Bytes(0) - size});
  }
  // Changes share a time only at the trace's end, where all are frees.
  std::ranges::stable_sort(changes, {}, &std::pair<int64_t, Bytes>::first);
  Bytes alive, peak;
  for (const auto& [at, change] : changes) {
    peak = std::max(peak, alive += change);
  }
  return peak;
}

}  // namespace sluice::runtime
