#include "planner/train/settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "proto/base/sizes.h"
#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

bool TensorParallel(Method method) {
  return method == Method::kMegatron || method == Method::kMemo;
}

// The ZeRO stages to try where none is given, of equal ones the first. `alst`:
// its recipes' own. `sluice`: what needs least first, as host memory can end
// the search (search.cc). The machine whose allocator was observed is the one
// that Megatron-LM and MEMO were measured on, with stage 1: others would be no
// rows of those tables.
std::vector<int> Stages(const Request& request) {
  if (request.method == Method::kAlst) return {3};
  const bool as_published = TensorParallel(request.method) &&
                            request.hardware.reorganisation_s_per_byte > 0;
  if (as_published || request.gpus == 1) return {1};
  if (request.method == Method::kSluice) return {3, 2, 1};
  return {1, 2, 3};
}

bool Allows(const std::optional<int64_t>& given, int64_t value) {
  return !given || *given == value;
}

// FPDT's table has 40 and 56 heads at batch 1 on any number of GPUs, so its
// all-to-all takes uneven heads.
bool HeadsDivide(const Request& request, const Settings& s) {
  if (request.method == Method::kFpdt) return s.sp <= request.model.heads;
  return request.model.heads % (s.tp * s.sp) == 0;
}

class Enumeration {
 public:
  Enumeration(const Request& request, const GivenSettings& given)
      : request_(request), given_(given) {}

  std::vector<Settings> All() {
    const std::vector<int64_t> divisors = Divisors(request_.gpus);
    const bool tensor = TensorParallel(request_.method);
    for (const int64_t first : divisors) {
      for (const int64_t cp : divisors) {
        for (const int64_t pp : divisors) {
          if (!tensor && (cp > 1 || pp > 1)) continue;
          Settings s;
          (tensor ? s.tp : s.sp) = first;
          s.cp = cp;
          s.pp = pp;
          Try(s);
        }
      }
    }
    return std::move(found_);
  }

 private:
  void Try(Settings s) {
    const int64_t used = s.tp * s.cp * s.sp * s.pp;
    if (request_.gpus % used != 0) return;
    s.dp = request_.gpus / used;
    if (request_.global_batch % s.dp != 0) return;
    // Stages may be uneven (126 layers on 4: 32, 32, 31, 31); none is empty.
    if (s.pp > request_.model.layers) return;
    if (!Allows(given_.tp, s.tp) || !Allows(given_.cp, s.cp) ||
        !Allows(given_.sp, s.sp) || !Allows(given_.dp, s.dp) ||
        !Allows(given_.pp, s.pp)) {
      return;
    }
    s.alpha = given_.alpha.value_or(0);
    s.chunk = given_.chunk.value_or(0);
    // A rank without a row of a chunk is none.
    if (s.chunk > 0 && s.chunk < s.sp) return;
    s.memory_plan = given_.memory_plan.value_or(
        request_.method == Method::kMemo || request_.method == Method::kSluice);
    if (given_.zero) {
      s.zero = int(*given_.zero);
      found_.push_back(s);
      return;
    }
    for (const int stage : Stages(request_)) {
      // No framework shards gradients or weights inside a pipeline.
      if (stage > 1 && s.pp > 1) continue;
      s.zero = stage;
      found_.push_back(s);
    }
  }

  const Request& request_;
  const GivenSettings& given_;
  std::vector<Settings> found_;
};

absl::Status Check(const char* flag, int64_t value, int64_t least,
                   int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{} is {}; it must be {} to {}", flag, value, least, most));
}

// Degrees of the other kind of parallelism.
absl::Status CheckKind(const Request& request, const GivenSettings& given) {
  const bool tensor = TensorParallel(request.method);
  const std::pair<const char*, std::optional<int64_t>> foreign[] = {
      {"--sp", tensor ? given.sp : std::nullopt},
      {"--tp", tensor ? std::nullopt : given.tp},
      {"--cp", tensor ? std::nullopt : given.cp},
      {"--pp", tensor ? std::nullopt : given.pp}};
  for (const auto& [flag, value] : foreign) {
    if (value.value_or(1) == 1) continue;
    return absl::InvalidArgumentError(
        fmt::format("{} is {}; method {} has none: give {}", flag, *value,
                    MethodName(request.method),
                    tensor ? "--tp --cp --dp --pp" : "--sp --dp"));
  }
  if (given.alpha && request.method != Method::kMemo &&
      request.method != Method::kSluice) {
    return absl::InvalidArgumentError(
        fmt::format("--alpha: method {} swaps nothing by tokens; memo and "
                    "sluice do",
                    MethodName(request.method)));
  }
  if (given.chunk && request.method != Method::kFpdt &&
      request.method != Method::kSluice) {
    return absl::InvalidArgumentError(
        fmt::format("--chunk: method {} has no chunks; fpdt and sluice do",
                    MethodName(request.method)));
  }
  return absl::OkStatus();
}

}  // namespace

std::vector<int64_t> Divisors(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 1; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return divisors;
}

std::string_view MethodName(Method method) {
  switch (method) {
    case Method::kMegatron:
      return "megatron";
    case Method::kUlysses:
      return "ulysses";
    case Method::kMemo:
      return "memo";
    case Method::kFpdt:
      return "fpdt";
    case Method::kAlst:
      return "alst";
    case Method::kSluice:
      return "sluice";
  }
  return "";
}

absl::StatusOr<Method> FindMethod(std::string_view name) {
  for (const Method method : kMethods) {
    if (MethodName(method) == name) return method;
  }
  return absl::InvalidArgumentError(fmt::format(
      "no method '{}'; there are megatron ulysses memo fpdt alst sluice",
      name));
}

absl::Status Validate(const Request& request, const GivenSettings& given) {
  if (absl::Status s = request.model.Validate(); !s.ok()) return s;
  constexpr int64_t kMostGpus = 1 << 16;
  // Of fewer rows the kernels' efficiencies say nothing.
  constexpr int64_t kLeastChunk = 128;
  const std::tuple<const char*, int64_t, int64_t, int64_t> whole[] = {
      {"--gpus", request.gpus, 1, kMostGpus},
      {"--seq-len", request.seq_len, 1, int64_t{1} << 30},
      {"--global-batch", request.global_batch, 1, 1 << 20},
      {"--tp", given.tp.value_or(1), 1, kMostGpus},
      {"--cp", given.cp.value_or(1), 1, kMostGpus},
      {"--sp", given.sp.value_or(1), 1, kMostGpus},
      {"--dp", given.dp.value_or(1), 1, kMostGpus},
      {"--pp", given.pp.value_or(1), 1, kMostGpus},
      {"--zero", given.zero.value_or(1), 0, 3},
      {"--chunk", given.chunk.value_or(kLeastChunk), kLeastChunk,
       int64_t{1} << 30}};
  for (const auto& [flag, value, least, most] : whole) {
    if (absl::Status s = Check(flag, value, least, most); !s.ok()) return s;
  }
  const double alpha = given.alpha.value_or(0);
  if (!(alpha >= 0 && alpha <= 1)) {
    return absl::InvalidArgumentError(
        fmt::format("--alpha is {}; it must be 0 to 1", alpha));
  }
  return CheckKind(request, given);
}

std::optional<int64_t> BatchThatDivides(const Request& request,
                                        const GivenSettings& given) {
  std::optional<int64_t> fewest;
  Request tried = request;
  for (const int64_t dp : Divisors(request.gpus)) {
    tried.global_batch = (request.global_batch + dp - 1) / dp * dp;
    if (fewest && tried.global_batch >= *fewest) continue;
    const std::vector<Settings> all = Enumeration(tried, given).All();
    if (std::ranges::any_of(
            all, [&](const Settings& s) { return HeadsDivide(tried, s); })) {
      fewest = tried.global_batch;
    }
  }
  return fewest;
}

absl::StatusOr<std::vector<Settings>> Candidates(const Request& request,
                                                 const GivenSettings& given,
                                                 bool* no_heads) {
  std::vector<Settings> all = Enumeration(request, given).All();
  if (all.empty()) {
    return absl::InvalidArgumentError(fmt::format(
        "no settings of {} use all {} GPUs with what is given: degrees must "
        "multiply to {}, dp divide the global batch of {}, pp be at most {} "
        "layers",
        MethodName(request.method), request.gpus, request.gpus,
        request.global_batch, request.model.layers));
  }
  std::vector<Settings> dividing;
  std::copy_if(all.begin(), all.end(), std::back_inserter(dividing),
               [&](const Settings& s) { return HeadsDivide(request, s); });
  *no_heads = dividing.empty();
  return dividing.empty() ? all : dividing;
}

absl::StatusOr<int64_t> ParseTokens(std::string_view text) {
  const auto count = ParseCount(text);
  if (!count.ok()) return count.status();
  if (*count < 1 || *count > int64_t{1} << 30) {
    return absl::InvalidArgumentError(
        fmt::format("'{}' tokens: give 1 to 1024M", text));
  }
  return count;
}

std::string TokensText(int64_t tokens) {
  if (tokens == 0) return "0";
  if (tokens % (1 << 20) == 0) return fmt::format("{}M", tokens >> 20);
  if (tokens % (1 << 10) == 0) return fmt::format("{}K", tokens >> 10);
  return fmt::format("{}", tokens);
}

}  // namespace sluice::planner::train
