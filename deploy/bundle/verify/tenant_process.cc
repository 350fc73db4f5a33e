// The rank's side of Tenant.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/numbers.h"
#include "client/session/session.h"
#include "deploy/bundle/verify/tenant.h"
#include "proto/base/status.h"
#include "proto/base/text.h"

namespace sluice::verify {
namespace {

using client::Region;
using client::Session;
using device::CopyDirection;

constexpr Bytes kTenantHost = MiB(32);
constexpr int kPieces = 16;  // pieces of GPU memory to read back, at most
// A lease may wait this long, because the memory of a killed rank is freed only
// when the kernel has ended it.
constexpr absl::Duration kWait = absl::Seconds(10);

// Sends one line to the process that started this one.
void PrintLine(const std::string& line) {
  std::printf("%s\n", line.c_str());
  std::fflush(stdout);
}

class Holder {
 public:
  static absl::StatusOr<std::unique_ptr<Holder>> Open(
      const client::SessionOptions& options) {
    auto holder = std::make_unique<Holder>();
    SLUICE_ASSIGN_OR_RETURN(holder->session_, Session::Open(options));
    const client::NodeLimits limits = holder->session_->limits();
    SLUICE_ASSIGN_OR_RETURN(holder->gpu_,
                            holder->session_->LeaseGpu(limits.gpu_total));
    SLUICE_ASSIGN_OR_RETURN(holder->host_,
                            holder->session_->LeaseHost(kTenantHost));
    SLUICE_ASSIGN_OR_RETURN(holder->stream_,
                            holder->driver().CreateStream(limits.device));
    return holder;
  }
  ~Holder() {
    if (stream_.value() != 0) driver().DestroyStream(stream_).IgnoreError();
  }

  absl::Status Fill() {
    value_ = static_cast<std::byte>(static_cast<int>(value_) * 5 + 77);
    SLUICE_RETURN_IF_ERROR(
        driver().FillAsync(gpu_->data(), value_, gpu_->size(), stream_));
    return driver().SynchronizeStream(stream_);
  }

  // Compares the first piece, the last one, and some between. DataLoss: a byte
  // differs.
  absl::Status Compare() {
    const Bytes size = std::min(host_->size(), gpu_->size());
    const size_t last = (gpu_->size() - size).size();
    const size_t pieces = std::min<size_t>(kPieces, last / size.size() + 2);
    for (size_t i = 0; i < pieces; ++i) {
      const size_t from = i + 1 == pieces ? last : last / (pieces - 1) * i;
      SLUICE_RETURN_IF_ERROR(ComparePiece(from, size));
    }
    return absl::OkStatus();
  }

 private:
  device::Driver& driver() { return session_->driver(); }

  absl::Status ComparePiece(size_t from, Bytes size) {
    std::fill_n(host_->data(), size.size(), ~value_);
    SLUICE_RETURN_IF_ERROR(
        driver().CopyAsync(host_->data(), gpu_->data() + from, size,
                           CopyDirection::kDeviceToHost, stream_));
    SLUICE_RETURN_IF_ERROR(driver().SynchronizeStream(stream_));
    const std::byte* const end = host_->data() + size.size();
    const std::byte* const wrong =
        std::find_if(static_cast<const std::byte*>(host_->data()), end,
                     [this](std::byte b) { return b != value_; });
    if (wrong == end) return absl::OkStatus();
    return absl::DataLossError(
        fmt::format("byte {} of its {} is not what was written",
                    from + static_cast<size_t>(wrong - host_->data()),
                    FormatBytes(gpu_->size())));
  }

  std::unique_ptr<Session> session_;
  std::unique_ptr<Region> gpu_, host_;
  device::Stream stream_;
  std::byte value_{0};
};

absl::Status Serve(const client::SessionOptions& options) {
  SLUICE_ASSIGN_OR_RETURN(const auto holder, Holder::Open(options));
  SLUICE_RETURN_IF_ERROR(holder->Fill());
  SLUICE_RETURN_IF_ERROR(holder->Compare());
  PrintLine("filled");
  for (char asked; read(STDIN_FILENO, &asked, 1) == 1;) {
    SLUICE_RETURN_IF_ERROR(holder->Compare());
    SLUICE_RETURN_IF_ERROR(holder->Fill());
    SLUICE_RETURN_IF_ERROR(holder->Compare());
    PrintLine("same");
  }
  return absl::OkStatus();
}

}  // namespace

int BeATenant(const std::vector<std::string>& arguments) {
  int gpu = 0, ranks = 0;
  if (arguments.size() != 4 || !absl::SimpleAtoi(arguments[2], &gpu) ||
      !absl::SimpleAtoi(arguments[3], &ranks)) {
    return 2;
  }
  const absl::Status status =
      Serve({.socket = arguments[0],
             .job = arguments[1],
             .rank = Rank(static_cast<uint64_t>(gpu)),
             .world_size = ranks,
             .local_ranks = ranks,
             .gpu = DeviceIndex(static_cast<uint64_t>(gpu)),
             .lease_wait = kWait});
  if (status.ok()) return 0;
  PrintLine(Printable(std::string(status.message())));
  return 1;
}

}  // namespace sluice::verify
