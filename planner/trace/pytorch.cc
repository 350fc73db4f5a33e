// Reads PyTorch profiler traces (profile_memory=True): Chrome JSON with an
// instant event "[memory]" per allocation (Bytes > 0) and per free (Bytes < 0).
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <map>
#include <span>
#include <streambuf>
#include <unordered_map>
#include <utility>

#include "planner/trace/json_records.h"
#include "planner/trace/readers.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

struct TraceEvent {
  int64_t nanoseconds = 0;
  uint64_t address = 0;
  int64_t bytes = 0;   // < 0: a free
  int64_t index = 0;   // index in the file, for messages
  int32_t device = 0;  // index into the reader's devices
};

enum TraceField {
  kName,
  kPhase,
  kTime,
  kAddress,
  kBytes,
  kType,
  kDevice,
  kTotal
};
constexpr const char* kFieldNames[] = {"name",
                                       "ph",
                                       "ts",
                                       "args.Addr",
                                       "args.Bytes",
                                       "args.Device Type",
                                       "args.Device Id",
                                       "args.Total Allocated"};

// Masks what PyTorch writes into operators' names although JSON strings may not
// contain it: raw control characters, unknown escapes, bytes that are not
// UTF-8. Positions in the file do not change.
class HiddenTexts : public std::streambuf {
 public:
  explicit HiddenTexts(std::streambuf* from) : from_(from) {}

 protected:
  int_type underflow() override {
    const std::streamsize got = from_->sgetn(block_.data(), block_.size());
    for (char& c : std::span(block_).first(static_cast<size_t>(got))) {
      c = Hidden(c);
    }
    setg(block_.data(), block_.data(), block_.data() + got);
    return got == 0 ? traits_type::eof() : traits_type::to_int_type(*gptr());
  }

 private:
  // Replaces a backslash and the escaped character by two neutral characters.
  char Hidden(char c) {
    if (escaped_) {
      escaped_ = false;
      return '?';
    }
    if (c == '"') {
      in_text_ = !in_text_;
      return c;
    }
    if (!in_text_) return c;
    escaped_ = c == '\\';
    const auto byte = static_cast<unsigned char>(c);
    return escaped_ || byte < 0x20 || byte >= 0x80 ? '?' : c;
  }

  std::streambuf* from_;
  bool in_text_ = false, escaped_ = false;
  std::array<char, 64 << 10> block_;
};

// Returns a device's name, such as "cuda:0". `type` is torch's DeviceType; an
// unknown type is named by its number.
std::string DeviceName(int64_t type, int64_t id) {
  static const std::map<int64_t, const char*> kTypes = {
      {1, "cuda"}, {6, "hip"},  {9, "xla"},  {12, "xpu"},
      {13, "mps"}, {15, "hpu"}, {19, "mtia"}};
  if (type == 0) return "cpu";
  const auto known = kTypes.find(type);
  return known == kTypes.end() ? fmt::format("device{}:{}", type, id)
                               : fmt::format("{}:{}", known->second, id);
}

// Converts microseconds such as "1700000000000000.123" to nanoseconds, exactly:
// a double's 53 bits are too few for a time since 1970.
bool ParseNanoseconds(const std::string& text, int64_t* value) {
  const size_t point = text.find('.');
  const bool plain = text.find_first_of("eE") == std::string::npos;
  int64_t whole = 0;
  if (plain && ParseInt(text.substr(0, point), &whole) &&
      whole > -(INT64_MAX / 2000) && whole < INT64_MAX / 2000) {
    std::string digits =
        point == std::string::npos ? "" : text.substr(point + 1);
    digits.resize(3, '0');
    int64_t part = 0;
    if (!ParseInt(digits, &part) || part < 0) return false;
    *value = whole * 1000 + (text[0] == '-' ? -part : part);
    return true;
  }
  char* end = nullptr;
  const double microseconds = std::strtod(text.c_str(), &end);
  if (*end != '\0' || text.empty() || !(std::fabs(microseconds) < 9e15)) {
    return false;
  }
  *value = static_cast<int64_t>(std::llround(microseconds * 1000));
  return true;
}

class PyTorchReader {
 public:
  PyTorchReader(const TraceOptions& options, Bytes alignment)
      : options_(options), builder_(alignment) {}

  absl::StatusOr<NamedTrace> Read(std::istream& in) {
    const RecordQuery query = {
        .array = "traceEvents",
        .root_array = true,
        .fields = {std::begin(kFieldNames), std::end(kFieldNames)},
        .root_field = "profile_memory",
        .root_value = &profile_memory_};
    HiddenTexts hidden(in.rdbuf());
    std::istream text(&hidden);
    SLUICE_RETURN_IF_ERROR(ReadJsonRecords(
        text, options_.file, query,
        [this](const JsonRecord& record) { return Take(record); }));
    SLUICE_ASSIGN_OR_RETURN(const int32_t device, Choose());
    std::erase_if(events_,
                  [&](const TraceEvent& e) { return e.device != device; });
    std::ranges::stable_sort(events_, {}, &TraceEvent::nanoseconds);
    SLUICE_RETURN_IF_ERROR(Pair(before_[static_cast<size_t>(device)].bytes));
    builder_.out().time_unit = "requests";
    builder_.out().source =
        "PyTorch trace, " + names_[static_cast<size_t>(device)];
    return builder_.Take(static_cast<int64_t>(events_.size()) + 1);
  }

 private:
  absl::Status Take(const JsonRecord& record) {
    const auto& fields = record.fields;
    if (fields[kName].text != "[memory]") return absl::OkStatus();
    const std::string& phase = fields[kPhase].text;
    if (!phase.empty() && phase != "i" && phase != "I") return absl::OkStatus();
    TraceEvent event{.index = record.index};
    const auto wrong = [&](TraceField field, const char* wanted) {
      return At({.file = options_.file},
                fmt::format("traceEvents[{}], a [memory] event: {} {}, it must "
                            "be {}",
                            event.index, kFieldNames[field],
                            fields[field].kind == JsonField::Kind::kMissing
                                ? "is missing"
                                : "is " + Quoted(fields[field].text),
                            wanted));
    };
    if (!ParseNanoseconds(fields[kTime].text, &event.nanoseconds)) {
      return wrong(kTime, "microseconds");
    }
    if (!ParseAddress(fields[kAddress].text, &event.address)) {
      return wrong(kAddress, "an address");
    }
    if (!ParseInt(fields[kBytes].text, &event.bytes) ||
        event.bytes == INT64_MIN) {
      return wrong(kBytes, "a count of bytes");
    }
    int64_t type = 0, id = 0, total = 0;
    if (!ParseInt(fields[kType].text, &type)) return wrong(kType, "a number");
    if (!ParseInt(fields[kDevice].text, &id)) return wrong(kDevice, "a number");
    if (fields[kTotal].kind != JsonField::Kind::kMissing &&
        !ParseInt(fields[kTotal].text, &total)) {
      return wrong(kTotal, "a number");
    }
    if (event.bytes == 0) return absl::OkStatus();
    event.device = DeviceIndexOf(DeviceName(type, id));
    Before& before = before_[static_cast<size_t>(event.device)];
    if (event.nanoseconds < before.nanoseconds) {
      // `total` is the device's allocated bytes after the event, if given.
      before = {event.nanoseconds,
                std::clamp<int64_t>(total, 0, kMaxTraceBytes) -
                    std::min(event.bytes, kMaxTraceBytes)};
    }
    events_.push_back(event);
    return absl::OkStatus();
  }

  static bool ParseAddress(std::string_view text, uint64_t* value) {
    return text.starts_with("0x") ? ParseInt(text.substr(2), value, 16)
                                  : ParseInt(text, value);
  }

  int32_t DeviceIndexOf(const std::string& name) {
    const auto found = std::ranges::find(names_, name);
    if (found != names_.end()) {
      return static_cast<int32_t>(found - names_.begin());
    }
    names_.push_back(name);
    before_.emplace_back();
    return static_cast<int32_t>(names_.size() - 1);
  }

  absl::StatusOr<int32_t> Choose() const {
    if (names_.empty()) {
      const bool asked = !profile_memory_.empty() && profile_memory_ != "0";
      return At({.file = options_.file},
                asked ? "has no [memory] events, which its header asked for "
                        "(profile_memory): nothing was allocated while it was "
                        "recorded, or activities lack ProfilerActivity.CPU, "
                        "which records them"
                      : "has no [memory] events: record with torch.profiler."
                        "profile(profile_memory=True)");
    }
    std::vector<std::string> sorted = names_;
    std::ranges::sort(sorted);
    const std::string known = fmt::format("{}", fmt::join(sorted, ", "));
    if (options_.device.empty()) {
      if (names_.size() == 1) return 0;
      return At({.file = options_.file},
                fmt::format("has requests of {} devices ({}): choose one with "
                            "--device",
                            names_.size(), known));
    }
    const auto found = std::ranges::find(names_, options_.device);
    if (found == names_.end()) {
      return At({.file = options_.file},
                fmt::format("has no requests of device {}, only of {}",
                            Quoted(options_.device), known));
    }
    return static_cast<int32_t>(found - names_.begin());
  }

  // A buffer's lifetime, in requests of the device.
  struct Life {
    int64_t lower = 0;
    int64_t upper = kStillAlive;
    int64_t bytes = 0;
    int64_t index = 0;  // index in the file of the allocation's event
  };

  // Pairs allocations and frees by address. Request k is at time k + 1. Buffers
  // that are freed without an allocation are born at time 0. Bytes that are
  // alive before the first event (`before`) and never freed, such as weights,
  // become one buffer that lives throughout.
  absl::Status Pair(int64_t before) {
    std::vector<Life> lives;
    std::unordered_map<uint64_t, size_t> alive;
    int64_t lost = 0;
    for (size_t k = 0; k < events_.size(); ++k) {
      const TraceEvent& event = events_[k];
      const int64_t now = static_cast<int64_t>(k) + 1;
      const auto found = alive.find(event.address);
      if (event.bytes > 0) {
        if (found != alive.end()) {
          lives[found->second].upper = now;
          ++lost;
        }
        alive[event.address] = lives.size();
        lives.push_back(
            {.lower = now, .bytes = event.bytes, .index = event.index});
      } else if (found == alive.end()) {
        lives.push_back(
            {.upper = now, .bytes = -event.bytes, .index = event.index});
        before -= std::min(-event.bytes, std::max<int64_t>(before, 0));
      } else {
        SLUICE_RETURN_IF_ERROR(CheckSize(event, lives[found->second].bytes));
        lives[found->second].upper = now;
        alive.erase(found);
      }
    }
    if (before > 0) {
      lives.push_back({.bytes = before});
      builder_.out().notes.push_back(fmt::format(
          "{} bytes were allocated before the first event and are never freed: "
          "planned as one buffer that lives throughout",
          before));
    }
    if (lost > 0) {
      builder_.out().notes.push_back(fmt::format(
          "{} buffers have no free though their address was given out again: "
          "taken as freed just before",
          lost));
    }
    return AddAll(std::move(lives));
  }

  // Adds buffers in request order, those alive at the start first.
  absl::Status AddAll(std::vector<Life> lives) {
    std::ranges::stable_sort(lives, {}, &Life::lower);
    for (const Life& life : lives) {
      const absl::Status added = builder_.Add(
          fmt::to_string(builder_.size()), life.lower, life.upper, life.bytes);
      if (!added.ok()) {
        return At({.file = options_.file},
                  fmt::format("traceEvents[{}]: {}", life.index,
                              std::string(added.message())));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckSize(const TraceEvent& event, int64_t allocated) const {
    if (allocated == -event.bytes) return absl::OkStatus();
    return At({.file = options_.file},
              fmt::format("traceEvents[{}] frees {} bytes at address {:#x} "
                          "where {} were allocated: the trace has lost "
                          "requests, record it anew",
                          event.index, -event.bytes, event.address, allocated));
  }

  // The time of a device's first event, and the bytes alive before it.
  struct Before {
    int64_t nanoseconds = INT64_MAX;
    int64_t bytes = 0;
  };

  const TraceOptions& options_;
  TraceBuilder builder_;
  std::string profile_memory_;  // from the header; "" if absent
  std::vector<TraceEvent> events_;
  std::vector<Before> before_;  // by device
  std::vector<std::string> names_;
};

}  // namespace

absl::StatusOr<NamedTrace> ReadPyTorchTrace(std::istream& in,
                                            const TraceOptions& options,
                                            Bytes alignment) {
  return PyTorchReader(options, alignment).Read(in);
}

}  // namespace sluice::planner
