// Copies bytes of files and texts to device tensors, and back.
//
// On a GPU a stage is a small piece of pinned host memory, through which bytes
// go piece by piece on torch's current stream; tensors of the CPU need none.
// These copies ask for no bandwidth grant: they carry only a step's ids, and
// checkpoints.
//
// Errors: what the callback returned; torch's exceptions if a copy fails.
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "planner/stream/stream_shape.h"
#include "proto/base/units.h"

namespace sluice::runtime {

class HostStage {
 public:
  // A piece is half of the stage: one half is filled while the other is copied.
  static constexpr Bytes kSize = stream::kHostStageBytes;

  HostStage() = default;  // for tensors of the CPU
  // For tensors of a GPU. `pinned` outlives the stage; `size` is a multiple of
  // 128.
  HostStage(std::byte* pinned, Bytes size);
  // Waits for copies in flight.
  ~HostStage();
  HostStage(const HostStage&) = delete;

  // Passes a contiguous tensor's bytes to `take`, in order, and waits for each
  // piece.
  using Take = std::function<absl::Status(const std::byte* data, Bytes size)>;
  absl::Status Read(const at::Tensor& from, const Take& take);
  // Copies the tensor to host memory of the same size.
  absl::Status Read(const at::Tensor& from, void* to);

  // Fills a contiguous tensor, in order, for later work on torch's current
  // stream. The host waits only if the half to be filled is still being copied,
  // so it does not wait for the first kSize bytes after a wait for the stream.
  using Give = std::function<absl::Status(std::byte* data, Bytes size)>;
  absl::Status Write(const at::Tensor& to, const Give& give);
  // Copies as many bytes of `from` as `to` has.
  absl::Status Write(const at::Tensor& to, const void* from);

 private:
  struct Half {
    std::byte* data = nullptr;
    std::optional<c10::Event> sent;  // unset: no copy in flight
  };
  // Returns the half to use next, once it is free.
  Half& Next();

  Bytes half_;
  std::array<Half, 2> halves_;
  size_t next_ = 0;
};

// Waits until the GPU has completed the work on torch's current stream; returns
// at once on the CPU. The next call to the GPU reports its errors.
void AwaitStream(at::Device device);

}  // namespace sluice::runtime
