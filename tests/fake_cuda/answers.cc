#include "tests/fake_cuda/answers.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace sluice::fake_cuda {
namespace {

[[noreturn]] void WrongRule(const std::string& path, const std::string& why) {
  std::fprintf(stderr, "fake libcuda: rules=%s: %s\n", path.c_str(),
               why.c_str());
  std::abort();
}

}  // namespace

std::map<Rule, PlayedAnswer> ReadAnswers(const std::string& path) {
  std::map<Rule, PlayedAnswer> answers;
  std::ifstream file(path);
  if (!file) WrongRule(path, "the file cannot be read");
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#') continue;
    const std::string name = line.substr(0, line.find(' '));
    const RuleText* rule = nullptr;
    for (const RuleText& each : kRules) {
      if (each.name == name && each.known == "assumed") rule = &each;
    }
    PlayedAnswer answer;
    int assumed = -1;
    const int read =
        std::sscanf(line.c_str() + name.size(), " assumed=%d answer=%d then=%d",
                    &assumed, &answer.code, &answer.then);
    if (rule == nullptr || read < 1 || assumed != rule->code)
      WrongRule(path, "no assumed rule of rules.h fits '" + line + "'");
    if (read == 3 && answer.code != rule->code) {
      answers[static_cast<Rule>(rule - kRules)] = answer;
    }
  }
  return answers;
}

}  // namespace sluice::fake_cuda
