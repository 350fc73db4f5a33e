#include <string>

#include "gtest/gtest.h"
#include "kernels/device/sim/sim.h"
#include "tests/conformance/fixture.h"
#include "tests/conformance/peer.h"

namespace sluice::device {

absl::StatusOr<std::unique_ptr<Driver>> OpenDriver(
    const std::string& name, const std::string& directory) {
  return name == "sim" ? OpenSimDriver(directory) : OpenCudaDriver();
}

void Conformance::SetUp() {
  if (GetParam() == "sim") {
    const SimConfig config = {
        .gpus = {{MiB(16), "pcie0", NumaIndex(0)},
                 {MiB(16), "pcie1", NumaIndex(0)}},
        .links = {{"pcie0", 200e6, 200e6}, {"pcie1", 200e6, 200e6}},
        .host_memory = MiB(16)};
    ASSERT_THAT(CreateSimNode(directory_.path(), config), testing::IsOk());
  }
  auto driver = OpenDriver(GetParam(), directory_.path());
  if (GetParam() == "cuda" && !driver.ok()) {
    GTEST_SKIP() << "cuda: " << driver.status().message();
  }
  ASSERT_THAT(driver, testing::IsOk());
  driver_ = *std::move(driver);
}

}  // namespace sluice::device

int main(int argc, char** argv) {
  if (argc == 5 && std::string(argv[1]) == "--peer") {
    return sluice::device::RunPeer(argv[2], argv[3], argv[4]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
