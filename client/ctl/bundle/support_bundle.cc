#include "client/ctl/bundle/support_bundle.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <nlohmann/json.hpp>

#include "absl/time/clock.h"
#include "client/ctl/bundle/archive.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/output.h"
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

}  // namespace sluice::ctl
