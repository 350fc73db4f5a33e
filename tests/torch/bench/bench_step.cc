#include "tests/torch/bench/bench_step.h"

#include <ATen/ops/randint.h>

#include "planner/stream/stream_shape.h"
#include "proto/base/status.h"
#include "tests/torch/initial_tensors.h"

namespace sluice::bench {

StepTensors::StepTensors(const stream::ModelShape& model, int64_t seq_len)
    : weights(runtime::InitialTensors(model, at::kFloat, at::kCPU, 1)),
      gradients(runtime::ZeroTensors(model, at::kFloat, at::kCPU)),
      tokens(at::randint(model.vocab, {seq_len}, at::kLong)) {}

BenchStep::BenchStep(Node& node, const stream::StreamOptions& options)
    : copies_(&node.engine()),
      options_(options),
      host_(stream::HostBytes(options)),
      tensors_(options.model, options.layout.seq_len()) {
  auto context = runtime::StreamContext::Create({.stream = options,
                                                 .device = at::kCPU,
                                                 .copies = &copies_,
                                                 .allocator = &node.allocator(),
                                                 .host = host_.data(),
                                                 .host_size = host_.size()});
  SLUICE_CHECK_OK(context.status());
  context_ = *std::move(context);
}

double BenchStep::Run() {
  return Seconds([&] {
    SLUICE_CHECK_OK(runtime::StreamedStep(*context_, tensors_.weights,
                                          tensors_.gradients, tensors_.tokens,
                                          tensors_.tokens,
                                          tensors_.tokens.size(0))
                        .status());
    SLUICE_CHECK_OK(copies_.Drain());
  });
}

}  // namespace sluice::bench
