#include "client/ctl/bundle/support_bundle.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>
#include <regex>
#include <string_view>

#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
#include "proto/base/run_program.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/units.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

constexpr char kNever[] =
    R"(Never in it: what is in memory, plans and profiles, environment variables.
Names of users, jobs, hosts and cgroups are in it: read it before you send it.
)";

std::string ItemReason(const Item& item) {
  return Printable(std::string(item.text.status().message()));
}

// Formats "sluice-support-node1-20260102T030405Z".
std::string NameNow() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return fmt::format(
      "sluice-support-{}-{}", host.data(),
      absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone()));
}

// A member in POSIX's ustar format: a header and the text, in blocks of 512
// bytes.
std::string TarMember(const std::string& folder, const std::string& name,
                      const std::string& text) {
  std::string header(512, '\0');
  const auto put = [&](size_t at, const std::string& field) {
    header.replace(at, field.size(), field);
  };
  put(0, name);
  put(100, "0000600");
  put(108, "0000000");
  put(116, "0000000");
  put(124, fmt::format("{:011o}", text.size()));
  put(136, fmt::format("{:011o}", absl::ToUnixSeconds(absl::Now())));
  put(148, "        ");
  put(156, "0");
  put(257, std::string("ustar\00000", 8));
  put(345, folder);
  unsigned sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, fmt::format("{:06o}", sum) + '\0');
  const std::string padding((512 - text.size() % 512) % 512, '\0');
  return header + text + padding;
}

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

std::string RenderContents(const std::vector<Item>& items) {
  std::string in, out;
  for (const Item& item : items) {
    if (item.text.ok()) {
      in += fmt::format("  {:<14} {}\n", item.name, item.what);
    } else {
      out += fmt::format("  {:<14} {}: {}\n", item.name, item.what,
                         ItemReason(item));
    }
  }
  return "In it:\n" + in + (out.empty() ? "" : "Left out:\n" + out) + kNever;
}

std::string RenderBundleJson(const std::string& file, size_t bytes,
                             const std::vector<Item>& items) {
  json contents = json::array(), left_out = json::array();
  for (const Item& item : items) {
    json entry = {{"name", item.name}, {"what", item.what}};
    if (!item.text.ok()) entry["why"] = ItemReason(item);
    (item.text.ok() ? contents : left_out).push_back(std::move(entry));
  }
  const json all = {{"file", file},
                    {"bytes", bytes},
                    {"contents", std::move(contents)},
                    {"left_out", std::move(left_out)}};
  return JsonLine(all);
}

absl::StatusOr<std::string> MakeSupportBundle(const SocketPaths& sockets,
                                              const BundleOptions& options) {
  const std::string name = NameNow();
  const std::string out = options.out.empty() ? name + ".tar.gz" : options.out;
  SLUICE_RETURN_IF_ERROR(CheckOutput(out));
  const std::vector<Item> items = Collect(sockets, options.journal_lines);
  const std::string contents = RenderContents(items);
  NamedTexts files = {{"contents.txt", contents}};
  for (const Item& item : items) {
    if (item.text.ok()) files.emplace_back(item.name, *item.text);
  }
  SLUICE_ASSIGN_OR_RETURN(const std::string archive, MakeTarGz(name, files));
  umask(077);
  SLUICE_RETURN_IF_ERROR(WriteOutput(out, archive));
  if (out == "-") return "";
  if (options.json) return RenderBundleJson(out, archive.size(), items);
  return fmt::format("{}: {}\n{}", out,
                     FormatBytes(Bytes(static_cast<int64_t>(archive.size()))),
                     contents);
}

absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files) {
  std::string tar;
  for (const auto& [file, text] : files) tar += TarMember(name, file, text);
  tar += std::string(1024, '\0');
  return OutputOf({"gzip", "-c"}, {.patience = absl::Minutes(2), .input = tar});
}

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
  result.text = absl::StrJoin(kept, "\n");
  return result;
}

}  // namespace sluice::ctl
