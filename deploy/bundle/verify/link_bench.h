// Memory at both ends of one GPU's link, and copies between them with bytes
// that can be compared.
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
  // A little of the GPU's memory, and as much pinned memory of the node that is
  // near it. `driver` outlives the bench. `name` is the GPU's in messages: this
  // process may count others.
  static absl::StatusOr<std::unique_ptr<LinkBench>> Open(
      device::Driver& driver, const device::DeviceInfo& gpu, std::string name);
  ~LinkBench();
  LinkBench(const LinkBench&) = delete;

  const device::DeviceInfo& gpu() const { return gpu_; }
  const std::string& name() const { return name_; }
  Bytes copy_size() const { return half_; }
  double pin_seconds_per_gib() const { return pin_seconds_per_gib_; }

  // New bytes at the host's end, and by a copy in both halves of the GPU's.
  absl::Status Fill();
  // One half is copied to the GPU, the other one to the host.
  std::unique_ptr<ctl::CopyFlow> Flow(device::CopyDirection direction);
  // DataLoss: after Fill and flows, a copied byte differs, or does when it is
  // copied back.
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
