#include "client/ctl/bundle/archive.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>
#include <fstream>

#include "proto/base/run_program.h"
#include "proto/base/status.h"
#include "proto/base/temporary_folder.h"

namespace sluice::ctl {
namespace {

absl::Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  return file ? absl::OkStatus() : ErrnoStatus(errno, "write " + path);
}

}  // namespace

absl::StatusOr<std::string> MakeTarGz(const std::string& name,
                                      const NamedTexts& files,
                                      const std::function<bool()>& stopped) {
  SLUICE_ASSIGN_OR_RETURN(const TemporaryFolder folder,
                          TemporaryFolder::Make("sluice-support"));
  const std::string below = folder.path() + "/" + name;
  if (mkdir(below.c_str(), 0700) != 0) {
    return ErrnoStatus(errno, "make " + below);
  }
  for (const auto& [file, text] : files) {
    SLUICE_RETURN_IF_ERROR(WriteFile(below + "/" + file, text));
  }
  auto tar = OutputOf(
      {"tar", "-C", folder.path(), "--owner=0", "--group=0", "-cz", name},
      {.patience = absl::Minutes(2), .stopped = stopped});
  if (stopped && stopped()) return absl::CancelledError("stopped");
  return tar;
}

}  // namespace sluice::ctl
