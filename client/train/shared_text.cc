#include "client/train/shared_text.h"

#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "client/torch/memory/host_scope.h"
#include "client/torch/placement.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr int64_t kTextBytes = 1000;

}  // namespace

absl::StatusOr<std::string> ShareText(runtime::Collectives* collectives,
                                      const std::string& text, int root) {
  if (collectives == nullptr) return text;
  // The text is in host memory, because HBM may have run out.
  const runtime::HostScope host("a text of the ranks");
  at::Tensor bytes = at::zeros({kTextBytes}, runtime::OnHost(at::kByte));
  char* const data = static_cast<char*>(bytes.data_ptr());
  std::memcpy(data, text.data(),
              std::min(text.size(), static_cast<size_t>(kTextBytes - 1)));
  SLUICE_RETURN_IF_ERROR(collectives->Broadcast(bytes, root));
  return std::string(data);
}

absl::StatusOr<SharedFault> ShareFault(runtime::Collectives* collectives,
                                       const absl::Status& own) {
  if (collectives == nullptr) return SharedFault{own};
  const int world = collectives->world_size();
  int first = world;
  {
    const runtime::HostScope host("faults of the ranks");
    at::Tensor failed = at::zeros({world}, runtime::OnHost(at::kDouble));
    double* const values = failed.data_ptr<double>();
    values[collectives->rank()] = own.ok() ? 0 : 1;
    SLUICE_RETURN_IF_ERROR(collectives->SumAll(failed));
    for (int rank = world - 1; rank >= 0; --rank) {
      if (values[rank] > 0) first = rank;
    }
  }
  if (first == world) return SharedFault{};
  SLUICE_ASSIGN_OR_RETURN(
      const std::string text,
      ShareText(collectives,
                fmt::format("{} {} {}", static_cast<int>(own.code()),
                            Name(ShortageOf(own)), std::string(own.message())),
                first));
  const size_t code_end = text.find(' ');
  const size_t word_end = text.find(' ', code_end + 1);
  if (code_end == std::string::npos || word_end == std::string::npos) {
    return SharedFault{absl::InternalError("another rank failed")};
  }
  const auto code = static_cast<absl::StatusCode>(std::atoi(text.c_str()));
  const std::string word = text.substr(code_end + 1, word_end - code_end - 1);
  return SharedFault{Mark(
      absl::Status(
          code, fmt::format("rank {}: {}", first, text.substr(word_end + 1))),
      ShortageNamed(word).value_or(Shortage::kNone))};
}

}  // namespace sluice::train
