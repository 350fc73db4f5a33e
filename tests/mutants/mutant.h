// SluiceMutant(N) returns whether SLUICE_MUTANT is N, which turns mutant N on.
// If SLUICE_MUTANTS_REACHED is a folder, the call creates file N in it.
#ifndef SLUICE_TESTS_MUTANTS_MUTANT_H_
#define SLUICE_TESTS_MUTANTS_MUTANT_H_

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <string>

inline bool SluiceMutant(int number) {
  static const int on = [] {
    const char* text = std::getenv("SLUICE_MUTANT");
    return text == nullptr ? -1 : std::atoi(text);
  }();
  static const char* const folder = std::getenv("SLUICE_MUTANTS_REACHED");
  static std::atomic<bool> seen[10000];
  if (folder != nullptr && !seen[number].exchange(true)) {
    const std::string path = std::string(folder) + "/" + std::to_string(number);
    const int file = open(path.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0666);
    if (file >= 0) close(file);
  }
  return number == on;
}

#endif  // SLUICE_TESTS_MUTANTS_MUTANT_H_
