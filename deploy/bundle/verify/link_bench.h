// Allocates memory at both ends of one GPU's link and copies between them, with
// bytes that can be compared.
//
// Thread safety: one owner.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/ctl/bandwidth/copy_flow.h"
#include "kernels/device/driver.h"

namespace sluice::verify {

class LinkBench {
 public:
  // Allocates a small part of the GPU's memory and as much pinned memory of the
  // nearest NUMA node. `driver` must outlive the bench. `name`: the GPU's name
  // in messages, because this process may number GPUs differently.
  static absl::StatusOr<std::unique_ptr<LinkBench>> Open(
      device::Driver& driver, const device::DeviceInfo& gpu, std::string name);
  ~LinkBench();
  LinkBench(const LinkBench&) = delete;

  const device::DeviceInfo& gpu() const { return gpu_; }
  const std::string& name() const { return name_; }
  Bytes copy_size() const { return half_; }
  double pin_seconds_per_gib() const { return pin_seconds_per_gib_; }

  // Writes new bytes to the host's memory and copies them to both halves of the
  // GPU's.
  absl::Status Fill();
  // Returns a flow of copies: of the first half to the GPU, or of the second
  // half to the host.
  std::unique_ptr<ctl::CopyFlow> Flow(device::CopyDirection direction);
  // Checks the copied bytes after Fill and flows: those that arrived at the
  // host if `copied_to_host`, and those on the GPU by copying them back.
  // DataLoss: a byte differs.
  absl::Status Compare(bool copied_to_host);

 private:
  struct Piece {
    device::Memory memory;
    device::Address address = nullptr;
    Bytes size;
  };
  LinkBench(device::Driver& driver, device::DeviceInfo gpu, std::string name)
      : driver_(driver), gpu_(std::move(gpu)), name_(std::move(name)) {}
  absl::Status Make(Piece& piece, device::Placement where, Bytes size);
  void Drop(const Piece& piece);
  absl::Status CopyNow(device::Address to, const std::byte* from,
                       device::CopyDirection direction);
  absl::Status CompareArrived(const char* what) const;

  device::Driver& driver_;
  const device::DeviceInfo gpu_;
  const std::string name_;
  device::Stream stream_;
  Bytes half_;
  Piece on_gpu_, on_host_;
  double pin_seconds_per_gib_ = 0;
  uint8_t seed_ = 0;
};

}  // namespace sluice::verify
