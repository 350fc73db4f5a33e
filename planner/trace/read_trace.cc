// Detects the input's format, calls its reader, and writes plans as CSV.
#include "planner/trace/read_trace.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <exception>
#include <iterator>
#include <streambuf>

#include "planner/trace/json_records.h"
#include "planner/trace/readers.h"
#include "proto/base/status.h"
#include "proto/base/units.h"

namespace sluice::planner {
namespace {

struct KnownFormat {
  std::string_view name;
  TraceReader* read;
};
// In the order of TraceFormat.
constexpr KnownFormat kFormats[] = {{"minimalloc", &ReadCsvTrace},
                                    {"log", &ReadRequestLog},
                                    {"pytorch", &ReadPyTorchTrace},
                                    {"profile", &ReadProfile}};
static_assert(std::size(kFormats) ==
              static_cast<size_t>(TraceFormat::kProfile) + 1);

constexpr size_t kPrefixBytes = 64 << 10;

// A stream buffer that shows the input's first bytes and still delivers them to
// the reader. The input may be a pipe, so nothing can be read twice.
class Sniffed : public std::streambuf {
 public:
  explicit Sniffed(std::streambuf* from) : from_(from) { Fill(); }
  // Returns whether reading failed. The bytes read before the failure may look
  // like a whole input.
  bool failed() const { return failed_; }
  std::string_view prefix() const {
    return {gptr(), static_cast<size_t>(egptr() - gptr())};
  }

 protected:
  int_type underflow() override {
    if (gptr() == egptr()) Fill();
    return gptr() == egptr() ? traits_type::eof()
                             : traits_type::to_int_type(*gptr());
  }

 private:
  void Fill() {
    std::streamsize got = 0;
    try {
      got = from_->sgetn(block_.data(), block_.size());
    } catch (const std::exception&) {  // std::filebuf throws on EIO
      failed_ = true;
    }
    setg(block_.data(), block_.data(), block_.data() + got);
  }

  std::streambuf* from_;
  bool failed_ = false;
  std::array<char, kPrefixBytes> block_;
};

// Returns the format that the first known key belongs to.
TraceFormat JsonFormat(std::string_view prefix) {
  for (const std::string& key : RootKeys(prefix)) {
    if (key == "[" || key == "traceEvents") return TraceFormat::kPyTorch;
    for (const char* ours : {"alpha", "backward_d2h_fixed", "classes", "format",
                             "profiles", "rank", "segments"}) {
      if (key == ours) return TraceFormat::kProfile;
    }
  }
  return TraceFormat::kPyTorch;  // the PyTorch reader reports what is missing
}

std::string_view FirstLineOf(std::string_view prefix) {
  if (prefix.starts_with("\xef\xbb\xbf")) prefix.remove_prefix(3);
  for (;;) {
    const size_t end = prefix.find('\n');
    const std::string_view line = Trimmed(prefix.substr(0, end));
    if (!line.empty() && line.front() != '#') return line;
    if (end == std::string_view::npos) return {};
    prefix.remove_prefix(end + 1);
  }
}

absl::StatusOr<TraceFormat> Detect(std::string_view prefix,
                                   const std::string& file) {
  const Place place{.file = file};
  if (prefix.starts_with("\x1f\x8b")) {
    return At(place,
              "is compressed by gzip: give zcat's output (zcat FILE | "
              "sluicectl plan memory -)");
  }
  const std::string_view line = FirstLineOf(prefix);
  if (line.empty()) return At(place, "is empty: there is nothing to plan");
  if (line.front() == '{' || line.front() == '[') return JsonFormat(prefix);
  const std::string_view word = Words(line).front();
  if (word == "malloc" || word == "free") return TraceFormat::kRequestLog;
  if (line.find(',') != std::string_view::npos) return TraceFormat::kMiniMalloc;
  return At(place,
            fmt::format("is no trace we know (it begins with {}): give a CSV "
                        "with id,lower,upper,size, a log of malloc and free, "
                        "a PyTorch or a Sluice trace, or name it with "
                        "--format",
                        Quoted(line)));
}

absl::StatusOr<NamedTrace> ReadText(Sniffed& text,
                                    const TraceOptions& options) {
  TraceFormat format = TraceFormat::kMiniMalloc;
  if (options.format) {
    format = *options.format;
  } else {
    SLUICE_ASSIGN_OR_RETURN(format, Detect(text.prefix(), options.file));
  }
  const bool of_one_device =
      format == TraceFormat::kMiniMalloc || format == TraceFormat::kRequestLog;
  if (of_one_device && !options.device.empty()) {
    return At({.file = options.file},
              fmt::format("has no devices to choose from, as it is of format "
                          "{}: leave --device {} out",
                          NameOf(format), Quoted(options.device)));
  }
  std::istream stream(&text);
  const Bytes usual(format == TraceFormat::kMiniMalloc ? 1 : 512);
  const auto read = kFormats[static_cast<size_t>(format)].read;
  return read(stream, options, options.alignment.value_or(usual));
}

absl::Status CheckAlignment(Bytes alignment) {
  constexpr int64_t kMost = int64_t{1} << 30;
  const int64_t n = alignment.count();
  if (n >= 1 && n <= kMost && (n & (n - 1)) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("an alignment of {}: give a power of two from 1B to {}",
                  ExactBytes(alignment), ExactBytes(Bytes(kMost))));
}

}  // namespace

std::optional<TraceFormat> TraceFormatOf(std::string_view name) {
  const auto at = std::ranges::find(kFormats, name, &KnownFormat::name);
  if (at == std::end(kFormats)) return std::nullopt;
  return static_cast<TraceFormat>(at - std::begin(kFormats));
}

std::string_view NameOf(TraceFormat format) {
  return kFormats[static_cast<size_t>(format)].name;
}

absl::StatusOr<NamedTrace> ReadTrace(std::istream& in,
                                     const TraceOptions& options) {
  if (options.alignment) {
    SLUICE_RETURN_IF_ERROR(CheckAlignment(*options.alignment));
  }
  Sniffed given(in.rdbuf());
  auto named = ReadText(given, options);
  if (given.failed()) return At({.file = options.file}, "cannot be read");
  return named;
}

std::string PlanCsv(const NamedTrace& named,
                    const std::vector<Bytes>& offsets) {
  SLUICE_CHECK(offsets.size() == named.trace.buffers.size());
  const bool given = !named.csv_header.empty();
  std::string text =
      (given ? named.csv_header : "id,lower,upper,size") + ",offset\n";
  for (size_t k = 0; k < offsets.size(); ++k) {
    const plan::Buffer& b = named.trace.buffers[k];
    if (given) {
      text += named.csv_rows[k];
    } else {
      fmt::format_to(std::back_inserter(text), "{},{},{},{}", named.names[k],
                     b.lower, b.upper, b.size.count());
    }
    fmt::format_to(std::back_inserter(text), ",{}\n", offsets[k].count());
  }
  return text;
}

}  // namespace sluice::planner
