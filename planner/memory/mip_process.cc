#include "planner/memory/mip_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/base/spawn.h"
#include "proto/base/whole_io.h"

namespace sluice::planner {
namespace {

// The question is kMagic, the time limit in ms, unit, bound, n, then lower,
// upper, size and start of each item. The answer is kMagic, bound, n or 0, then
// offsets. Both processes run the same build. Question and answer are memfds,
// because a write to a pipe without a reader raises a signal.
using Message = std::vector<int64_t>;
constexpr int64_t kMagic = 0x736c7569636d6970;
constexpr size_t kHead = 5;
constexpr size_t kAnswerHead = 3;
constexpr size_t kMaxWords = 1 << 16;
// Time to start the process, read and write.
constexpr absl::Duration kSlack = absl::Milliseconds(50);

std::string_view BytesOf(const Message& words) {
  return {reinterpret_cast<const char*>(words.data()),
          words.size() * sizeof(int64_t)};
}

Message WordsOf(std::string_view bytes) {
  Message words(std::min(bytes.size() / sizeof(int64_t), kMaxWords));
  std::memcpy(words.data(), bytes.data(), words.size() * sizeof(int64_t));
  return words;
}

Message Question(const Problem& problem, const Offsets& start, int64_t bound,
                 absl::Duration time_limit) {
  Message words = {kMagic, absl::ToInt64Milliseconds(time_limit), problem.unit,
                   bound, static_cast<int64_t>(problem.items.size())};
  for (size_t k = 0; k < problem.items.size(); ++k) {
    const Item& item = problem.items[k];
    words.insert(words.end(), {item.lower, item.upper, item.size, start[k]});
  }
  return words;
}

bool Overlaps(const Problem& problem, const Offsets& offsets) {
  for (size_t a = 0; a < offsets.size(); ++a) {
    const Item& x = problem.items[a];
    if (offsets[a] < 0) return true;
    for (size_t b = 0; b < a; ++b) {
      const Item& y = problem.items[b];
      if (x.lower < y.upper && y.lower < x.upper &&
          offsets[a] < offsets[b] + y.size &&
          offsets[b] < offsets[a] + x.size) {
        return true;
      }
    }
  }
  return false;
}

MipResult Checked(const Problem& problem, int64_t start_peak, int64_t bound,
                  const Message& answer) {
  MipResult result{.bound = bound};
  const size_t n = problem.items.size();
  if (answer.size() < kAnswerHead || answer[0] != kMagic) return result;
  const bool has_offsets = answer[2] != 0;
  if (answer.size() != kAnswerHead + (has_offsets ? n : 0)) return result;
  if (has_offsets) {
    Offsets offsets(answer.begin() + kAnswerHead, answer.end());
    if (Overlaps(problem, offsets)) return result;
    start_peak = std::min(start_peak, PeakOf(problem, offsets));
    result.offsets = std::move(offsets);
  }
  if (answer[1] <= start_peak) result.bound = std::max(bound, answer[1]);
  return result;
}

}  // namespace

MipResult SolveMip(const Problem& problem, const Offsets& start, int64_t bound,
                   absl::Duration time_limit, const std::string& program,
                   const std::function<bool()>& stopped) {
  if (program.empty()) return SolveDsaMip(problem, start, bound, time_limit);
  const Message words = Question(problem, start, bound, time_limit - kSlack);
  if (words.size() > kMaxWords) return {.bound = bound};
  const auto run = RunProgram(
      {program, "mip"},
      {.patience = time_limit, .stopped = stopped, .input = BytesOf(words)});
  if (!run.ok() || run->exit_status != 0) return {.bound = bound};
  return Checked(problem, PeakOf(problem, start), bound, WordsOf(run->out));
}

int ServeMip(int in_fd, int out_fd) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // only the parent reads the answer
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
  // Standard output is redirected, to discard what CBC prints.
  const int secluded = fcntl(out_fd, F_DUPFD_CLOEXEC, 3);
  const int null = open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (secluded < 0 || null < 0 || dup2(null, out_fd) < 0) return 1;
  const auto question = ReadAll(in_fd, kMaxWords * sizeof(int64_t), "question");
  if (!question.ok()) return 2;
  const Message words = WordsOf(*question);
  if (words.size() < kHead || words[0] != kMagic || words[4] < 0 ||
      words.size() != kHead + 4 * static_cast<size_t>(words[4])) {
    return 2;
  }
  Problem problem{.unit = words[2]};
  Offsets start;
  for (size_t at = kHead; at < words.size(); at += 4) {
    problem.items.push_back({.lower = static_cast<int32_t>(words[at]),
                             .upper = static_cast<int32_t>(words[at + 1]),
                             .size = words[at + 2]});
    start.push_back(words[at + 3]);
  }
  FinishProblem(&problem);
  const MipResult result =
      SolveDsaMip(problem, start, words[3], absl::Milliseconds(words[1]));
  Message answer = {kMagic, result.bound, result.offsets ? words[4] : 0};
  if (result.offsets) {
    answer.insert(answer.end(), result.offsets->begin(), result.offsets->end());
  }
  return WriteAll(secluded, BytesOf(answer), "answer").ok() ? 0 : 1;
}

}  // namespace sluice::planner
