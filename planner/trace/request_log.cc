// Reads the paper's request log: `malloc ID SIZE` and `free ID`, one request
// per line. Time is the line number.
#include <fmt/format.h>

#include <unordered_map>
#include <unordered_set>

#include "planner/trace/readers.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

class LogReader {
 public:
  LogReader(std::istream& in, const TraceOptions& options, Bytes alignment)
      : lines_(in, options.file), builder_(alignment) {}

  absl::StatusOr<NamedTrace> Read() {
    int64_t last = 0;
    while (lines_.Next()) {
      if (Trimmed(lines_.line()).front() == '#') continue;
      SLUICE_RETURN_IF_ERROR(ReadRequest());
      last = lines_.number();
    }
    SLUICE_RETURN_IF_ERROR(lines_.status());
    builder_.out().time_unit = "lines";
    builder_.out().source = "request log";
    return builder_.Take(last + 1);
  }

 private:
  struct Known {
    size_t buffer = 0;
    int64_t line = 0;  // line of its malloc
    bool alive = false;
    int times = 0;  // number of allocations so far
  };

  absl::Status ReadRequest() {
    const std::vector<std::string_view> words = Words(lines_.line());
    if (words[0] == "malloc" && words.size() == 3) {
      return Malloc(words[1], words[2]);
    }
    if (words[0] == "free" && words.size() == 2) return Free(words[1]);
    return lines_.Wrong(fmt::format(
        "{} is neither 'malloc ID SIZE' nor 'free ID'", Quoted(lines_.line())));
  }

  absl::Status Malloc(std::string_view id, std::string_view text) {
    int64_t size = 0;
    if (!ParseInt(text, &size)) {
      return lines_.Wrong(text,
                          fmt::format("size {} is no whole number between 0 "
                                      "and {}",
                                      Quoted(text), kMaxTraceBytes));
    }
    if (size < 0) {
      return lines_.Wrong(text,
                          fmt::format("size {} is below 0: give bytes", size));
    }
    Known& known = known_[std::string(id)];
    if (known.alive) {
      return lines_.Wrong(id,
                          fmt::format("id {} is alive since line {}: free it "
                                      "before it is allocated again",
                                      Quoted(id), known.line));
    }
    known = {.buffer = builder_.size(),
             .line = lines_.number(),
             .alive = true,
             .times = known.times + 1};
    return lines_.Placed(
        text, builder_.Add(NameOfBuffer(id, known.times), lines_.number(),
                           kStillAlive, size));
  }

  absl::Status Free(std::string_view id) {
    const auto found = known_.find(std::string(id));
    if (found == known_.end() || !found->second.alive) {
      return lines_.Wrong(
          id, fmt::format("id {} is not alive here: {}", Quoted(id),
                          found == known_.end() ? "no malloc comes before"
                                                : "it was freed already"));
    }
    builder_.Close(found->second.buffer, lines_.number());
    found->second.alive = false;
    return absl::OkStatus();
  }

  // Returns a buffer's unique name: its id, with the number of the allocation
  // ("7#2") if the id was allocated before.
  std::string NameOfBuffer(std::string_view id, int times) {
    std::string name = CleanName(std::string(id));
    if (times > 1) name += fmt::format("#{}", times);
    while (!names_.insert(name).second) name += '\'';
    return name;
  }

  Lines lines_;
  TraceBuilder builder_;
  std::unordered_map<std::string, Known> known_;
  std::unordered_set<std::string> names_;
};

}  // namespace

absl::StatusOr<NamedTrace> ReadRequestLog(std::istream& in,
                                          const TraceOptions& options,
                                          Bytes alignment) {
  return LogReader(in, options, alignment).Read();
}

}  // namespace sluice::planner
