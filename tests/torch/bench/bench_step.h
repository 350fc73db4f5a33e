// A real streamed step of one rank on a bench's node, with copies that can be
// switched off.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "client/torch/stream/streamed_model.h"
#include "tests/torch/bench/bench_node.h"
#include "tests/torch/forwarding_engine.h"

namespace sluice::bench {

// An engine with copies that can be switched off. While they are off, rings
// keep their last data, and every ticket is reached.
class SwitchedEngine final : public client::ForwardingEngine {
 public:
  using ForwardingEngine::ForwardingEngine;
  void Switch(bool on) { on_ = on; }

  client::Ticket MarkCompute() override {
    return on_ ? ForwardingEngine::MarkCompute() : client::Ticket();
  }
  client::Ticket Enqueue(client::CopyRequest request) override {
    return on_ ? ForwardingEngine::Enqueue(std::move(request))
               : client::Ticket();
  }

 private:
  bool on_ = true;
};

// Weights, gradients and a text, shared by the compared steps.
struct StepTensors {
  StepTensors(const stream::ModelShape& model, int64_t seq_len);

  runtime::ModelTensors weights, gradients;
  at::Tensor tokens;
};

class BenchStep {
 public:
  BenchStep(Node& node, const stream::StreamOptions& options);

  // Returns the seconds of a step, including its last copy out.
  double Run();
  SwitchedEngine& copies() { return copies_; }
  const stream::StreamOptions& options() const { return options_; }

 private:
  SwitchedEngine copies_;
  const stream::StreamOptions options_;
  Memory host_;
  std::unique_ptr<runtime::StreamContext> context_;
  StepTensors tensors_;
};

}  // namespace sluice::bench
