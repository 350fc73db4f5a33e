// Tests that remedies make a request fit, why GPUs stay idle, and which
// published tables an estimate names as evidence.
#include <ctime>

#include "planner/train/published.h"
#include "planner/train/search.h"
#include "tests/support/status_matchers.h"

namespace sluice::planner::train {
namespace {

constexpr int64_t kKibiTokens = 1 << 10;

Request AskForRemedy(const char* model, const char* hardware, Method method,
                     int64_t gpus, int64_t seq_len) {
  return {.model = *FindModel(model),
          .hardware = *FindHardware(hardware),
          .method = method,
          .gpus = gpus,
          .seq_len = seq_len};
}

// Applies the remedy to the request and the settings.
void Apply(const Remedy& remedy, Request& request, GivenSettings& given) {
  for (const std::string& flag : remedy.without) {
    if (flag == "--tp") given.tp.reset();
    if (flag == "--cp") given.cp.reset();
    if (flag == "--sp") given.sp.reset();
    if (flag == "--zero") given.zero.reset();
    if (flag == "--alpha") given.alpha.reset();
    if (flag == "--chunk") given.chunk.reset();
  }
  if (remedy.flag == "--zero") given.zero = 3;
  if (remedy.flag == "--method") request.method = *FindMethod(remedy.value);
  if (remedy.flag == "--seq-len") request.seq_len = *ParseTokens(remedy.value);
  if (remedy.flag == "--gpus") request.gpus = std::stoll(remedy.value);
  if (remedy.flag == "--global-batch") {
    request.global_batch = std::stoll(remedy.value);
  }
}

TEST(TrainRemedy, EveryRemedyMakesTheRequestFit) {
  GivenSettings tensor;
  tensor.tp = 4;
  tensor.cp = 2;
  GivenSettings whole;
  whole.zero = 1;
  GivenSettings chunked;
  chunked.chunk = kKibiTokens;
  const std::pair<Request, GivenSettings> cases[] = {
      {AskForRemedy("llama-70b", "h100-80g", Method::kSluice, 32,
                    8192 * kKibiTokens),
       {}},
      {AskForRemedy("llama-70b", "h100-80g", Method::kSluice, 32,
                    256 * kKibiTokens),
       whole},
      {AskForRemedy("gpt-7b", "a800-80g", Method::kMegatron, 8,
                    1024 * kKibiTokens),
       tensor},
      {AskForRemedy("llama-8b", "h100-80g", Method::kUlysses, 8,
                    512 * kKibiTokens),
       {}},
      {AskForRemedy("llama-8b", "h100-80g", Method::kSluice, 8,
                    16384 * kKibiTokens),
       chunked}};
  for (const auto& [request, given] : cases) {
    SLUICE_ASSERT_OK_AND_ASSIGN(const auto remedies,
                                FindRemedies(request, given));
    EXPECT_FALSE(remedies.empty());
    for (const Remedy& remedy : remedies) {
      Request changed = request;
      GivenSettings rest = given;
      Apply(remedy, changed, rest);
      SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate estimate,
                                  BestEstimate(changed, rest));
      EXPECT_TRUE(estimate.fits) << remedy.Text();
    }
  }
}

// The model has 40 heads. Doubling or halving 16 GPUs never gives 20.
TEST(TrainRemedy, NumbersOfGpusThatDivideTheHeadsAreTried) {
  const auto gpus = [](int64_t given, int64_t seq_len) {
    Request request =
        AskForRemedy("gpt-13b", "h100-80g", Method::kSluice, given, seq_len);
    request.global_batch = 1;
    const auto remedies = FindRemedies(request, {});
    std::vector<std::string> numbers;
    for (const Remedy& remedy : *remedies) {
      if (remedy.flag == "--gpus") numbers.push_back(remedy.value);
    }
    return numbers;
  };
  EXPECT_THAT(gpus(10, 18432 * kKibiTokens), ::testing::ElementsAre("40"));
  EXPECT_THAT(gpus(16, 16896 * kKibiTokens), ::testing::ElementsAre("20"));
  EXPECT_THAT(gpus(16, 17408 * kKibiTokens), ::testing::ElementsAre("32"));
}

// The search must skip settings that divide the GPUs in an impossible way.
TEST(TrainRemedy, ARefusalForAThousandGpusTakesLittleTime) {
  for (const int64_t sequences : {16, 720, 1024}) {
    Request request = AskForRemedy("llama-70b", "h100-80g", Method::kSluice,
                                   1024, 64 * 1024 * kKibiTokens);
    request.global_batch = sequences;
    const std::clock_t start = std::clock();
    EXPECT_THAT(FindRemedies(request, {}), ::sluice::testing::IsOk());
    EXPECT_LT(std::clock() - start, 2 * CLOCKS_PER_SEC);  // of CPU time
  }
}

// A further rank slows the step if it adds more network time than it saves
// compute time.
TEST(TrainRemedy, GpusThatMakeNothingFasterStayIdle) {
  Request request = AskForRemedy("gpt-2.7b", "h100-80g", Method::kUlysses, 16,
                                 16 * kKibiTokens);
  request.global_batch = 1;
  request.hardware.network_bytes_per_s = 1e9;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate best, BestEstimate(request, {}));
  ASSERT_TRUE(best.fits);
  EXPECT_EQ(best.settings.gpus(), 8);
  const IdleGpus idle = WhyIdle(request, {}, best);
  EXPECT_EQ(idle.gpus, 8);
  EXPECT_FALSE(idle.by_heads);
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate all,
                              BestEstimate(request, {.sp = 16}));
  EXPECT_GT(all.step_s, best.step_s);
  request.gpus = 8;
  SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate eight, BestEstimate(request, {}));
  EXPECT_EQ(best.step_s, eight.step_s);
  EXPECT_EQ(WhyIdle(request, {}, eight).gpus, 0);
}

// 37 sequences would divide among 37 GPUs, but that is no faster.
TEST(TrainRemedy, SequencesThatPutIdleGpusToUseAreNamedOnlyIfTheyDo) {
  for (const int64_t gpus : {37, 12}) {
    Request request = AskForRemedy("mistral-7b", "a800-80g", Method::kUpipe,
                                   gpus, 1536 * kKibiTokens);
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate some, BestEstimate(request, {}));
    const IdleGpus idle = WhyIdle(request, {}, some);
    if (!idle.batch) continue;
    request.global_batch = *idle.batch;
    SLUICE_ASSERT_OK_AND_ASSIGN(const Estimate all, BestEstimate(request, {}));
    EXPECT_EQ(all.settings.gpus(), gpus);
  }
}

TEST(TrainRemedy, FreeSettingsDropNoKeepToo) {
  Request request = AskForRemedy("llama-8b", "h100-80g", Method::kSluice, 1,
                                 512 * kKibiTokens);
  const GivenSettings given = {.keep = false, .chunk = 4096 * kKibiTokens};
  SLUICE_ASSERT_OK_AND_ASSIGN(const auto remedies,
                              FindRemedies(request, given));
  ASSERT_FALSE(remedies.empty());
  EXPECT_THAT(remedies[0].without, ::testing::Contains("--no-keep"));
}

TEST(TrainRemedy, ARequestThatFitsHasNoRemedies) {
  SLUICE_ASSERT_OK_AND_ASSIGN(
      const auto remedies,
      FindRemedies(AskForRemedy("gpt-7b", "a800-80g", Method::kMemo, 8,
                                64 * kKibiTokens),
                   {}));
  EXPECT_TRUE(remedies.empty());
}

TEST(TrainEvidence, FollowsFromTheTablesAndTheMachineTheyWereMeasuredOn) {
  const auto evidence = [](const char* hardware, Method method) {
    return EvidenceOf(
        AskForRemedy("gpt-7b", hardware, method, 8, 64 * kKibiTokens));
  };
  for (const Method method :
       {Method::kMegatron, Method::kUlysses, Method::kMemo}) {
    EXPECT_EQ(evidence("a800-80g", method).speed, "MEMO, tables 3 to 7");
    EXPECT_EQ(evidence("dgx-a100", method).memory, "");
  }
  EXPECT_EQ(evidence("h100-80g", Method::kMemo).speed, "");
  EXPECT_EQ(evidence("h100-80g", Method::kMegatron).speed, "Megatron, Llama 3");
  EXPECT_EQ(evidence("h100-80g", Method::kUpipe).memory, "UPipe");
  EXPECT_EQ(evidence("dgx-a100", Method::kRing).speed, "TorchTitan");
  EXPECT_EQ(evidence("h100-80g", Method::kAlst).memory, "");
  EXPECT_EQ(evidence("fpdt-a100-80g", Method::kFpdt).memory, "FPDT, table 1");
  EXPECT_EQ(evidence("fpdt-a100-80g", Method::kFpdt).speed, "");
  EXPECT_EQ(evidence("a800-80g", Method::kSluice).speed, "");
  // A changed profile is another machine.
  Request changed =
      AskForRemedy("gpt-7b", "a800-80g", Method::kMemo, 8, 64 * kKibiTokens);
  changed.hardware.network_bytes_per_s *= 2;
  EXPECT_EQ(EvidenceOf(changed).speed, "");
}

}  // namespace
}  // namespace sluice::planner::train
