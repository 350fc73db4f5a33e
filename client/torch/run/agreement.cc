#include "client/torch/run/agreement.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <limits>

#include "client/torch/memory/host_scope.h"
#include "client/torch/placement.h"
#include "proto/base/peer_fault.h"
#include "proto/base/status.h"

namespace sluice::runtime {
namespace {

// Stands for infinity in the sum over the ranks, so that no NaN can arise.
constexpr double kLarge = 1e300;

}  // namespace

absl::StatusOr<bool> AllAgree(Collectives* collectives, bool fine) {
  if (collectives == nullptr) return fine;
  // The tensor is in host memory, because HBM may have just run out.
  const HostScope host("agreement of the ranks");
  at::Tensor failed = at::full({1}, fine ? 0.0 : 1.0, OnHost(at::kDouble));
  SLUICE_RETURN_IF_ERROR(collectives->SumAll(failed));
  return failed.item<double>() == 0;
}

absl::StatusOr<bool> AnyRank(Collectives* collectives, bool own) {
  SLUICE_ASSIGN_OR_RETURN(const bool none, AllAgree(collectives, !own));
  return !none;
}

absl::Status Agree(Collectives* collectives, const absl::Status& status) {
  const auto all = AllAgree(collectives, status.ok());
  if (!status.ok()) return status;
  SLUICE_RETURN_IF_ERROR(all.status());
  if (*all) return absl::OkStatus();
  return CausedByPeer(absl::AbortedError("another rank failed"));
}

absl::StatusOr<double> LeastOfRanks(Collectives* collectives, double own) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<double> largest,
                          WorstOfRanks(collectives, {-own}));
  return 0 - largest[0];  // never -0
}

absl::StatusOr<std::vector<double>> WorstOfRanks(Collectives* collectives,
                                                 std::vector<double> own) {
  if (collectives == nullptr) return own;
  const HostScope host("worst of the ranks");
  at::Tensor each = at::zeros({collectives->world_size(), std::ssize(own)},
                              OnHost(at::kDouble));
  double* value = each.data_ptr<double>();
  double* const mine = value + collectives->rank() * std::ssize(own);
  for (size_t i = 0; i < own.size(); ++i) mine[i] = std::min(own[i], kLarge);
  SLUICE_RETURN_IF_ERROR(collectives->SumAll(each));
  for (int rank = 0; rank < collectives->world_size(); ++rank) {
    for (double& worst : own) worst = std::max(worst, *value++);
  }
  for (double& worst : own) {
    if (worst >= kLarge) worst = std::numeric_limits<double>::infinity();
  }
  return own;
}

}  // namespace sluice::runtime
