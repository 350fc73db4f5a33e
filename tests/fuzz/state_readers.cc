// Readers of the state that an earlier daemon left: it is read as it was
// written, or refused in one line.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/state/core_rows.h"
#include "proto/base/status.h"
#include "proto/base/unique_fd.h"
#include "tests/daemon/core/core_driver.h"
#include "tests/fuzz/packets.h"
#include "tests/fuzz/readers.h"

namespace sluice::fuzz {
namespace {

using daemon::StateFile;

// Returns the contents of the state, or nullopt if it is refused. Writes to an
// accepted state, as a daemon does.
std::optional<StateFile::Contents> Opened(int fd) {
  const auto file = StateFile::Open(fd);
  if (!file.ok()) {
    SLUICE_CHECK(absl::IsFailedPrecondition(file.status()) ||
                 absl::IsNotFound(file.status()));  // given up by its daemon
    CheckLine(std::string(file.status().message()));
    return std::nullopt;
  }
  StateFile::Contents contents = (*file)->TakeContents();
  const absl::Status appended = (*file)->Append("next");
  SLUICE_CHECK(appended.ok() || absl::IsResourceExhausted(appended));
  const absl::Status saved = (*file)->Checkpoint("all");
  SLUICE_CHECK(saved.ok() || absl::IsResourceExhausted(saved));
  return contents;
}

// Reads the input as a whole state file, of any size.
void ReadAsMemory(std::string_view bytes) {
  const UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC));
  SLUICE_CHECK(write(fd.get(), bytes.data(), bytes.size()) ==
               static_cast<ssize_t>(bytes.size()));
  Opened(fd.get());
}

// Writes a state in steps and damages it. The state must be refused, or be read
// as it was after one of the steps.
void ReadDamaged(Input& input) {
  const UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC));
  auto file = StateFile::Create(fd.get(), {Bytes(64), Bytes(256)});
  SLUICE_CHECK_OK(file.status());
  StateFile::Contents now;
  std::vector<StateFile::Contents> known = {now};
  for (int steps = input.Byte() % 8; steps > 0; --steps) {
    const int step = input.Byte() % 4;
    const std::string piece(input.Piece().substr(0, 64));
    if (step == 0) {
      SLUICE_CHECK_OK((*file)->Checkpoint(piece));
      now = {piece, {}};
    } else if ((*file)->Append(piece).ok()) {
      now.records.push_back(piece);
    }
    known.push_back(now);
  }
  const off_t size = lseek(fd.get(), 0, SEEK_END);
  while (!input.empty()) {
    const off_t low = input.Byte(), high = input.Byte();
    const off_t at = (low + 256 * high) % size;
    const char byte = static_cast<char>(input.Byte());
    SLUICE_CHECK(pwrite(fd.get(), &byte, 1, at) == 1);
  }
  const auto contents = Opened(fd.get());
  SLUICE_CHECK(!contents || std::ranges::count(known, *contents) > 0);
}

}  // namespace

void ReadAsState(std::string_view bytes) {
  Input input(bytes);
  if (input.Byte() % 2 == 0) return ReadAsMemory(input.Rest());
  ReadDamaged(input);
}

void ReadAsRows(std::string_view bytes) {
  Input input(bytes);
  StateFile::Contents contents;
  contents.checkpoint = input.Piece();
  while (!input.empty()) contents.records.emplace_back(input.Piece());
  const daemon::Core core(daemon::SmallNode(), absl::UnixEpoch());
  const auto read = daemon::ReadCore(contents, core.Save());
  if (absl::IsFailedPrecondition(read.status())) {
    // Jobs use a pool that SmallNode() does not have.
    return CheckLine(std::string(read.status().message()));
  }
  if (!read.ok()) CheckComplaint(read.status());
}

}  // namespace sluice::fuzz
