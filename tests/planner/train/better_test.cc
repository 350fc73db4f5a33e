// Tests that a better machine, or more GPUs, never get a worse answer. Requests
// are random: --gtest_shuffle --gtest_random_seed=N draws others.
#include <random>

#include "planner/train/search.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

constexpr int kQuestions = 300;

class Draw {
 public:
  explicit Draw(uint64_t seed) : random_(seed) {}
  template <typename T>
  T OneOf(const std::vector<T>& of) {
    return of[std::uniform_int_distribution<size_t>(0, of.size() - 1)(random_)];
  }
  double Factor() {
    return std::uniform_real_distribution<double>(1.02, 3)(random_);
  }
  Request Question() {
    Request request{.model = *FindModel(OneOf(ModelNames())),
                    .hardware = *FindHardware(OneOf(HardwareNames())),
                    .method = OneOf(std::vector<Method>(std::begin(kMethods),
                                                        std::end(kMethods))),
                    .gpus = OneOf<int64_t>({1, 2, 4, 6, 8, 16, 24, 64, 128}),
                    .seq_len = OneOf<int64_t>({16, 64, 100, 512, 1000, 6000}),
                    .global_batch = OneOf<int64_t>({1, 4, 12, 16, 32})};
    request.seq_len <<= 10;
    // kSluice refuses mixtures of experts.
    if (request.method == Method::kSluice) request.model.experts = 0;
    if (request.method == Method::kSluice) request.model.active_experts = 0;
    // Draws machines unlike the shipped ones, so that other limits bind.
    for (double* amount : Amounts(request.hardware)) *amount *= Factor() / 2;
    return request;
  }
  int64_t Gpus(int64_t least) {
    return std::uniform_int_distribution<int64_t>(least, 64)(random_);
  }
  // Improves one kind of resource: one of the kind's figures, or all.
  void Better(Hardware& hardware) {
    const std::vector<double*> all = Amounts(hardware);
    const int kind = OneOf<int>({0, 1, 2, 3});
    better_ = std::vector<std::string>{"GPU memory", "host memory", "GPU speed",
                                       "links"}[size_t(kind)];
    const std::pair<size_t, size_t> of[] = {{0, 1}, {1, 2}, {2, 4}, {4, 8}};
    const auto [first, end] = of[kind];
    const size_t only = OneOf<size_t>({0, first, end - 1});  // 0: all of them
    for (size_t i = first; i < end; ++i) {
      if (only == 0 || only == i) *all[i] *= Factor();
    }
  }

  const std::string& better() const { return better_; }

 private:
  static std::vector<double*> Amounts(Hardware& hardware) {
    return {&hardware.memory_bytes,
            &hardware.host_memory_bytes,
            &hardware.peak_flops,
            &hardware.memory_bytes_per_s,
            &hardware.host_link_bytes_per_s,
            &hardware.gpu_link_bytes_per_s,
            &hardware.network_bytes_per_s,
            &hardware.ring_bytes_per_s};
  }
  std::mt19937_64 random_;
  std::string better_;
};

std::string Words(const Request& request) {
  return std::string(MethodName(request.method)) + ", " + request.model.name +
         " on " + std::to_string(request.gpus) + " x " + request.hardware.name +
         ", " + TokensText(request.seq_len) + " x " +
         std::to_string(request.global_batch);
}

uint64_t Seed() {
  return uint64_t(::testing::UnitTest::GetInstance()->random_seed()) + 38;
}

void ExpectNoWorse(const Request& before, const Request& after,
                   const std::string& better) {
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate one, BestEstimate(before, {}));
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate other, BestEstimate(after, {}));
  EXPECT_LE(other.settings.gpus(), after.gpus);
  if (!one.fits) return;
  EXPECT_TRUE(other.fits) << Words(before) << ", better " << better;
  EXPECT_LE(other.step_s, one.step_s * (1 + 1e-9))
      << Words(before) << ", better " << better;
}

TEST(BetterMachine, NeverGetsAWorseAnswer) {
  Draw draw(Seed());
  for (int i = 0; i < kQuestions; ++i) {
    const Request before = draw.Question();
    Request after = before;
    draw.Better(after.hardware);
    ExpectNoWorse(before, after, draw.better());
  }
}

TEST(BetterMachine, WithMoreGpusNeverGetsAWorseAnswer) {
  Draw draw(Seed());
  for (int i = 0; i < kQuestions; ++i) {
    Request before = draw.Question();
    before.gpus = draw.Gpus(1);
    Request after = before;
    after.gpus = draw.Gpus(before.gpus);
    ExpectNoWorse(before, after, std::to_string(after.gpus) + " GPUs");
  }
}

}  // namespace
}  // namespace sluice::planner::train
