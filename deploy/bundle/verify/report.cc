#include "deploy/bundle/verify/report.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <climits>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_replace.h"
#include "client/ctl/bundle/support_bundle.h"
#include "deploy/bundle/verify/check.h"
#include "proto/base/file_text.h"
#include "proto/base/status.h"

namespace sluice::verify {
namespace {

using nlohmann::json;

std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free);

void Note(int signal) { noted = signal; }

// The archive has only the last bytes of a larger file.
constexpr size_t kMostOfAFile = 256 << 10;
// A shorter name occurs in every text by chance.
constexpr size_t kLeastHidden = 3;

// Without scratch files; '-' stands for '/' in names.
ctl::NamedTexts FilesBelow(const std::string& folder) {
  ctl::NamedTexts files;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(folder, error)) {
    if (!entry.is_regular_file(error)) continue;
    std::string name = entry.path().lexically_relative(folder).generic_string();
    if (name.starts_with(std::string(kScratch) + "/")) continue;
    std::replace(name.begin(), name.end(), '/', '-');
    std::string text = TextOf(entry.path().string());
    if (text.size() > kMostOfAFile) text.erase(0, text.size() - kMostOfAFile);
    files.emplace_back(name, text);
  }
  return files;
}

}  // namespace

std::string Report::Json() const {
  json checks = json::array();
  for (const Result& result : results_) checks.push_back(ToJson(result));
  const json all = {{"version", options_.version},
                    {"status", Name(status())},
                    {"checks", std::move(checks)}};
  return Hide(all.dump(1, ' ', false, json::error_handler_t::replace)) + "\n";
}

Status Report::status() const {
  Status whole = Status::kPassed;
  bool any = false;
  for (const Result& result : results_) {
    if (!result.asked) continue;
    any = true;
    if (result.status == Status::kFailed) return Status::kFailed;
    if (result.status == Status::kSkipped) whole = Status::kSkipped;
  }
  return any ? whole : Status::kSkipped;
}

std::string Report::Hide(std::string text) const {
  for (const auto& [name, instead] : options_.hidden) {
    if (name.size() < kLeastHidden) continue;
    text = absl::StrReplaceAll(text, {{name, instead}});
  }
  return text;
}

absl::Status Report::Write() const {
  ctl::NamedTexts files = FilesBelow(options_.work);
  for (auto& [name, text] : files) text = Hide(std::move(text));
  files.emplace_back("report.json", Json());
  auto archive = ctl::MakeTarGz(options_.name, files);
  // Ctrl-C also ends gzip, so try once more.
  if (!archive.ok() && Interruption::came()) {
    archive = ctl::MakeTarGz(options_.name, files);
  }
  SLUICE_RETURN_IF_ERROR(archive.status());
  const std::string fresh = options_.path + ".new";
  std::ofstream file(fresh, std::ios::binary);
  file << *archive;
  file.close();
  if (!file || std::rename(fresh.c_str(), options_.path.c_str()) != 0) {
    return ErrnoStatus(errno, "write " + options_.path);
  }
  return absl::OkStatus();
}

std::vector<std::pair<std::string, std::string>> NamesOfThisMachine() {
  std::vector<std::pair<std::string, std::string>> names;
  const std::string self =
      std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
  names.emplace_back(self, "BUNDLE");
  if (const char* home = std::getenv("HOME")) names.emplace_back(home, "HOME");
  std::error_code ignored;
  names.emplace_back(std::filesystem::current_path(ignored).string(), "FOLDER");
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) == 0) {
    names.emplace_back(host, "NODE");
  }
  const passwd* const user = getpwuid(getuid());
  if (user != nullptr && user->pw_uid != 0) {
    names.emplace_back(user->pw_name, "USER");
  }
  return names;
}

Interruption::Interruption() {
  noted = 0;
  struct sigaction note = {};
  note.sa_handler = Note;
  note.sa_flags = SA_RESTART;
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &note, &before_[i]);
    // A signal that was ignored (as under nohup) stays ignored.
    if (before_[i].sa_handler == SIG_IGN) {
      sigaction(kSignals[i], &before_[i], nullptr);
    }
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], &before_[i], nullptr);
  }
  if (came()) raise(noted);
}

bool Interruption::came() { return noted != 0; }

}  // namespace sluice::verify
