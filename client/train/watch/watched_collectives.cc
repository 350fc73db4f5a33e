#include "client/train/watch/watched_collectives.h"

#include <utility>

namespace sluice::train {
namespace {

class WatchedCollectives final : public runtime::Collectives {
 public:
  WatchedCollectives(std::unique_ptr<runtime::Collectives> real,
                     RankWatch* watch, at::DeviceType device)
      : real_(std::move(real)), watch_(watch), device_(device) {}

  int rank() const override { return real_->rank(); }
  int world_size() const override { return real_->world_size(); }
  absl::Status AllToAll(const at::Tensor& receive,
                        const std::vector<int64_t>& receive_counts,
                        const at::Tensor& send,
                        const std::vector<int64_t>& send_counts) override {
    return Watch("all-to-all", send.device().type(), [&] {
      return real_->AllToAll(receive, receive_counts, send, send_counts);
    });
  }
  absl::Status SumAll(at::Tensor& tensor) override {
    return Watch("sum over ranks", tensor.device().type(),
                 [&] { return real_->SumAll(tensor); });
  }
  absl::Status SumTo(at::Tensor& tensor, int root) override {
    return Watch("sum to one rank", tensor.device().type(),
                 [&] { return real_->SumTo(tensor, root); });
  }
  absl::Status Broadcast(at::Tensor& tensor, int root) override {
    return Watch("broadcast", tensor.device().type(),
                 [&] { return real_->Broadcast(tensor, root); });
  }
  absl::Status BeginSumScatter(at::Tensor& tensor) override {
    return Watch("reduce-scatter", tensor.device().type(),
                 [&] { return real_->BeginSumScatter(tensor); });
  }
  absl::Status BeginGather(at::Tensor& tensor) override {
    return Watch("all-gather", tensor.device().type(),
                 [&] { return real_->BeginGather(tensor); });
  }
  absl::Status AwaitBegun() override { return real_->AwaitBegun(); }
  absl::Status Barrier() override {
    return Watch("barrier", at::kCPU, [&] { return real_->Barrier(); });
  }
  absl::Status Check() override { return real_->Check(); }
  void Abort(const std::string& why) override { real_->Abort(why); }

 private:
  absl::Status Watch(const char* what, at::DeviceType of, auto body) {
    if (of != device_) return body();
    watch_->CollectiveBegan(what);
    const absl::Status status = body();
    watch_->CollectiveEnded();
    return status;
  }

  const std::unique_ptr<runtime::Collectives> real_;
  RankWatch* const watch_;
  const at::DeviceType device_;
};

}  // namespace

std::unique_ptr<runtime::Collectives> Watched(
    std::unique_ptr<runtime::Collectives> collectives, RankWatch* watch,
    at::DeviceType device) {
  return std::make_unique<WatchedCollectives>(std::move(collectives), watch,
                                              device);
}

}  // namespace sluice::train
