// What the command lines of all programs share: sizes and counts, --version,
// and one clear line for bad input. Not thread-safe.
#pragma once

#include <CLI/App.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "proto/base/units.h"

namespace sluice::cli {

// Adds a flag or argument for an amount of memory (ParseBytes) or a count
// (ParseCount). A bad value is refused with the flag's name. --help shows the
// initial value of a non-optional `to` as the default.
CLI::Option* AddSize(CLI::App& app, const std::string& names, Bytes& to,
                     const std::string& help);
CLI::Option* AddSize(CLI::App& app, const std::string& names,
                     std::optional<Bytes>& to, const std::string& help);
CLI::Option* AddCount(CLI::App& app, const std::string& names, int64_t& to,
                      const std::string& help = "");
CLI::Option* AddCount(CLI::App& app, const std::string& names,
                      std::optional<int64_t>& to, const std::string& help = "");

// Accepts a number from `least` to `most`. CLI::Range accepts NaN too.
CLI::Validator Between(double least, double most);

// Parses `arguments` (without the program's name) into `app`, which has the
// program's name. Adds --version, and makes the process end with status 1 if
// stdout cannot be written (FailOnLostOutput). Returns an exit status if the
// program is done, because help or the version was printed.
// InvalidArgument, in one line: the error, the probable correction, the command
// that lists the choices.
absl::StatusOr<std::optional<int>> Parse(
    CLI::App& app, const std::vector<std::string>& arguments);

// Returns the word of `known` that `typed` probably stands for, or "" if none
// is near. At most a third of the letters (but at least one) may have been
// added, left out, replaced or swapped with their neighbour.
std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known);

std::string Version();

}  // namespace sluice::cli
