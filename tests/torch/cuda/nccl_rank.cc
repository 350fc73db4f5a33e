// One rank over the real ProcessGroupNCCL of libtorch_cuda, on the fake driver,
// runtime and NCCL, for nccl_ranks_test: RANK FOLDER TORCH_CUDA WHAT.
//
// The process ends by _exit, because torch keeps its streams, events and
// context to the end, which the fakes would report as left behind.
#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "client/torch/ranks/collectives.h"
#include "proto/base/peer_fault.h"
#include "tests/torch/cuda/gpu_memory.h"

namespace c10::cuda::_internal {
void setHasPrimaryContext(bool (*has)(DeviceIndex));
}

namespace sluice::testing {
namespace {

using runtime::Collectives;

constexpr int kRanks = 2;
constexpr int64_t kCount = 1000;

[[noreturn]] void Fail(const std::string& why) {
  std::cerr << why << std::endl;
  _exit(1);
}

void Require(bool condition, const char* what) {
  if (!condition) Fail(what);
}

void Require(const absl::Status& status) {
  if (!status.ok()) Fail(std::string(status.message()));
}

std::string AwaitFile(const std::string& path) {
  for (;;) {
    std::ifstream file(path);
    std::string text;
    if (file >> text) return text;
    usleep(1000);
  }
}

void WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new") << text;
  std::filesystem::rename(path + ".new", path);
}

// A port that rank 0 listens on already.
struct Port {
  int fd = -1;
  int number = 0;
};
Port Listen() {
  Port port{socket(AF_INET, SOCK_STREAM, 0), 0};
  sockaddr_in at = {};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(at);
  auto* const address = reinterpret_cast<sockaddr*>(&at);
  Require(bind(port.fd, address, size) == 0 && listen(port.fd, 8) == 0 &&
              getsockname(port.fd, address, &size) == 0,
          "there is no free port");
  port.number = ntohs(at.sin_port);
  return port;
}

std::vector<std::string> Environment() {
  std::vector<std::string> all;
  for (char** one = environ; *one != nullptr; ++one) all.emplace_back(*one);
  return all;
}

class Rank {
 public:
  Rank(int rank, std::string folder, double timeout_s)
      : rank_(rank),
        folder_(std::move(folder)),
        timeout_s_(timeout_s),
        memory_(std::make_unique<GpuMemory>(rank, kRanks)) {
    c10::cuda::_internal::setHasPrimaryContext(
        [](c10::DeviceIndex) { return true; });
    c10::cuda::set_device(static_cast<c10::DeviceIndex>(rank));
    Connect();
  }

  Collectives& ranks() { return *ranks_; }
  at::Tensor Make(const std::vector<float>& values) {
    const at::Device gpu(at::kCUDA, static_cast<c10::DeviceIndex>(rank_));
    return at::for_blob(memory_->Make(values),
                        {static_cast<int64_t>(values.size())})
        .target_device(gpu)
        .options(at::TensorOptions().dtype(at::kFloat).device(gpu))
        .make_tensor();
  }
  std::vector<float> Read(const at::Tensor& tensor) {
    HostWait();
    return memory_->Read(tensor.data_ptr(),
                         static_cast<size_t>(tensor.numel()));
  }
  static void HostWait() { c10::cuda::getCurrentCUDAStream().synchronize(); }
  std::vector<float> Own() const {
    return std::vector<float>(kCount, 1.0F + static_cast<float>(rank_));
  }

  void Exchange();
  void ExchangeOnHost();
  void ExpectRefusals();
  void AbortFirst();
  void AwaitNobody();
  void AwaitAbort();
  void LeaveBegun();
  void AwaitError();
  void LoseGpu();
  void Die();

 private:
  void Connect() {
    Collectives::Options options{.device = at::kCPU};
    options.rank = rank_;
    options.world_size = kRanks;
    if (rank_ == 0) {
      const Port port = Listen();
      options.master_listen_fd = port.fd;
      options.master_port = port.number;
      WriteFile(folder_ + "/port", std::to_string(port.number));
    } else {
      options.master_port = std::stoi(AwaitFile(folder_ + "/port"));
    }
    auto host = Collectives::Connect(options);
    Require(host.status());
    host_ = *std::move(host);
    const auto none = runtime::ConnectDevice(options, host_.get());
    Require(none.ok() && *none == nullptr,
            "ConnectDevice made ranks for the CPU");
    options.device =
        at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(rank_));
    options.timeout_s = timeout_s_;
    const std::vector<std::string> before = Environment();
    auto connected = runtime::ConnectDevice(options, host_.get());
    Require(connected.status());
    // Other threads may be reading the environment.
    Require(Environment() == before, "the environment has changed");
    ranks_ = *std::move(connected);
    Require(ranks_->Check());  // before there is a communicator
  }

  const int rank_;
  const std::string folder_;
  const double timeout_s_;
  std::unique_ptr<GpuMemory> memory_;
  std::unique_ptr<Collectives> host_, ranks_;
};

// Compares every collective, on the GPU and on the host, with its definition.
void Rank::Exchange() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  Require(Read(sum) == std::vector<float>(kCount, 3), "wrong sum over ranks");
  at::Tensor root = Make(Own());
  Require(ranks_->SumTo(root, 1));
  Require(rank_ == 0 || Read(root) == std::vector<float>(kCount, 3),
          "wrong sum to one rank");
  at::Tensor same = Make(Own());
  Require(ranks_->Broadcast(same, 1));
  Require(Read(same) == std::vector<float>(kCount, 2), "wrong broadcast");
  at::Tensor halves = Make(Own());
  Require(ranks_->BeginSumScatter(halves));
  Require(ranks_->BeginGather(halves));
  Require(ranks_->AwaitBegun());
  Require(Read(halves) == std::vector<float>(kCount, 3),
          "wrong result of reduce-scatter and all-gather");
  // The parts are uneven, and rank 1 sends nothing to itself.
  const std::vector<int64_t> sent = rank_ == 0 ? std::vector<int64_t>{300, 700}
                                               : std::vector<int64_t>{1000, 0};
  const std::vector<int64_t> received = rank_ == 0
                                            ? std::vector<int64_t>{300, 1000}
                                            : std::vector<int64_t>{700, 0};
  const at::Tensor from = Make(Own());
  const at::Tensor to = Make(
      std::vector<float>(static_cast<size_t>(received[0] + received[1]), -1));
  Require(ranks_->AllToAll(to, received, from, sent));
  std::vector<float> expected(static_cast<size_t>(received[0]), 1);
  expected.resize(static_cast<size_t>(received[0] + received[1]), 2);
  Require(Read(to) == expected, "wrong all-to-all");
  ExchangeOnHost();
  ExpectRefusals();
  HostWait();
  Require(ranks_->Check());
  // The current GPU of a new thread is 0.
  std::thread([this] { Require(ranks_->Check()); }).join();
  Require(ranks_->Barrier());
  ranks_.reset();  // the fake NCCL would report an abort here
}

void Rank::ExchangeOnHost() {
  std::vector<float> values(2), received(2);
  at::Tensor host = at::from_blob(values.data(), {2}, at::kFloat);
  const std::vector<float> own = {1.0F + static_cast<float>(rank_), 0};
  values = own;
  Require(ranks_->SumAll(host));
  Require(values[0] == 3, "wrong sum on the host");
  values = own;
  Require(ranks_->Broadcast(host, 1));
  Require(values[0] == 2, "wrong broadcast on the host");
  values = own;
  Require(ranks_->SumTo(host, 1));
  Require(rank_ == 0 || values[0] == 3, "wrong sum to one rank on the host");
  values = own;
  Require(ranks_->AllToAll(at::from_blob(received.data(), {2}, at::kFloat),
                           {1, 1}, host, {1, 1}));
  Require(received == (rank_ == 0 ? std::vector<float>{1, 2}
                                  : std::vector<float>{0, 0}),
          "wrong all-to-all on the host");
}

// All ranks refuse these operations, so none is issued.
void Rank::ExpectRefusals() {
  const auto refused = [](const absl::Status& status, const char* what) {
    Require(status.code() == absl::StatusCode::kInvalidArgument, what);
  };
  std::vector<float> values(kCount);
  at::Tensor strided = Make(Own()).view({10, kCount / 10}).t();
  refused(ranks_->SumAll(strided), "accepted a strided tensor");
  refused(ranks_->AllToAll(at::from_blob(values.data(), {kCount}, at::kFloat),
                           {500, 500}, Make(Own()), {500, 500}),
          "accepted an all-to-all from a GPU to the host");
}

// Without the abort, this rank would make a communicator and wait in it for the
// other rank.
void Rank::AbortFirst() {
  ranks_->Abort("rank 0 of job demo: ended");
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum).code() == absl::StatusCode::kUnavailable,
          "a sum after an abort did not fail");
}

// The other rank never joins the operation that this rank has started.
void Rank::AwaitNobody() {
  at::Tensor sum = Make(Own());
  const absl::Status alone = ranks_->SumAll(sum);
  Require(IsCausedByPeer(alone),
          "a missing rank was not reported as the cause");
  std::cout << alone.message() << std::endl;
}

// The other rank is killed while this rank waits for it on the host. NCCL does
// not report the death; an abort by another thread ends the wait.
void Rank::AwaitAbort() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  HostWait();
  std::thread daemon([this] {
    const std::string why = AwaitFile(folder_ + "/died");
    const auto since = std::chrono::steady_clock::now();
    ranks_->Abort("rank 0 of job demo: " + why);
    const std::chrono::duration<double> took =
        std::chrono::steady_clock::now() - since;
    std::cout << fmt::format("aborted in {:.2f} s", took.count()) << std::endl;
  });
  Require(ranks_->SumAll(sum));
  std::cout << "waits" << std::endl;
  HostWait();
  daemon.join();
  Require(!ranks_->Check().ok(), "Check() reports no abort");
  const absl::Status later = ranks_->SumAll(sum);
  Require(IsCausedByPeer(later),
          "a sum after an abort did not report the abort");
  std::cout << later.message() << std::endl;
  ranks_->Abort("another reason");
  Require(ranks_->Check() == later, "a later reason replaced the first");
}

// The other rank is killed while a sum that this rank has begun waits for it.
// The sum has ended when the stream is idle, so its memory may be unmapped.
void Rank::LeaveBegun() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  HostWait();
  Require(ranks_->BeginSumScatter(sum));
  std::cout << "waits" << std::endl;
  AwaitFile(folder_ + "/died");
  ranks_->Abort("rank 0 of job demo: killed");
  ranks_.reset();
  HostWait();
  memory_.reset();
}

// As between nodes, NCCL itself reports the other rank's death.
void Rank::AwaitError() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  HostWait();
  Require(ranks_->Check());
  Require(ranks_->SumAll(sum));
  std::cout << "waits" << std::endl;
  HostWait();
  const absl::Status ended = ranks_->Check();
  Require(IsCausedByPeer(ended), "the dead rank was not reported as the cause");
  std::cout << ended.message() << std::endl;
  ranks_->Abort("a peer has died");
}

// This rank's GPU is lost, and NCCL is the first to notice.
void Rank::LoseGpu() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  HostWait();
  std::cout << "joined" << std::endl;
  AwaitFile(folder_ + "/lost");
  const absl::Status ended = ranks_->SumAll(sum);
  Require(!ended.ok() && !IsCausedByPeer(ended),
          "a lost GPU was reported as another rank's end");
  std::cout << ended.message() << std::endl;
}

void Rank::Die() {
  at::Tensor sum = Make(Own());
  Require(ranks_->SumAll(sum));
  HostWait();
  std::cout << "joined" << std::endl;
  pause();
}

void Run(int rank, const std::string& folder, const char* torch_cuda,
         const std::string& what) {
  if (dlopen(torch_cuda, RTLD_NOW | RTLD_GLOBAL) == nullptr) Fail(dlerror());
  Rank self(rank, folder, what == "await-nobody" ? 3 : 1800);
  if (what == "exchange") self.Exchange();
  if (what == "abort-first") self.AbortFirst();
  if (what == "await-nobody") self.AwaitNobody();
  if (what == "idle") pause();
  if (what == "await-abort") self.AwaitAbort();
  if (what == "leave-begun") self.LeaveBegun();
  if (what == "await-error") self.AwaitError();
  if (what == "lose-gpu") self.LoseGpu();
  if (what == "die") self.Die();
  const std::string findings = GpuMemory::Findings();
  if (!findings.empty()) Fail(findings);
  std::cout << "done" << std::endl;
  _exit(0);
}

}  // namespace
}  // namespace sluice::testing

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  sluice::runtime::DisableNcclWatchdog();
  sluice::testing::Run(std::atoi(argv[1]), argv[2], argv[3], argv[4]);
}
