#include "client/train/jsonl_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "client/train/launch/outcome.h"

namespace sluice::train {
namespace {

constexpr size_t kMostWaiting = size_t{1} << 20;

}  // namespace

absl::StatusOr<std::unique_ptr<JsonlFile>> JsonlFile::Open(
    const std::string& path) {
  std::unique_ptr<JsonlFile> file(new JsonlFile());
  file->path_ = path;
  file->fd_ = UniqueFd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666));
  if (!file->fd_) {
    const int error = errno;
    return BadInput(
        fmt::format("--log-jsonl {}: {}", path, std::strerror(error)), error);
  }
  return file;
}

void JsonlFile::Append(const std::string& line) {
  if (text_.size() + line.size() > kMostWaiting) {
    ++lost_;
  } else {
    text_ += line + "\n";
    ++waiting_;
  }
  int error = 0;
  while (!text_.empty() && error == 0) {
    const ssize_t n = write(fd_.get(), text_.data(), text_.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      error = n < 0 ? errno : EIO;
      break;
    }
    waiting_ -= std::count(text_.begin(), text_.begin() + n, '\n');
    text_.erase(0, static_cast<size_t>(n));
  }
  if (error != 0 && !failing_) {
    note_ = fmt::format(
        "--log-jsonl {}: {}; the run goes on, and what could not be written is "
        "tried again after each step",
        path_, std::strerror(error));
  } else if (error == 0 && failing_) {
    note_ = fmt::format(
        "--log-jsonl {}: written again{}", path_,
        lost_ > 0 ? fmt::format(", {} lines are lost", lost_) : std::string());
  }
  failing_ = error != 0;
}

std::string JsonlFile::TakeNote() { return std::exchange(note_, ""); }

}  // namespace sluice::train
