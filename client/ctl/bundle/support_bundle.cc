#include "client/ctl/bundle/support_bundle.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "absl/time/clock.h"
#include "client/ctl/bundle/archive.h"
#include "client/ctl/bundle/collect.h"
#include "client/ctl/bundle/contents.h"
#include "client/ctl/bundle/interruption.h"
#include "client/ctl/output.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::ctl {
namespace {

// "sluice-support-node1-20260102T030405Z".
std::string NameNow() {
  std::array<char, 256> host = {};
  gethostname(host.data(), host.size() - 1);
  return fmt::format(
      "sluice-support-{}-{}", host.data(),
      absl::FormatTime("%Y%m%dT%H%M%SZ", absl::Now(), absl::UTCTimeZone()));
}

}  // namespace

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
  const Interruption interruption;  // from here on something is on disk
  umask(077);
  SLUICE_ASSIGN_OR_RETURN(const std::string archive,
                          MakeTarGz(name, files, Interruption::came));
  SLUICE_RETURN_IF_ERROR(WriteOutput(out, archive));
  if (out == "-") return "";
  if (options.json) return RenderBundleJson(out, archive.size(), items);
  return fmt::format("{}: {}\n{}", out,
                     FormatBytes(Bytes(static_cast<int64_t>(archive.size()))),
                     contents);
}

}  // namespace sluice::ctl
