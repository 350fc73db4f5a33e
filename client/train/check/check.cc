#include "client/train/check/check.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "client/torch/placement.h"
#include "client/train/launch/peer_line.h"
#include "client/train/step/stepper.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

// A random text, the same for every number of ranks. Each label is ignored with
// a chance of 1 in 16, except the last, because one label must count.
struct Tokens {
  std::vector<int64_t> ids, labels;
  int64_t count = 0;
};

Tokens RandomText(int64_t length, int64_t vocab, uint64_t seed) {
  std::mt19937_64 random(seed + 1);
  std::vector<int64_t> drawn(static_cast<size_t>(length + 1));
  for (int64_t& id : drawn) {
    id = static_cast<int64_t>(random() % static_cast<uint64_t>(vocab));
  }
  Tokens text{{drawn.begin(), drawn.end() - 1},
              {drawn.begin() + 1, drawn.end()}};
  for (int64_t i = 0; i + 1 < length; ++i) {
    if (random() % 16 == 0) text.labels[i] = -100;
  }
  text.count = length - std::ranges::count(text.labels, -100);
  return text;
}

// Sets random weights, so that an error of any code path shows in a gradient. A
// run's initial weights would hide errors: biases are 0, norm weights 1, and
// scores so small that attention is flat.
absl::Status Roughen(FlatModel& weights, int64_t hidden, uint64_t seed,
                     runtime::HostStage& stage) {
  at::Generator random = at::detail::createCPUGenerator(seed);
  const double spread = 1 / std::sqrt(static_cast<double>(hidden));
  for (const FlatEntry& entry : weights.entries()) {
    at::Tensor drawn = at::empty({entry.size}, runtime::OnHost(at::kFloat));
    drawn.normal_(0, spread, random);
    if (entry.name.find("norm") != std::string::npos &&
        entry.name.ends_with("weight")) {
      drawn.add_(1);
    }
    SLUICE_RETURN_IF_ERROR(weights.Set(entry, drawn, stage));
  }
  return absl::OkStatus();
}

std::vector<int64_t> RowsOf(const std::vector<int64_t>& all,
                            const stream::ChunkLayout& layout, int rank) {
  std::vector<int64_t> rows;
  for (int64_t m = 0; m < layout.chunks(); ++m) {
    const int64_t first = layout.begin(m) + layout.local_offset(m, rank);
    rows.insert(rows.end(), all.begin() + first,
                all.begin() + first + layout.local_rows(m, rank));
  }
  return rows;
}

// Returns the tensors by name on the CPU, where the reference computes.
absl::StatusOr<std::map<std::string, at::Tensor>> Named(
    const FlatModel& model, runtime::HostStage& stage) {
  const at::Tensor flat =
      at::empty({model.size()}, runtime::OnHost(model.flat().scalar_type()));
  SLUICE_RETURN_IF_ERROR(stage.Read(model.flat(), flat.data_ptr()));
  std::map<std::string, at::Tensor> named;
  for (const FlatEntry& e : model.entries()) {
    named[e.name] = flat.narrow(0, e.offset, e.size).view(e.shape);
  }
  return named;
}

absl::Status Judge(const StepperContext& context, const Tokens& text,
                   double loss, CheckReport* report) {
  const runtime::HostScope host("the reference of check");
  const stream::ModelShape& m = context.options->model;
  const ReferenceModel model{
      m.rope.has_value(),         m.layers,      m.hidden, m.heads, m.kv_heads,
      m.rope ? m.rope->theta : 0, m.norm_epsilon};
  SLUICE_ASSIGN_OR_RETURN(const auto weights,
                          Named(*context.weights, *context.stage));
  SLUICE_ASSIGN_OR_RETURN(auto gradients,
                          Named(*context.gradients, *context.stage));
  const auto on_host = [](const std::vector<int64_t>& values) {
    return at::tensor(values, runtime::OnHost(at::kLong));
  };
  const at::Tensor ids = on_host(text.ids), labels = on_host(text.labels);
  const ReferenceResult truth =
      RunReference(model, weights, ids, labels, at::kDouble);
  const ReferenceResult ours{loss, std::move(gradients)};
  *report =
      context.options->dtype == Dtype::kFp32
          ? JudgeFp32(ours, truth)
          : JudgeBf16(ours,
                      RunReference(model, weights, ids, labels, at::kBFloat16),
                      truth);
  return absl::OkStatus();
}

// Sums gradients on rank 0, and returns the mean loss of all ranks.
absl::StatusOr<double> GatherStep(const StepperContext& context,
                                  const runtime::StepResult& own) {
  runtime::Collectives* const all = context.collectives;
  if (all == nullptr) return own.loss_sum / static_cast<double>(own.count);
  const runtime::HostScope host("sums of check");
  at::Tensor sums = at::empty({2}, runtime::OnHost(at::kDouble));
  double* const values = sums.data_ptr<double>();
  values[0] = own.loss_sum;
  values[1] = static_cast<double>(own.count);
  SLUICE_RETURN_IF_ERROR(all->SumAll(sums));
  const auto buckets =
      stream::CutBuckets(context.options->model, all->world_size());
  for (const stream::Bucket& bucket : buckets) {
    at::Tensor part =
        context.gradients->flat().narrow(0, bucket.offset, bucket.size);
    SLUICE_RETURN_IF_ERROR(all->SumTo(part, 0));
  }
  return values[0] / values[1];
}

}  // namespace

absl::Status RunCheck(const StepperContext& context, PeerWatch& watch,
                      CheckReport* report) {
  const RunOptions& o = *context.options;
  const int rank = context.environment->rank;
  const Tokens text =
      RandomText(o.seq_len, o.model.vocab, static_cast<uint64_t>(o.seed));
  SLUICE_RETURN_IF_ERROR(Roughen(*context.weights, o.model.hidden,
                                 static_cast<uint64_t>(o.seed),
                                 *context.stage));
  SLUICE_ASSIGN_OR_RETURN(const auto stepper, Stepper::Make(context, nullptr));
  const stream::ChunkLayout layout = stepper->layout();
  const int64_t rows = layout.total_local_rows(rank);
  const at::TensorOptions ids =
      runtime::On(context.memory->device(), at::kLong);
  const at::Tensor tokens = at::empty({rows}, ids);
  const at::Tensor labels = at::empty({rows}, ids);
  for (const auto& [to, all] :
       {std::pair(&tokens, &text.ids), std::pair(&labels, &text.labels)}) {
    SLUICE_RETURN_IF_ERROR(
        context.stage->Write(*to, RowsOf(*all, layout, rank).data()));
  }
  SLUICE_ASSIGN_OR_RETURN(const runtime::StepResult own,
                          stepper->Run(tokens, labels, text.count));
  SLUICE_ASSIGN_OR_RETURN(const double loss, GatherStep(context, own));
  if (rank != 0) return absl::OkStatus();
  watch.Disarm();  // the other ranks have done their part
  runtime::HostScope::SetCap(Bytes(0));
  SLUICE_RETURN_IF_ERROR(Judge(context, text, loss, report));
  report->attention = context.KernelName();
  if (report->ok) return absl::OkStatus();
  return absl::InternalError("check failed: " + report->why);
}

}  // namespace sluice::train
