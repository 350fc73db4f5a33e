#include "planner/stream/fractions.h"

#include <fmt/format.h>

#include "proto/base/status.h"

namespace sluice::stream {
namespace {

// Tolerance of sums of decimal fractions.
constexpr double kDigits = 1e-9;

std::string Names(const ModelShape& model) {
  std::string names;
  for (const ClassTraits& c : kClasses) {
    if (!c.of(model)) continue;
    if (!names.empty()) names += ", ";
    names += c.name;
  }
  return names;
}

absl::Status Check(const ClassTraits& c, const ClassFractions& f) {
  if (!(f.keep >= 0 && f.swap >= 0 && f.keep + f.swap <= 1 + kDigits)) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: keep {} and swap {} must be 0 or more and 1 at most together",
        c.name, f.keep, f.swap));
  }
  if (c.keep == Keep::kWhole && f.keep != 0 && f.keep != 1) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: keep {}: it stays on the GPU whole or not at all, 1 or 0", c.name,
        f.keep));
  }
  if (!c.free() && f.keep + f.swap < 1 - kDigits) {
    return absl::InvalidArgumentError(fmt::format(
        "{}: keep {} and swap {} must be 1 together: it cannot be computed "
        "again",
        c.name, f.keep, f.swap));
  }
  return absl::OkStatus();
}

}  // namespace

FractionMap KeepEverything(const ModelShape& model) {
  FractionMap fractions;
  for (const ClassTraits& c : kClasses) {
    if (c.of(model)) fractions[c.name] = {.keep = 1, .swap = 0};
  }
  return fractions;
}

FractionMap KeepLastChunks(FractionMap given, double keep) {
  if (keep == 0) return given;
  for (const ClassTraits& c : kClasses) {
    if (c.keep != Keep::kChunks) continue;
    given.try_emplace(c.name, ClassFractions{keep, 1 - keep});
  }
  return given;
}

FractionMap DropFree(const ModelShape& model, FractionMap given) {
  for (const Class which : kFreeClasses) {
    if (!Traits(which).of(model)) continue;
    given.try_emplace(Traits(which).name, ClassFractions{0, 0});
  }
  return given;
}

ClassFractions FractionsOf(const FractionMap& given, const ClassTraits& of,
                           double alpha) {
  const auto found = given.find(of.name);
  return found != given.end() ? found->second
                              : ClassFractions{0, of.free() ? alpha : 1};
}

FractionMap FillFractions(const ModelShape& model, const FractionMap& given,
                          double alpha) {
  FractionMap fractions = given;
  for (const ClassTraits& c : kClasses) {
    if (c.of(model)) fractions[c.name] = FractionsOf(given, c, alpha);
  }
  return fractions;
}

FractionMap WithoutKept(FractionMap fractions, const FractionMap& given) {
  for (auto& [name, f] : fractions) {
    if (given.contains(name)) continue;
    f = {.keep = 0, .swap = FindClass(name)->free() ? f.swap : 1};
  }
  return fractions;
}

absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model) {
  for (const auto& [name, f] : fractions) {
    const ClassTraits* known = FindClass(name);
    if (known == nullptr || !known->of(model)) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is no class of this model: there are {}", name, Names(model)));
    }
    SLUICE_RETURN_IF_ERROR(Check(*known, f));
  }
  return absl::OkStatus();
}

}  // namespace sluice::stream
