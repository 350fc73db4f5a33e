// Tests the precision in which a rank multiplies fp32 tensors, on the fakes
// (tests/fake_cuda), with a real sluiced and this process as its ranks. No
// other test shows the precision: the fakes multiply on the CPU, and on a GPU
// TF32 is only less exact. This proves nothing about a GPU.
#include <ATen/Context.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>

#include "client/torch/run/rank_memory.h"
#include "tests/support/child.h"
#include "tests/support/places.h"
#include "tests/support/status_matchers.h"
#include "tests/support/temp_dir.h"

namespace sluice::runtime {
namespace {

using ::sluice::testing::BinaryPath;
using ::sluice::testing::Child;
using ::sluice::testing::IsOk;

// The daemon and this process share one node of the fakes.
class Products : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    directory_ = new testing::TempDir;
    const std::string node = directory_->File("node");
    std::filesystem::create_directory(node);
    setenv("SLUICE_FAKE_CUDA", ("gpus=1,node=" + node).c_str(), 1);
    setenv("LD_LIBRARY_PATH", InBuild("fake_cuda").c_str(),
           1);                                        // for the daemon
    setenv("CUBLAS_WORKSPACE_CONFIG", ":1024:1", 1);  // for a small lease
    std::ofstream(directory_->File("sluiced.toml"))
        << "[device]\ndriver = \"cuda\"\n[http]\nlisten = \"\"\n"
           "[gpus]\naccess = \"any\"\n"
           "[pools]\ngpu_bytes = \"32MiB\"\nhost_bytes = \"64MiB\"\n"
           "extent_bytes = \"4MiB\"\n";
    daemon_ = Child::Spawn({BinaryPath("sluiced"), "--config",
                            directory_->File("sluiced.toml"), "--runtime-dir",
                            directory_->path()});
    ASSERT_TRUE(daemon_->WaitForOutput("sluiced: ready", absl::Seconds(60)));
  }
  static void TearDownTestSuite() {
    daemon_.reset();
    delete directory_;
  }

  static std::unique_ptr<RankMemory> Open(stream::Dtype dtype) {
    auto session =
        client::Session::Open({.socket = directory_->File("session.sock")});
    EXPECT_THAT(session, IsOk());
    auto memory = RankMemory::Open({.session = *std::move(session),
                                    .gpu = {},
                                    .hbm = MiB(16),
                                    .dtype = dtype});
    EXPECT_THAT(memory, IsOk());
    EXPECT_TRUE((*memory)->device().is_cuda());
    EXPECT_THAT((*memory)->Lease(), IsOk());
    return *std::move(memory);
  }
  // Returns the setting that torch checks before each cuBLAS product of fp32
  // tensors.
  static bool Tf32() { return at::globalContext().allowTF32CuBLAS(); }

  static testing::TempDir* directory_;
  static std::unique_ptr<Child> daemon_;
};
testing::TempDir* Products::directory_ = nullptr;
std::unique_ptr<Child> Products::daemon_;

TEST_F(Products, AreTf32OnABf16RankAndIeeeOnAnFp32Rank) {
  ASSERT_FALSE(Tf32());  // torch's default
  for (const auto dtype :
       {stream::Dtype::kBf16, stream::Dtype::kFp32, stream::Dtype::kBf16}) {
    const auto memory = Open(dtype);
    ASSERT_THAT(memory->Arm(), IsOk());
    EXPECT_EQ(Tf32(), dtype == stream::Dtype::kBf16);
  }
}

// A user may allow TF32, with TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1.
TEST_F(Products, AnFp32RankIsIeeeEvenIfTheProcessAllowedTf32) {
  at::globalContext().setAllowTF32CuBLAS(true);
  const auto memory = Open(stream::Dtype::kFp32);
  EXPECT_FALSE(Tf32());
}

}  // namespace
}  // namespace sluice::runtime
