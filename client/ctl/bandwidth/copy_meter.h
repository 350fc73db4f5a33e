// Measures how fast several GPUs copy at the same time. It copies as an
// ordinary rank does, in leased memory and through the device seam, but does
// not wait for grants.
//
// Thread safety: one owner.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/ctl/bandwidth/link_tree.h"
#include "client/session/session.h"

namespace sluice::ctl {

class CopyMeter {
 public:
  struct Options {
    std::string socket;
    std::vector<int64_t> gpu_free;  // free bytes of each GPU
    // The time over which each number is averaged.
    absl::Duration window = absl::Seconds(1);
  };

  // Attaches one rank per GPU. Each leases a little memory of its GPU and of
  // the host near it until the meter is destroyed. Errors are those of
  // Session::Open and of leases; they name the GPU.
  static absl::StatusOr<std::unique_ptr<CopyMeter>> Open(Options options);

  // Makes all `gpus` copy as fast as they can, and returns the sums of their
  // speeds.
  absl::StatusOr<MeasuredSpeeds> Measure(const std::vector<size_t>& gpus);

  // Returns the job name of the meter's ranks, which is unique to this process.
  static std::string Job();

 private:
  struct Gpu {
    std::unique_ptr<client::Session> session;
    std::unique_ptr<client::Region> device, host;
  };
  explicit CopyMeter(Options options) : options_(std::move(options)) {}
  absl::Status Attach(size_t gpu);
  struct Rates {
    double h2d = 0, d2h = 0;
  };
  absl::StatusOr<Rates> CopyAtOnce(const std::vector<size_t>& gpus, bool h2d,
                                   bool d2h);

  const Options options_;
  std::vector<Gpu> gpus_;
};

}  // namespace sluice::ctl
