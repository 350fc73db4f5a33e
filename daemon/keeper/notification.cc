#include "daemon/keeper/notification.h"

#include <algorithm>

#include "daemon/store/starter.h"

namespace sluice::daemon {
namespace {

using Kind = Notification::Kind;

Kind KindOf(std::string_view line) {
  if (line == "FDSTORE=1") return Kind::kPut;
  if (line == "FDSTOREREMOVE=1") return Kind::kRemove;
  if (line == "BARRIER=1") return Kind::kBarrier;
  return Kind::kOther;
}

absl::Status Refused(const char* why) {
  return absl::InvalidArgumentError(why);
}

}  // namespace

absl::StatusOr<Notification> ParseNotification(std::string_view text) {
  if (text.empty()) return Refused("it is empty");
  if (text.size() > kMaxNotification) return Refused("it is too long");
  if (text.find('\0') != text.npos) return Refused("it has a zero byte");
  constexpr std::string_view kName = "FDNAME=";
  Notification found;
  bool named = false;
  int lines = 0;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    ++lines;
    if (line.starts_with(kName)) {
      if (named) return Refused("it has two names");
      named = true;
      found.name = line.substr(kName.size());
      continue;
    }
    const Kind kind = KindOf(line);
    if (kind == Kind::kOther) continue;
    if (found.kind != Kind::kOther) return Refused("it asks for two things");
    found.kind = kind;
  }
  if (found.kind == Kind::kBarrier && lines != 1) {
    return Refused("a barrier stands alone");
  }
  if (found.kind == Kind::kOther) {
    found.name.clear();
  } else if (found.kind != Kind::kBarrier && !IsDescriptorName(found.name)) {
    return Refused("it does not name its descriptor");
  }
  return found;
}

}  // namespace sluice::daemon
