#include "client/ctl/swap_problem.h"

#include <string>

#include "proto/base/status.h"
#include "proto/plan/json_reader.h"

namespace sluice::ctl {
namespace {

using plan::FieldReader;
using Problem = planner::NodeSwapProblem;

constexpr size_t kMostBytes = 16 << 20;
constexpr size_t kMostLinks = 1024;
constexpr size_t kMostRanks = 256;
constexpr size_t kMostTensors = 1024;
constexpr size_t kLongestName = 256;
constexpr double kMost = 1e18;

double Amount(FieldReader& in, const char* key) {
  return in.Number(key, 0, kMost);
}
double OptionalAmount(FieldReader& in, const char* key) {
  return in.Has(key) ? Amount(in, key) : 0;
}

Problem::Link ReadLink(FieldReader in) {
  Problem::Link link;
  link.name = in.Text("name", kLongestName);
  link.h2d_bytes_per_s = Amount(in, "h2d_bytes_per_s");
  link.d2h_bytes_per_s = Amount(in, "d2h_bytes_per_s");
  if (in.Has("total_bytes_per_s")) {
    link.total_bytes_per_s = Amount(in, "total_bytes_per_s");
  }
  in.Finish();
  return link;
}

Problem::Must ReadMust(FieldReader& in) {
  if (!in.Has("must")) return Problem::Must::kNothing;
  const std::string must = in.Choice("must", {"keep", "swap", "recompute"});
  return must == "keep"   ? Problem::Must::kKeep
         : must == "swap" ? Problem::Must::kSwap
                          : Problem::Must::kRecompute;
}

Problem::Tensor ReadTensor(FieldReader in) {
  Problem::Tensor tensor;
  tensor.name = in.Text("name", kLongestName);
  tensor.bytes = Amount(in, "bytes");
  if (in.Has("recompute_s")) tensor.recompute_s = Amount(in, "recompute_s");
  tensor.must = ReadMust(in);
  in.Finish();
  return tensor;
}

Problem::Rank ReadRank(FieldReader in) {
  Problem::Rank rank;
  rank.name = in.Text("name", kLongestName);
  rank.numa = in.Int("numa", 0, INT32_MAX);
  in.Each("links", kMostLinks, [&rank](FieldReader link, size_t) {
    rank.links.push_back(link.SelfText(kLongestName));
  });
  rank.layers = in.Int("layers", 1, 1'000'000);
  rank.resident_layers = in.Int("resident_layers", 0, 1'000'000);
  rank.gpu_budget_bytes = Amount(in, "gpu_budget_bytes");
  rank.forward_layer_s = Amount(in, "forward_layer_s");
  rank.backward_layer_s = Amount(in, "backward_layer_s");
  rank.forward_d2h_fixed_bytes = OptionalAmount(in, "forward_d2h_fixed_bytes");
  rank.forward_h2d_fixed_bytes = OptionalAmount(in, "forward_h2d_fixed_bytes");
  rank.backward_d2h_fixed_bytes =
      OptionalAmount(in, "backward_d2h_fixed_bytes");
  rank.backward_h2d_fixed_bytes =
      OptionalAmount(in, "backward_h2d_fixed_bytes");
  rank.host_fixed_bytes = OptionalAmount(in, "host_fixed_bytes");
  in.Each("tensors", kMostTensors, [&rank](FieldReader tensor, size_t) {
    rank.tensors.push_back(ReadTensor(std::move(tensor)));
  });
  in.Finish();
  return rank;
}

}  // namespace

absl::StatusOr<Problem> ReadSwapProblem(std::string_view json) {
  absl::Status status;
  const nlohmann::json document = plan::ParseChecked(json, kMostBytes, &status);
  SLUICE_RETURN_IF_ERROR(status);
  FieldReader in(document, "", &status);
  Problem problem;
  in.Each("links", kMostLinks, [&problem](FieldReader link, size_t) {
    problem.links.push_back(ReadLink(std::move(link)));
  });
  in.Each("numa", kMostLinks, [&problem](FieldReader numa, size_t) {
    problem.numa.push_back(
        {numa.Int("id", 0, INT32_MAX), Amount(numa, "host_budget_bytes")});
    numa.Finish();
  });
  in.Each("ranks", kMostRanks, [&problem](FieldReader rank, size_t) {
    problem.ranks.push_back(ReadRank(std::move(rank)));
  });
  in.Finish();
  SLUICE_RETURN_IF_ERROR(status);
  SLUICE_RETURN_IF_ERROR(planner::CheckNodeSwap(problem));
  return problem;
}

}  // namespace sluice::ctl
