// A process with a driver of its own, which the test controls over a socket.
//
// It runs this same binary with --peer, because a forked child of a process
// that has used the CUDA driver cannot use that driver.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device/driver.h"
#include "proto/base/unique_fd.h"
#include "tests/support/child.h"

namespace sluice::device {

class Peer {
 public:
  // `environment` ("NAME=value") is added to the inherited variables.
  static absl::StatusOr<std::unique_ptr<Peer>> Start(
      const std::string& driver, const std::string& directory,
      const std::vector<std::string>& environment = {});

  // Import lets the peer import and map the memory behind `fd`. Create lets the
  // peer create, map and export memory of its own.
  absl::Status Import(const UniqueFd& fd, Placement where, Bytes size);
  absl::StatusOr<UniqueFd> Create(Placement where, Bytes size);
  // Fill writes the pattern of `seed` to the peer's memory. Check returns
  // DataLoss if that memory does not have the pattern.
  absl::Status Fill(int seed);
  absl::Status Check(int seed);
  // Sends SIGKILL, and waits for the peer's end.
  void Kill();

 private:
  Peer(std::unique_ptr<testing::Child> child, UniqueFd socket)
      : child_(std::move(child)), socket_(std::move(socket)) {}
  absl::Status Ask(struct PeerRequest request, int fd = -1,
                   UniqueFd* received = nullptr);

  std::unique_ptr<testing::Child> child_;
  UniqueFd socket_;
};

// The main function of the peer process.
int RunPeer(const std::string& driver, const std::string& directory,
            const std::string& socket);

}  // namespace sluice::device
