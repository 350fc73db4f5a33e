// The text inside a gzip file, as a stream (internal to planner/trace). PyTorch
// writes its profiler's traces so.
//
// Thread safety: one owner.
#pragma once

#include <zlib.h>

#include <array>
#include <cstdint>
#include <streambuf>
#include <string>
#include <string_view>

namespace sluice::planner {

// Text beyond kFreelyExpanded must not be over kMostExpansion times the file:
// a gzip bomb is up to 1,032 times, which is all that the format can. A text of
// any size is allowed below that, as a plain file's is.
inline constexpr int64_t kFreelyExpanded = int64_t{256} << 20;
inline constexpr int64_t kMostExpansion = 200;

// What begins so is a gzip file, whatever its name.
bool IsGzip(std::string_view prefix);

class Gunzip : public std::streambuf {
 public:
  // `from` begins at the first byte of the gzip file, throws nothing, and
  // outlives it.
  explicit Gunzip(std::streambuf* from);
  ~Gunzip() override;
  Gunzip(const Gunzip&) = delete;

  // Why the stream has ended before its text did; "": it has not. For a
  // message after the file's name.
  const std::string& fault() const { return fault_; }

 protected:
  int_type underflow() override;

 private:
  enum class State { kInMember, kBetween, kEnded };

  void Refill();
  void Expand();
  void StartNext();
  void Fail(std::string fault);

  std::streambuf* from_;
  z_stream zlib_ = {};
  State state_ = State::kInMember;
  int64_t taken_ = 0;  // bytes that have come from `from_`
  int64_t given_ = 0;  // bytes of text
  std::string fault_;
  std::array<char, 64 << 10> in_;
  std::array<char, 64 << 10> out_;
};

}  // namespace sluice::planner
