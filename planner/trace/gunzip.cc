// The only file that calls zlib.
#include "planner/trace/gunzip.h"

#include <fmt/format.h>

#include <utility>

#include "proto/base/status.h"

namespace sluice::planner {

bool IsGzip(std::string_view prefix) { return prefix.starts_with("\x1f\x8b"); }

Gunzip::Gunzip(std::streambuf* from) : from_(from) {
  constexpr int kGzipOnly = 16;
  // Fails only without memory, as any allocation may.
  SLUICE_CHECK(inflateInit2(&zlib_, kGzipOnly + MAX_WBITS) == Z_OK);
}

Gunzip::~Gunzip() { inflateEnd(&zlib_); }

Gunzip::int_type Gunzip::underflow() {
  while (gptr() == egptr() && state_ != State::kEnded) {
    if (zlib_.avail_in == 0) Refill();
    if (state_ == State::kBetween) {
      StartNext();
    } else {
      Expand();
    }
  }
  return gptr() == egptr() ? traits_type::eof()
                           : traits_type::to_int_type(*gptr());
}

void Gunzip::Refill() {
  const std::streamsize got = from_->sgetn(in_.data(), in_.size());
  taken_ += got;
  zlib_.next_in = reinterpret_cast<Bytef*>(in_.data());
  zlib_.avail_in = static_cast<uInt>(got);
}

// Also without input: what zlib holds back may fill several blocks.
void Gunzip::Expand() {
  zlib_.next_out = reinterpret_cast<Bytef*>(out_.data());
  zlib_.avail_out = out_.size();
  const int result = inflate(&zlib_, Z_NO_FLUSH);
  const size_t got = out_.size() - zlib_.avail_out;
  given_ += static_cast<int64_t>(got);
  setg(out_.data(), out_.data(), out_.data() + got);
  const int64_t at = taken_ - zlib_.avail_in;
  if (result == Z_STREAM_END) {
    state_ = State::kBetween;
  } else if (result == Z_BUF_ERROR) {  // neither input nor text is left
    Fail(
        fmt::format("is a gzip file that is cut off after {} bytes: copy or "
                    "record it anew",
                    at));
  } else if (result != Z_OK) {
    Fail(
        fmt::format("is a damaged gzip file (byte {}: {}): copy or record it "
                    "anew",
                    at, zlib_.msg != nullptr ? zlib_.msg : zError(result)));
  }
  if (given_ > kFreelyExpanded && given_ / kMostExpansion > taken_) {
    Fail(
        fmt::format("is a gzip file that expands to more than {} bytes, over "
                    "{} times its size, as no trace does: if it is one, "
                    "gunzip it first",
                    kFreelyExpanded, kMostExpansion));
  }
}

// As gzip does: files may be joined, and a tape's zeros may follow.
void Gunzip::StartNext() {
  while (zlib_.avail_in > 0 && *zlib_.next_in == 0) {
    ++zlib_.next_in;
    if (--zlib_.avail_in == 0) Refill();
  }
  if (zlib_.avail_in == 0) {
    state_ = State::kEnded;
  } else if (*zlib_.next_in == 0x1f) {
    inflateReset(&zlib_);
    state_ = State::kInMember;
  } else {
    Fail(
        fmt::format("is a gzip file with something else after its end (byte "
                    "{}): cut that off",
                    taken_ - zlib_.avail_in));
  }
}

void Gunzip::Fail(std::string fault) {
  fault_ = std::move(fault);
  state_ = State::kEnded;
  setg(out_.data(), out_.data(), out_.data());
}

}  // namespace sluice::planner
