#include "client/ctl/bundle/archive.h"

#include <fmt/format.h>

#include "absl/time/clock.h"
#include "proto/base/run_program.h"

namespace sluice::ctl {
namespace {

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

}  // namespace

absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files) {
  std::string tar;
  for (const auto& [file, text] : files) tar += TarMember(name, file, text);
  tar += std::string(1024, '\0');
  return OutputOf({"gzip", "-c"}, {.patience = absl::Minutes(2), .input = tar});
}

}  // namespace sluice::ctl
