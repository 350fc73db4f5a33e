#include "client/ctl/desk/swap_problem.h"

#include <string>
#include <utility>

#include "proto/base/status.h"
#include "proto/plan/json_reader.h"

namespace sluice::ctl {
namespace {

using plan::FieldReader;
using SwapProblem = planner::NodeSwapProblem;

constexpr size_t kMostBytes = 16 << 20;
constexpr size_t kMostLinks = 1024;
constexpr size_t kMostRanks = 256;
constexpr size_t kMostTensors = 1024;  // per kind
constexpr size_t kMostKinds = 64;
constexpr size_t kLongestName = 256;
constexpr double kMaxNumber = 1e18;

double ReadAmount(FieldReader& in, const char* key) {
  return in.Number(key, 0, kMaxNumber);
}
double OptionalAmount(FieldReader& in, const char* key) {
  return in.Has(key) ? ReadAmount(in, key) : 0;
}

SwapProblem::Link ReadLink(FieldReader in) {
  SwapProblem::Link link;
  link.name = in.Text("name", kLongestName);
  link.h2d_bytes_per_s = ReadAmount(in, "h2d_bytes_per_s");
  link.d2h_bytes_per_s = ReadAmount(in, "d2h_bytes_per_s");
  if (in.Has("total_bytes_per_s")) {
    link.total_bytes_per_s = ReadAmount(in, "total_bytes_per_s");
  }
  in.Finish();
  return link;
}

SwapProblem::Must ReadMust(FieldReader& in) {
  if (!in.Has("must")) return SwapProblem::Must::kNothing;
  const std::string must = in.Choice("must", {"keep", "swap", "recompute"});
  return must == "keep"   ? SwapProblem::Must::kKeep
         : must == "swap" ? SwapProblem::Must::kSwap
                          : SwapProblem::Must::kRecompute;
}

SwapProblem::Tensor ReadTensor(FieldReader in) {
  SwapProblem::Tensor tensor;
  tensor.name = in.Text("name", kLongestName);
  tensor.bytes = ReadAmount(in, "bytes");
  if (in.Has("recompute_s")) tensor.recompute_s = ReadAmount(in, "recompute_s");
  tensor.must = ReadMust(in);
  in.Finish();
  return tensor;
}

// Reads all fields of a kind except its name and tensors.
SwapProblem::Kind ReadKind(FieldReader& in) {
  SwapProblem::Kind kind;
  kind.layers = in.Int("layers", 1, 1'000'000);
  kind.resident_layers = in.Int("resident_layers", 0, 1'000'000);
  kind.forward_layer_s = ReadAmount(in, "forward_layer_s");
  kind.backward_layer_s = ReadAmount(in, "backward_layer_s");
  kind.forward_d2h_fixed_bytes = OptionalAmount(in, "forward_d2h_fixed_bytes");
  kind.forward_h2d_fixed_bytes = OptionalAmount(in, "forward_h2d_fixed_bytes");
  kind.backward_d2h_fixed_bytes =
      OptionalAmount(in, "backward_d2h_fixed_bytes");
  kind.backward_h2d_fixed_bytes =
      OptionalAmount(in, "backward_h2d_fixed_bytes");
  return kind;
}

void ReadTensors(FieldReader& in, size_t kind, SwapProblem::Rank* rank) {
  in.Each("tensors", kMostTensors, [&](FieldReader tensor, size_t) {
    rank->tensors.push_back(ReadTensor(std::move(tensor)));
    rank->tensors.back().kind = kind;
  });
}

SwapProblem::Rank ReadRank(FieldReader in) {
  SwapProblem::Rank rank;
  rank.name = in.Text("name", kLongestName);
  rank.numa = in.Int("numa", 0, INT32_MAX);
  in.Each("links", kMostLinks, [&rank](FieldReader link, size_t) {
    rank.links.push_back(link.SelfText(kLongestName));
  });
  rank.gpu_budget_bytes = ReadAmount(in, "gpu_budget_bytes");
  rank.host_fixed_bytes = OptionalAmount(in, "host_fixed_bytes");
  // If a rank has one unnamed kind of layers, that kind's fields are among the
  // rank's fields.
  if (!in.Has("kinds")) {
    rank.kinds = {ReadKind(in)};
    ReadTensors(in, 0, &rank);
  } else {
    rank.kinds.clear();
    in.Each("kinds", kMostKinds, [&rank](FieldReader kind, size_t k) {
      std::string name = kind.Text("name", kLongestName);
      rank.kinds.push_back(ReadKind(kind));
      rank.kinds.back().name = std::move(name);
      ReadTensors(kind, k, &rank);
      kind.Finish();
    });
  }
  in.Finish();
  return rank;
}

}  // namespace

absl::StatusOr<SwapProblem> ReadSwapProblem(std::string_view json) {
  absl::Status status;
  const nlohmann::json document = plan::ParseChecked(json, kMostBytes, &status);
  SLUICE_RETURN_IF_ERROR(status);
  FieldReader in(document, "", &status);
  SwapProblem problem;
  in.Each("links", kMostLinks, [&problem](FieldReader link, size_t) {
    problem.links.push_back(ReadLink(std::move(link)));
  });
  in.Each("numa", kMostLinks, [&problem](FieldReader numa, size_t) {
    problem.numa.push_back(
        {numa.Int("id", 0, INT32_MAX), ReadAmount(numa, "host_budget_bytes")});
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
