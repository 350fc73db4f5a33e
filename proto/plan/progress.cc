#include "proto/plan/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "proto/plan/units.h"

namespace sluice::plan {
namespace {

constexpr size_t kMaxWord = 128;

// Cuts `text` to kMaxWord bytes, and replaces control characters and '|', which
// separates words.
std::string Word(std::string text) {
  text.resize(std::min(text.size(), kMaxWord));
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == '|') c = '?';
  }
  return text;
}

std::optional<int64_t> Number(const std::string& word) {
  int64_t value = 0;
  return absl::SimpleAtoi(word, &value) ? std::optional(value) : std::nullopt;
}

}  // namespace

std::string WriteProgress(const PlanProgress& p) {
  const std::string text =
      fmt::format("{}|{}|{}|{}|{}|{}", p.done, p.all, Word(p.segment),
                  Word(p.arm), p.peak.count(), p.lower_bound.count());
  std::string line = HashBytes(text) + "|" + text + "\n";
  line.resize(kProgressBytes, ' ');
  return line;
}

std::optional<PlanProgress> ReadProgress(std::string_view bytes) {
  const std::string line(bytes.substr(0, bytes.find('\n')));
  const std::vector<std::string> words = absl::StrSplit(line, '|');
  if (words.size() != 7 ||
      HashBytes(line.substr(words[0].size() + 1)) != words[0]) {
    return std::nullopt;
  }
  const auto done = Number(words[1]), all = Number(words[2]);
  const auto peak = Number(words[5]), bound = Number(words[6]);
  if (!done || !all || !peak || !bound) return std::nullopt;
  return PlanProgress{*done,    *all,         words[3],
                      words[4], Bytes(*peak), Bytes(*bound)};
}

}  // namespace sluice::plan
