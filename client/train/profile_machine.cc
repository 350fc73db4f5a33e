#include "client/train/profile_machine.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/randn.h>

#include <algorithm>

#include "proto/base/clock.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

constexpr int kRepeats = 5;

}  // namespace

absl::Status Machine::Begin() {
  if (!real()) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(memory_.Arm());
  SLUICE_ASSIGN_OR_RETURN(stream_, memory_.ComputeStream());
  return absl::OkStatus();
}

absl::StatusOr<at::Tensor> Machine::Drawn(at::IntArrayRef sizes) {
  const at::Tensor host =
      at::randn({kDrawn}, runtime::OnHost(at::kFloat)).to(type());
  at::Tensor piece = at::empty({kDrawn}, On(type()));
  SLUICE_RETURN_IF_ERROR(memory_.stage().Write(piece, host.const_data_ptr()));
  at::Tensor all = at::empty(sizes, On(type()));
  all.view({-1, kDrawn}).copy_(piece);
  return all;
}

absl::StatusOr<std::vector<double>> Machine::ByCaller(
    const std::function<void()>& work) {
  std::vector<double> seconds;
  for (int i = 0; i <= kRepeats; ++i) {
    const double start = MonotonicSeconds();
    work();
    seconds.push_back(MonotonicSeconds() - start);
  }
  return seconds;
}

absl::StatusOr<std::vector<double>> Machine::ByStream(
    const std::function<void()>& work) {
  for (int i = 0; i <= kRepeats; ++i) {
    SLUICE_RETURN_IF_ERROR(timer_.Begin(stream_));
    work();
    SLUICE_RETURN_IF_ERROR(timer_.End(stream_));
  }
  SLUICE_RETURN_IF_ERROR(timer_.Await());
  std::vector<double> seconds;
  for (;;) {
    SLUICE_ASSIGN_OR_RETURN(const auto span, timer_.Next());
    if (!span.has_value()) return seconds;
    seconds.push_back(absl::ToDoubleSeconds(span->length));
  }
}

absl::StatusOr<double> Machine::Seconds(const std::function<void()>& work) {
  SLUICE_ASSIGN_OR_RETURN(auto seconds,
                          real() ? ByStream(work) : ByCaller(work));
  const auto first = seconds.begin() + 1, median = first + kRepeats / 2;
  std::nth_element(first, median, seconds.end());
  return *median;
}

}  // namespace sluice::train
