#include "tests/torch/stream_fixture.h"

#include <ATen/ATen.h>

#include "proto/base/mutex.h"
#include "tests/torch/copied.h"
#include "tests/torch/initial_tensors.h"

namespace sluice::runtime {

using ::sluice::testing::IsOk;

at::Tensor Deal(const at::Tensor& all, const stream::ChunkLayout& layout,
                int rank) {
  std::vector<at::Tensor> parts;
  for (int64_t m = 0; m < layout.chunks(); ++m) {
    parts.push_back(all.narrow(0,
                               layout.begin(m) + layout.local_offset(m, rank),
                               layout.local_rows(m, rank)));
  }
  return at::cat(parts);
}

StepData MakeStepData(const StepCase& c, uint64_t seed) {
  at::manual_seed(seed);
  StepData data;
  stream::ModelShape wide = c.model;
  wide.init_std = 0.1;  // large enough that attention is not uniform
  data.weights = InitialTensors(wide, c.dtype, at::kCPU, seed);
  for (const NamedTensor& named : NamedTensors(c.model, data.weights)) {
    named.tensor->add_(at::randn(named.tensor->sizes()), 0.05);
  }
  data.tokens = at::randint(c.model.vocab, {c.seq_len}, at::kLong);
  data.labels = at::randint(c.model.vocab, {c.seq_len}, at::kLong);
  data.labels.masked_fill_(at::rand({c.seq_len}) < 0.1, -100);
  data.labels[c.seq_len - 1] = -100;
  data.labels[0] = 1;
  data.count = data.labels.ne(-100).sum().item<int64_t>();
  return data;
}

stream::StreamOptions OptionsOf(const StepCase& c, int rank) {
  stream::StreamOptions options = c.stream;
  options.model = c.model;
  options.layout = stream::ChunkLayout(c.seq_len, c.chunk, c.ranks);
  options.rank = rank;
  options.dtype =
      c.dtype == at::kFloat ? stream::Dtype::kFp32 : stream::Dtype::kBf16;
  return options;
}

namespace {

// One rank's part of RunStep.
class RankStep {
 public:
  RankStep(const StepCase& c, const StepData& data, const TestNode& node,
           Collectives& collectives)
      : case_(c), data_(data), node_(node), collectives_(collectives) {}

  void Run(int steps, Mutex& mutex, StepOutcome& outcome) {
    const int rank = collectives_.rank();
    const at::Device device = node_.device();
    node_.EnterRank();
    auto engine = node_.StartCopies(rank);
    ASSERT_THAT(engine, IsOk());
    const auto through = node_.CollectivesOver(&collectives_);
    std::unique_ptr<client::CopyEngine> wrapped;
    if (case_.wrap_engine) wrapped = case_.wrap_engine(engine->get());
    StreamContext::Options options{
        .stream = OptionsOf(case_, rank),
        .device = device,
        .collectives = through ? through.get() : &collectives_,
        .copies = wrapped ? wrapped.get() : engine->get()};
    options.host_size = stream::HostBytes(options.stream);
    const Arena arena(options.host_size, node_);
    options.host = arena.data();
    auto context = StreamContext::Create(options);
    ASSERT_THAT(context, IsOk());
    const ModelTensors weights = Copied(case_.model, data_.weights, device);
    const at::Tensor tokens =
        Deal(data_.tokens, options.stream.layout, rank).to(device);
    const at::Tensor labels =
        Deal(data_.labels, options.stream.layout, rank).to(device);
    ModelTensors gradients;
    StepResult result;
    device::CallCounters before;
    for (int step = 0; step < steps; ++step) {
      gradients = ZeroTensors(case_.model, at::kFloat, device);
      before = node_.driver()->counters();
      const long pageable = PageableCopies();
      auto done = StreamedStep(**context, weights, gradients, tokens, labels,
                               data_.count);
      ASSERT_THAT(done, IsOk());
      // Several ranks send through pageable memory (test_node.h).
      if (case_.ranks == 1) {
        EXPECT_EQ(PageableCopies(), pageable);
      }
      result = *done;
    }
    const device::CallCounters after = node_.driver()->counters();
    ASSERT_THAT((*engine)->Drain(), IsOk());
    EXPECT_TRUE(arena.GuardIntact());
    const MutexLock lock(mutex);
    Add(result, gradients, outcome);
    if (rank == 0) {
      outcome.copies = (*engine)->stats();
      outcome.before = before;
      outcome.after = after;
    }
  }

 private:
  void Add(const StepResult& result, ModelTensors& gradients,
           StepOutcome& outcome) {
    outcome.loss_sum += result.loss_sum;
    outcome.count += result.count;
    const auto from = NamedTensors(case_.model, gradients);
    const auto to = NamedTensors(case_.model, outcome.gradients);
    for (size_t i = 0; i < from.size(); ++i) {
      to[i].tensor->add_(from[i].tensor->cpu());
    }
  }

  const StepCase& case_;
  const StepData& data_;
  const TestNode& node_;
  Collectives& collectives_;
};

}  // namespace

StepOutcome RunStep(const StepCase& c, const StepData& data, int steps) {
  StepOutcome outcome;
  outcome.gradients = ZeroTensors(c.model, at::kFloat, at::kCPU);
  const TestNode node(c.ranks, c.in_speed, c.out_speed);
  Mutex mutex;
  RunRanks(c.ranks, [&](Collectives& collectives) {
    RankStep(c, data, node, collectives).Run(steps, mutex, outcome);
  });
  return outcome;
}

}  // namespace sluice::runtime
