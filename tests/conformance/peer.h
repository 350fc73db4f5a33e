// Another process with the same driver, told what to do over a socket.
//
// It is this binary again, started with --peer: a forked child of a process
// that has used the CUDA driver could not use it.
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
  // `environment` ("NAME=value") is added to this process's.
  static absl::StatusOr<std::unique_ptr<Peer>> Start(
      const std::string& driver, const std::string& directory,
      const std::vector<std::string>& environment = {});

  // The peer imports and maps the memory behind `fd`; or creates, maps and
  // exports memory of its own.
  absl::Status Import(const UniqueFd& fd, Placement where, Bytes size);
  absl::StatusOr<UniqueFd> Create(Placement where, Bytes size);
  // On the memory it has: writes the pattern of `seed`, or compares with it
  // (DataLoss where it differs).
  absl::Status Fill(int seed);
  absl::Status Check(int seed);
  // SIGKILL, and waits until it is gone.
  void Kill();

 private:
  Peer(std::unique_ptr<testing::Child> child, UniqueFd socket)
      : child_(std::move(child)), socket_(std::move(socket)) {}
  absl::Status Ask(struct PeerRequest request, int fd = -1,
                   UniqueFd* received = nullptr);

  std::unique_ptr<testing::Child> child_;
  UniqueFd socket_;
};

// Main of the peer process: driver, directory, socket path.
int RunPeer(const std::string& driver, const std::string& directory,
            const std::string& socket);

}  // namespace sluice::device
