// Measures how fast copies of several GPUs go at the same time, as an ordinary
// rank makes them: in leased memory, through the device seam. The copies do not
// wait for grants.
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
    std::vector<int64_t> gpu_free;  // bytes, by GPU
    // over which a number is averaged
    absl::Duration window = absl::Seconds(1);
  };

  // Attaches as one rank per GPU, and leases a little of each GPU and of the
  // host memory near it until it is destroyed. Errors are those of
  // Session::Open and of leases, with the GPU.
  static absl::StatusOr<std::unique_ptr<CopyMeter>> Open(Options options);

  // Returns sums over `gpus`, which all copy as fast as they can.
  absl::StatusOr<MeasuredSpeeds> Measure(const std::vector<size_t>& gpus);

  // The job name of its ranks, unique to this process.
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
