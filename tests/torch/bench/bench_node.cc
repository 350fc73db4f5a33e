#include "tests/torch/bench/bench_node.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "proto/base/status.h"

namespace sluice::bench {
namespace {

constexpr char kLink[] = "pcie0";

std::unique_ptr<device::SimNode> MakeNode(const std::string& directory) {
  SLUICE_CHECK_OK(
      device::CreateSimNode(directory, {.gpus = {{MiB(1), kLink, NumaIndex(0)}},
                                        .links = {{kLink, 0, 0}},
                                        .host_memory = MiB(1)}));
  auto node = device::SimNode::Open(directory);
  SLUICE_CHECK_OK(node.status());
  return *std::move(node);
}

}  // namespace

Memory::Memory(Bytes size)
    : size_(RoundUp(size, KiB(4))),
      data_(static_cast<std::byte*>(std::aligned_alloc(4096, size_.size()))) {
  SLUICE_CHECK(data_ != nullptr);
  std::memset(data_.get(), 0, size_.size());  // no page fault is measured
}

Node::Node(Bytes hbm)
    : node_(MakeNode(directory_.path())),
      hbm_(hbm),
      allocator_(at::kCPU, hbm_.data(), hbm_.size()) {
  auto driver = device::OpenSimDriver(directory_.path());
  SLUICE_CHECK_OK(driver.status());
  driver_ = *std::move(driver);
  auto engine = client::CopyEngine::Start({.driver = driver_.get()});
  SLUICE_CHECK_OK(engine.status());
  engine_ = *std::move(engine);
  allocator_.Arm();
}

Node::~Node() { allocator_.Disarm(); }

void Node::SetLinkSpeed(double bytes_per_second) {
  SLUICE_CHECK_OK(
      node_->SetLinkSpeed(kLink, bytes_per_second, bytes_per_second));
}

double Seconds(const std::function<void()>& body) {
  const auto begin = std::chrono::steady_clock::now();
  body();
  const std::chrono::duration<double> took =
      std::chrono::steady_clock::now() - begin;
  return took.count();
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int ComputeThreads() {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::max(1, cores - 1);
}

}  // namespace sluice::bench
