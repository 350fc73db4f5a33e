#include "client/ctl/doctor/started_with.h"

namespace sluice::ctl {
namespace {

// Returns the value of `flag` if words[i] is that flag: the text after "=" in
// the same word, or the next word, to which `i` then advances. Returns nullopt
// for another flag or a missing value.
std::optional<std::string> ValueOf(const std::string& flag,
                                   const std::vector<std::string>& words,
                                   size_t& i) {
  if (words[i].starts_with(flag + "=")) {
    return words[i].substr(flag.size() + 1);
  }
  if (words[i] != flag || i + 1 == words.size()) return std::nullopt;
  return words[++i];
}

}  // namespace

StartedWith ReadStartedWith(const std::vector<std::string>& words) {
  StartedWith with;
  for (size_t i = 1; i < words.size(); ++i) {
    if (auto config = ValueOf("--config", words, i)) {
      with.config = *std::move(config);
    } else if (!ValueOf("--runtime-dir", words, i)) {
      with.others.push_back(words[i]);
    }
  }
  return with;
}

}  // namespace sluice::ctl
