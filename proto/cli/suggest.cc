#include "proto/cli/suggest.h"

#include <algorithm>

namespace sluice::cli {
namespace {

// Returns the number of edits from `a` to `b`. Swapping two neighbours counts
// as one edit (optimal string alignment).
size_t Distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1,
                                     std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min({d[i - 1][j] + 1, d[i][j - 1] + 1,
                          d[i - 1][j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known) {
  // A longer word is not treated as a misspelling.
  constexpr size_t kLongest = 64;
  std::string best;
  if (typed.empty() || typed.size() > kLongest) return best;
  const size_t letters =
      typed.size() - std::min(typed.find_first_not_of('-'), typed.size());
  size_t least = std::max<size_t>(1, letters / 3) + 1;
  for (const std::string& word : known) {
    const size_t distance = Distance(typed, word);
    if (distance < least) {
      least = distance;
      best = word;
    }
  }
  return best;
}

}  // namespace sluice::cli
