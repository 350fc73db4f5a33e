#include "client/ctl/bundle/secrets.h"

#include <array>
#include <regex>
#include <string_view>
#include <vector>

#include "absl/strings/str_split.h"

namespace sluice::ctl {
namespace {

// Longer lines are cut, because std::regex uses a stack frame per byte.
constexpr size_t kLongestLine = 4096;
constexpr char kRemoved[] = "(removed)";

struct Rule {
  std::regex pattern;
  const char* kept;
};

std::regex Pattern(const char* text) {
  return std::regex(text, std::regex::icase | std::regex::optimize);
}

const std::array<Rule, 3>& Rules() {
  static const auto* const rules = new std::array<Rule, 3>{{
      // scheme://user:password@host
      {Pattern(R"((://)[^\s/@"']+@)"), "$1(removed)@"},
      {Pattern(R"(\b(bearer|basic)\s+[-\w.~+/=]{8,})"), "$1 (removed)"},
      // key = "value", "key": "value", --key=value, KEY=value, but not counts
      // of tokens. Not the letters before the key word: a pattern that begins
      // with any letters takes time quadratic in the line's length.
      {Pattern(R"re(((?:passw|passphrase|secret|token(?!s\b)|credential|)re"
               R"re(api_?key|private_?key|auth(?:orization)?(?![a-z])))re"
               R"re([-\w]*["']?\s*[=:]\s*)("[^"]*"|'[^']*'|[^\s,;}]+))re"),
       "$1(removed)"},
  }};
  return *rules;
}

std::string Clean(std::string_view whole, int& removed) {
  std::string line(whole.substr(0, kLongestLine));
  if (whole.size() > kLongestLine) line += " (cut)";
  for (const Rule& rule : Rules()) {
    const auto found =
        std::sregex_iterator(line.begin(), line.end(), rule.pattern);
    const auto count = std::distance(found, std::sregex_iterator());
    if (count == 0) continue;
    removed += static_cast<int>(count);
    line = std::regex_replace(line, rule.pattern, rule.kept);
  }
  return line;
}

bool IsPem(const std::string& line, const char* edge) {
  return line.find(std::string("-----") + edge + " ") != std::string::npos;
}

}  // namespace

WithoutSecrets RemoveSecrets(const std::string& text) {
  WithoutSecrets result;
  bool in_pem = false;
  std::vector<std::string> kept;
  for (const std::string& line :
       std::vector<std::string>(absl::StrSplit(text, '\n'))) {
    if (!in_pem && IsPem(line, "BEGIN")) {
      in_pem = true;
      ++result.removed;
      kept.emplace_back(kRemoved);
    }
    if (!in_pem) {
      kept.push_back(Clean(line, result.removed));
    } else if (IsPem(line, "END")) {
      in_pem = false;
    }
  }
  for (size_t i = 0; i < kept.size(); ++i) {
    result.text += (i > 0 ? "\n" : "") + kept[i];
  }
  return result;
}

}  // namespace sluice::ctl
