// How bytes of files and texts reach device tensors, and come back.
//
// On sim device tensors are host memory, and a stage does nothing. A GPU's
// memory faults when the CPU touches it: there a stage is a small piece of
// pinned host memory, through which bytes go piece by piece on torch's current
// stream. So nothing pageable is copied, and host memory of no tensor's size is
// needed. These copies ask for no grant of bandwidth: they are ids of a step,
// and checkpoints.
//
// Errors: what the callback returned; torch's exceptions where a copy fails.
// Thread safety: one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <array>
#include <cstddef>
#include <functional>
#include <optional>

#include "absl/status/status.h"
#include "planner/stream/host_stage.h"
#include "proto/base/units.h"

namespace sluice::runtime {

class HostStage {
 public:
  // A piece is half of it: one is filled while the other travels.
  static constexpr Bytes kSize = stream::kHostStageBytes;

  HostStage() = default;  // of tensors that are the CPU's
  // Of a GPU's. `pinned` outlives it, `size` is a multiple of 128.
  HostStage(std::byte* pinned, Bytes size);
  // Waits for what travels.
  ~HostStage();
  HostStage(const HostStage&) = delete;

  // The bytes of a contiguous tensor, in order; waits for each piece.
  using Take = std::function<absl::Status(const std::byte* data, Bytes size)>;
  absl::Status Read(const at::Tensor& from, const Take& take);
  // To host memory of as many bytes.
  absl::Status Read(const at::Tensor& from, void* to);

  // Fills a contiguous tensor, in order. Its uses on torch's current stream
  // come after; the host waits only where a piece's place in the stage still
  // travels, so not within the first kSize after a wait for the stream.
  using Give = std::function<absl::Status(std::byte* data, Bytes size)>;
  absl::Status Write(const at::Tensor& to, const Give& give);
  // As many bytes of `from` as `to` has.
  absl::Status Write(const at::Tensor& to, const void* from);

 private:
  struct Half {
    std::byte* data = nullptr;
    std::optional<c10::Event> sent;  // none: nothing travels from here
  };
  // The half to use next, free.
  Half& Next();

  Bytes half_;
  std::array<Half, 2> halves_;
  size_t next_ = 0;
};

// Waits until the GPU has done what torch's current stream has; the CPU has.
// Errors of the GPU are reported by the next call to it.
void AwaitStream(at::Device device);

}  // namespace sluice::runtime
