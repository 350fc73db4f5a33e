// A process that holds memory of a GPU outside leases, as a context or NCCL's
// buffers do:
//     cuda_holder GPU MIB UNTIL
// It makes MIB mebibytes of memory on the GPU without a session, prints
// "holds", and keeps the memory until the file UNTIL exists.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/time/clock.h"
#include "kernels/device/driver.h"
#include "proto/base/status.h"

namespace sluice::device {
namespace {

absl::Status Hold(DeviceIndex gpu, Bytes size, const std::string& until) {
  SLUICE_ASSIGN_OR_RETURN(const auto driver, OpenCudaDriver());
  SLUICE_ASSIGN_OR_RETURN(const Memory memory,
                          driver->Create(Placement::Gpu(gpu), size));
  std::printf("holds\n");
  std::fflush(stdout);
  while (access(until.c_str(), F_OK) != 0) {
    absl::SleepFor(absl::Milliseconds(5));
  }
  return driver->Release(memory);
}

}  // namespace
}  // namespace sluice::device

int main(int argc, char** argv) {
  if (argc != 4) return 2;
  const absl::Status status = sluice::device::Hold(
      sluice::DeviceIndex(std::strtoull(argv[1], nullptr, 10)),
      sluice::MiB(std::atoi(argv[2])), argv[3]);
  if (status.ok()) return 0;
  std::fprintf(stderr, "error: %s\n", std::string(status.message()).c_str());
  return 1;
}
