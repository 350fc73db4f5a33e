#include "proto/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>

#include "proto/base/lost_output.h"
#include "proto/base/text.h"

namespace sluice::cli {
namespace {

// CLI11 throws exceptions; Parse (below) catches them all.
template <typename T, typename To>
CLI::Option* Add(CLI::App& app, const std::string& names, To& to,
                 const std::string& help,
                 absl::StatusOr<T> (*parse)(std::string_view)) {
  const std::string name = names.substr(0, names.find(','));
  const auto read = [&to, name, parse](const CLI::results_t& texts) {
    const absl::StatusOr<T> value = parse(texts.back());
    if (!value.ok()) {
      throw CLI::ValidationError(
          fmt::format("{} {}", name, std::string(value.status().message())));
    }
    to = *value;
    return true;
  };
  return app.add_option(names, read, help);
}

CLI::Option* Sized(CLI::App& app, const std::string& names, auto& to,
                   const std::string& help) {
  return Add<Bytes>(app, names, to, help, &ParseBytes)->type_name("SIZE");
}

CLI::Option* Counted(CLI::App& app, const std::string& names, auto& to,
                     const std::string& help) {
  return Add<int64_t>(app, names, to, help, &ParseCount)->type_name("COUNT");
}

CLI::App* Deepest(CLI::App& app) {
  CLI::App* at = &app;
  while (!at->get_subcommands().empty()) at = at->get_subcommands().back();
  return at;
}

// Returns the words that call `app`, such as "sluicectl plan train".
std::string Called(const CLI::App* app) {
  const CLI::App* parent = app->get_parent();
  return parent == nullptr ? app->get_name()
                           : Called(parent) + " " + app->get_name();
}

std::vector<std::string> Commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* each : app.get_subcommands({})) {
    names.push_back(each->get_name());
  }
  return names;
}

// Returns the flags of `app` and of its parents, which `app` accepts too.
std::vector<std::string> FlagsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* at = &app; at != nullptr; at = at->get_parent()) {
    for (const CLI::Option* option : at->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        names.push_back("--" + name);
      }
    }
  }
  return names;
}

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  }
  return text;
}

// Returns the message about the first word that matches no flag or argument.
std::string Unknown(const CLI::App& app, std::string word) {
  const bool flag = word.starts_with('-');
  if (flag) word = word.substr(0, word.find('='));
  const auto known = flag ? FlagsOf(app) : Commands(app);
  const std::string what =
      flag || !known.empty()
          ? fmt::format("'{}' is no {} of {}", Printable(word),
                        flag ? "flag" : "subcommand", Called(&app))
          : fmt::format("{} takes no '{}'", Called(&app), Printable(word));
  const std::string meant = Nearest(word, known);
  if (!meant.empty()) return what + ": did you mean " + meant + "?";
  return flag || known.empty() ? what : what + ": there are " + Listed(known);
}

// Rewrites CLI11's "Could not convert: --lr = abc".
std::string NoNumber(const CLI::App& app, const std::string& said) {
  const size_t colon = said.find(": "), equals = said.find(" = ");
  if (colon == said.npos || equals == said.npos || equals < colon) return said;
  const std::string name = said.substr(colon + 2, equals - colon - 2);
  const CLI::Option* option = app.get_option_no_throw(name);
  const bool whole = option != nullptr && (option->get_type_name() == "INT" ||
                                           option->get_type_name() == "UINT");
  return fmt::format("{} '{}' is not a {}number", name, said.substr(equals + 3),
                     whole ? "whole " : "");
}

// Rewrites CLI11's "--seq-len: 1 required COUNT missing".
std::string NoValue(const CLI::App& app, const std::string& said) {
  const std::string name = said.substr(0, said.find(':'));
  const CLI::Option* option = app.get_option_no_throw(name);
  if (option == nullptr) return said;
  if (option->count() > 1) return name + " is given twice: give one of them";
  return fmt::format("{} needs a value: {} {}", name, name,
                     option->get_type_name());
}

absl::Status Misuse(CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* at = Deepest(app);
  const bool missing = dynamic_cast<const CLI::RequiredError*>(&error);
  const bool extra = dynamic_cast<const CLI::ExtrasError*>(&error);
  const std::vector<std::string> left = app.remaining(true);
  std::string what = Printable(FirstLine(error.what()));
  // If a word is missing and another word is unknown, name the unknown word.
  if ((missing || extra) && !left.empty()) {
    what = Unknown(*at, left.front());
  } else if (missing && !Commands(*at).empty()) {
    what = fmt::format("say what to do: the subcommands of {} are {}",
                       Called(at), Listed(Commands(*at)));
  } else if (dynamic_cast<const CLI::ConversionError*>(&error) != nullptr) {
    what = NoNumber(*at, what);
  } else if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    what = NoValue(*at, what);
  }
  return absl::InvalidArgumentError(
      fmt::format("{} (see {} --help)", what, Called(at)));
}

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

CLI::Option* AddSize(CLI::App& app, const std::string& names, Bytes& to,
                     const std::string& help) {
  return Sized(app, names, to, help)->default_str(ExactBytes(to));
}

CLI::Option* AddSize(CLI::App& app, const std::string& names,
                     std::optional<Bytes>& to, const std::string& help) {
  return Sized(app, names, to, help);
}

CLI::Option* AddCount(CLI::App& app, const std::string& names, int64_t& to,
                      const std::string& help) {
  return Counted(app, names, to, help)->default_str(std::to_string(to));
}

CLI::Option* AddCount(CLI::App& app, const std::string& names,
                      std::optional<int64_t>& to, const std::string& help) {
  return Counted(app, names, to, help);
}

CLI::Validator Between(double least, double most) {
  const auto fault = [=](const std::string& text) -> std::string {
    double number = 0;
    const char* const end = text.data() + text.size();
    const auto read = std::from_chars(text.data(), end, number);
    if (read.ec == std::errc() && read.ptr == end && number >= least &&
        number <= most) {
      return "";
    }
    return fmt::format("'{}' is no number from {:g} to {:g}", text, least,
                       most);
  };
  return {fault, fmt::format("FLOAT in [{:g} - {:g}]", least, most)};
}

absl::StatusOr<std::optional<int>> Parse(
    CLI::App& app, const std::vector<std::string>& arguments) {
  FailOnLostOutput();
  app.set_version_flag("--version",
                       fmt::format("{} {}", app.get_name(), Version()),
                       "print the version and end");
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::Success& done) {
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    return Misuse(app, error);
  }
  return std::nullopt;
}

std::string Nearest(std::string_view typed,
                    const std::vector<std::string>& known) {
  constexpr size_t kLongest = 64;  // longer words are no misspellings
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

std::string Version() { return SLUICE_VERSION; }

}  // namespace sluice::cli
