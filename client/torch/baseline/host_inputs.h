// Keeps the inputs of alst's layers in leased host memory, copied by the rank's
// engine.
//
//   forward   Save(i, x) starts the copy out; AwaitSaved before x is written
//   backward  Fetch(i) starts the copy in, as early as there is room for it;
//             Take(i) waits and returns the tensor
//
// Keeps every tensor alive that a copy reads or writes, so that its memory is
// not reused. Settle waits for these copies after a failed step.
//
// Thread safety: the compute thread only.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/copy/copy_engine.h"

namespace sluice::runtime {

class HostInputs {
 public:
  struct Options {
    int64_t layers = 0, rows = 0, hidden = 0;  // rows: of this rank
    at::ScalarType dtype = at::kFloat;
    at::Device device;                     // of the fetched inputs
    client::CopyEngine* copies = nullptr;  // outlives the inputs
    std::byte* host = nullptr;             // leased, HostBytes; outlives it
    Bytes host_size;
  };
  // Returns the host memory that a step needs, to the byte.
  static Bytes HostBytes(const Options& options);
  // ResourceExhausted: `host_size` is less than HostBytes.
  static absl::StatusOr<std::unique_ptr<HostInputs>> Create(
      const Options& options);
  ~HostInputs() { Settle(); }
  HostInputs(const HostInputs&) = delete;

  // Starts the copy out of `x`, which is [rows, hidden] and contiguous.
  void Save(int64_t layer, const at::Tensor& x);
  absl::Status AwaitSaved();

  // Does nothing if the copy has begun. May throw c10::OutOfMemoryError.
  void Fetch(int64_t layer);
  absl::StatusOr<at::Tensor> Take(int64_t layer);

  void Settle();

 private:
  explicit HostInputs(const Options& options)
      : options_(options), stored_(options.layers) {}
  std::byte* HostOf(int64_t layer) const;

  struct Stored {
    client::Ticket written, read;
  };
  struct InFlight {
    int64_t layer;
    at::Tensor tensor;
  };

  const Options options_;
  std::vector<Stored> stored_;
  std::optional<InFlight> leaving_, arriving_;
};

}  // namespace sluice::runtime
