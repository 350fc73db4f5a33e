#include "planner/stream/fractions.h"

#include <fmt/format.h>

#include "proto/base/status.h"

namespace sluice::stream {
namespace {

// Fractions are sums of decimals.
constexpr double kDigits = 1e-9;

std::string Names(const ModelShape& model) {
  std::string names;
  for (const Class which : kFreeClasses) {
    const ClassTraits& c = Traits(which);
    if (!c.of(model)) continue;
    if (!names.empty()) names += ", ";
    names += c.name;
  }
  return names;
}

}  // namespace

absl::Status CheckFractions(const FractionMap& fractions,
                            const ModelShape& model) {
  for (const auto& [name, f] : fractions) {
    const ClassTraits* known = FindFreeClass(name);
    if (known == nullptr || !known->of(model)) {
      return absl::InvalidArgumentError(fmt::format(
          "'{}' is no class of this model with fractions: there are {}", name,
          Names(model)));
    }
    if (!(f.keep >= 0 && f.swap >= 0 && f.keep + f.swap <= 1 + kDigits)) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: keep {} and swap {} must be 0 or more and 1 at most together",
          name, f.keep, f.swap));
    }
    if (f.keep > 0 && !known->can_keep) {
      return absl::InvalidArgumentError(fmt::format(
          "{}: keep {}: its rows cannot be kept on the GPU", name, f.keep));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::stream
