#include "proto/base/spawn.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include "proto/base/status.h"

namespace sluice {
namespace {

std::vector<char*> Pointers(const std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (const std::string& text : texts) {
    pointers.push_back(const_cast<char*>(text.c_str()));
  }
  pointers.push_back(nullptr);
  return pointers;
}

class Attributes {
 public:
  explicit Attributes(const SpawnOptions& options) {
    posix_spawnattr_init(&attributes_);
    sigset_t blocked;
    sigemptyset(&blocked);
    for (const int signal : options.blocked) sigaddset(&blocked, signal);
    posix_spawnattr_setsigmask(&attributes_, &blocked);
    int flags = POSIX_SPAWN_SETSIGMASK;
    if (options.signals != SpawnOptions::Signals::kAsHere) {
      sigset_t defaults;
      sigfillset(&defaults);
      if (options.signals == SpawnOptions::Signals::kDefaultPipe) {
        sigemptyset(&defaults);
        sigaddset(&defaults, SIGPIPE);
      }
      posix_spawnattr_setsigdefault(&attributes_, &defaults);
      flags |= POSIX_SPAWN_SETSIGDEF;
    }
    if (options.own_group) {
      posix_spawnattr_setpgroup(&attributes_, 0);
      flags |= POSIX_SPAWN_SETPGROUP;
    }
    posix_spawnattr_setflags(&attributes_, static_cast<short>(flags));
  }
  ~Attributes() { posix_spawnattr_destroy(&attributes_); }
  Attributes(const Attributes&) = delete;
  const posix_spawnattr_t* get() const { return &attributes_; }

 private:
  posix_spawnattr_t attributes_;
};

class FileActions {
 public:
  explicit FileActions(const SpawnOptions& options) {
    posix_spawn_file_actions_init(&actions_);
    for (const auto& [from, to] : options.files) {
      posix_spawn_file_actions_adddup2(&actions_, from, to);
    }
  }
  ~FileActions() { posix_spawn_file_actions_destroy(&actions_); }
  FileActions(const FileActions&) = delete;
  const posix_spawn_file_actions_t* get() const { return &actions_; }

 private:
  posix_spawn_file_actions_t actions_;
};

}  // namespace

absl::StatusOr<pid_t> Spawn(const std::vector<std::string>& words,
                            const SpawnOptions& options) {
  const FileActions actions(options);
  const Attributes attributes(options);
  const std::vector<char*> argv = Pointers(words);
  const std::vector<char*> own = Pointers(options.environment);
  char* const* const env = options.environment.empty() ? environ : own.data();
  const auto spawn = options.search_path ? posix_spawnp : posix_spawn;
  pid_t pid = -1;
  const int error =
      spawn(&pid, argv[0], actions.get(), attributes.get(), argv.data(), env);
  if (error == 0) return pid;
  return ErrnoStatus(
      error, "start " + (options.name.empty() ? words[0] : options.name));
}

}  // namespace sluice
