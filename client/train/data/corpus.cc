#include "client/train/data/corpus.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "client/train/launch/outcome.h"
#include "proto/base/shortage.h"
#include "proto/base/status.h"
#include "proto/plan/units.h"

namespace sluice::train {
namespace fs = std::filesystem;
namespace {

constexpr int64_t kProbeBytes = 4096;
constexpr int64_t kPieces = 64;  // pieces of the text in a fingerprint
constexpr int64_t kPieceTokens = 4096;

// Returns the first `count` bytes of a file, or fewer if it is shorter.
absl::StatusOr<std::string> Head(const std::string& path, size_t count) {
  // Without O_NONBLOCK, opening a pipe would wait for its writer.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  std::string bytes(count, '\0');
  const ssize_t n = fd ? read(fd.get(), bytes.data(), count) : -1;
  if (n < 0) return ErrnoStatus(errno, "open " + path);
  bytes.resize(static_cast<size_t>(n));
  return bytes;
}

// Git's rule: text has no NUL in its first bytes.
absl::StatusOr<bool> LooksBinary(const std::string& path) {
  const auto head = Head(path, kProbeBytes);
  if (head.ok()) return head->find('\0') != std::string::npos;
  // An unreadable file is no part of the text, but a lack of descriptors must
  // not leave out a file silently.
  if (ShortageOf(head.status()) != Shortage::kNone) return head.status();
  return true;
}

// Decodes a little-endian token of `width` bytes (1, 2 or 4).
int64_t DecodeToken(const unsigned char* bytes, int width) {
  uint32_t value = 0;
  std::memcpy(&value, bytes, static_cast<size_t>(width));
  return value;
}

constexpr int64_t kLlmcHeaderBytes = 256 * 4;

int64_t Word(const std::string& bytes, size_t index) {
  return DecodeToken(
      reinterpret_cast<const unsigned char*>(bytes.data()) + 4 * index, 4);
}

// Returns the bytes per token; 0 if `head` is no header of llm.c.
int LlmcWidth(const std::string& head) {
  if (head.size() < kLlmcHeaderBytes) return 0;
  if (Word(head, 0) == 20240520 && Word(head, 1) == 1) return 2;
  if (Word(head, 0) == 20240801 && Word(head, 1) == 7) return 4;
  return 0;
}

// Returns the bytes per token by Megatron's index; 0: no such index.
int MegatronWidth(const std::string& path) {
  const std::string index =
      path.substr(0, path.size() - std::strlen(".bin")) + ".idx";
  const std::string head = Head(index, 18).value_or("");
  if (head.size() < 18 || !head.starts_with("MMIDIDX")) return 0;
  if (head[17] == 8) return 2;
  if (head[17] == 4) return 4;
  return 0;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Corpus>> Corpus::Open(const Options& options) {
  std::unique_ptr<Corpus> corpus(new Corpus(options));
  Options& own = corpus->options_;
  if (own.path.empty()) {
    // Uses the torch package of $SLUICE_PYTHON_PACKAGES, else of the build.
    const char* packages = std::getenv("SLUICE_PYTHON_PACKAGES");
    const bool set = packages != nullptr && *packages != '\0';
    own.path = set ? packages : SLUICE_PYTHON_PACKAGES_FOLDER;
    own.path += "/torch";
    if (own.suffix.empty()) own.suffix = ".py";
  }
  struct stat info;
  if (stat(own.path.c_str(), &info) != 0) {
    const int error = errno;
    return Mark(
        absl::NotFoundError(fmt::format(
            "--data {}: {}; name a text file, a folder or a .bin of token ids",
            own.path, std::strerror(error))),
        ShortageOfErrno(error));
  }
  if (!S_ISDIR(info.st_mode) && !S_ISREG(info.st_mode)) {
    return BadInput(
        "--data {}: a pipe, socket or device, and batches are read from any "
        "place of it; write what it gives to a file and name that",
        own.path);
  }
  if (S_ISDIR(info.st_mode)) {
    if (own.token_bytes > 0) {
      return BadInput(
          "--token-bytes {}: of the folder --data {} only text is "
          "read, as bytes; name one .bin",
          own.token_bytes, own.path);
    }
    SLUICE_RETURN_IF_ERROR(corpus->AddFolder(own.path));
  } else if (own.path.ends_with(".bin") || own.token_bytes > 0) {
    SLUICE_RETURN_IF_ERROR(corpus->AddIds(own.path, info.st_size));
  } else {
    SLUICE_ASSIGN_OR_RETURN(const bool binary, LooksBinary(own.path));
    if (info.st_size > 0 && binary) {
      return BadInput(
          "--data {}: not text (its first {} bytes cannot be read or hold a "
          "NUL byte); name a text file, or give --token-bytes 2 or 4 where it "
          "holds token ids",
          own.path, kProbeBytes);
    }
    corpus->AddText(own.path, info.st_size);
  }
  if (corpus->total_ == 0) {
    return BadInput(
        "--data {}: holds no {}", own.path,
        own.suffix.empty() ? "text" : "text in files named *" + own.suffix);
  }
  if (corpus->token_bytes_ == 1 && own.vocab < 256) {
    return BadInput("--vocab {}: bytes as tokens need 256", own.vocab);
  }
  return corpus;
}

absl::Status Corpus::AddFolder(const std::string& path) {
  std::error_code error;
  std::vector<std::pair<std::string, int64_t>> found;
  fs::recursive_directory_iterator it(path, error), end;
  for (; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->path().filename().string().starts_with('.')) {
      if (it->is_directory(ignored)) it.disable_recursion_pending();
      continue;
    }
    if (!it->is_regular_file(ignored)) continue;
    const std::string name = it->path().string();
    if (!name.ends_with(options_.suffix)) continue;
    const int64_t size = static_cast<int64_t>(it->file_size(ignored));
    if (size == 0) continue;
    SLUICE_ASSIGN_OR_RETURN(const bool binary, LooksBinary(name));
    if (!binary) found.emplace_back(name, size);
  }
  if (error) {
    return BadInputOfErrno(error.value(),
                           fmt::format("--data {}: cannot walk the folder: {}",
                                       path, error.message()));
  }
  std::sort(found.begin(), found.end());
  for (const auto& [name, size] : found) AddText(name, size);
  return absl::OkStatus();
}

void Corpus::AddText(const std::string& path, int64_t bytes) {
  files_.push_back({path, total_, bytes, 0});
  total_ += bytes;
}

// Known layouts: llm.c's header (magic 20240520 version 1: uint16; 20240801
// version 7: uint32), a Megatron dataset (raw ids; its `.idx` names their
// type), and raw ids of --token-bytes.
absl::Status Corpus::AddIds(const std::string& path, int64_t bytes) {
  const std::string head = Head(path, kLlmcHeaderBytes).value_or("");
  token_bytes_ = LlmcWidth(head);
  if (token_bytes_ != 0) {
    total_ = Word(head, 2);
    files_.push_back({path, 0, total_, kLlmcHeaderBytes});
    if (bytes == kLlmcHeaderBytes + total_ * token_bytes_) {
      return absl::OkStatus();
    }
    return BadInput(
        "--data {}: its header says {} tokens of {} bytes, the file has {} "
        "bytes; it is cut short or broken",
        path, total_, token_bytes_, bytes);
  }
  token_bytes_ =
      options_.token_bytes != 0 ? options_.token_bytes : MegatronWidth(path);
  if (token_bytes_ == 0) {
    return BadInput(
        "--data {}: no llm.c header and no .idx beside it; say --token-bytes "
        "2 or 4",
        path);
  }
  if (bytes % token_bytes_ != 0) {
    return BadInput("--data {}: {} bytes are not a whole number of {}-byte ids",
                    path, bytes, token_bytes_);
  }
  total_ = bytes / token_bytes_;
  files_.push_back({path, 0, total_, 0});
  return absl::OkStatus();
}

absl::Status Corpus::ReadFile(size_t index, int64_t first,
                              std::span<int64_t> out) {
  const File& file = files_[index];
  if (open_index_ != index) {
    open_ = UniqueFd(open(file.path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!open_) return ErrnoStatus(errno, "open " + file.path);
    open_index_ = index;
  }
  bytes_.resize(out.size() * static_cast<size_t>(token_bytes_));
  const ssize_t n = pread(open_.get(), bytes_.data(), bytes_.size(),
                          file.skip + first * token_bytes_);
  if (n < 0) return ErrnoStatus(errno, "read " + file.path);
  if (n != static_cast<ssize_t>(bytes_.size())) {
    return BadInput("--data {}: got {} of {} bytes; it changed while training",
                    file.path, n, bytes_.size());
  }
  for (size_t i = 0; i < out.size(); ++i) {
    out[i] = DecodeToken(&bytes_[i * static_cast<size_t>(token_bytes_)],
                         token_bytes_);
    if (out[i] >= options_.vocab) {
      return BadInput(
          "--data {}: token {} has id {}, --vocab is {}; give a larger vocab",
          file.path, first + static_cast<int64_t>(i), out[i], options_.vocab);
    }
  }
  return absl::OkStatus();
}

absl::Status Corpus::Read(int64_t first, std::span<int64_t> out) {
  if (first < 0 || first + static_cast<int64_t>(out.size()) > total_) {
    return absl::OutOfRangeError(
        fmt::format("tokens {} to {} of a corpus of {}", first,
                    first + static_cast<int64_t>(out.size()), total_));
  }
  const auto behind = std::ranges::upper_bound(files_, first, {}, &File::first);
  for (size_t index = behind - files_.begin() - 1; !out.empty(); ++index) {
    const int64_t inside = first - files_[index].first;
    const int64_t n =
        std::min<int64_t>(files_[index].tokens - inside, std::ssize(out));
    SLUICE_RETURN_IF_ERROR(ReadFile(index, inside, out.subspan(0, n)));
    out = out.subspan(n);
    first += n;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Corpus::Fingerprint() {
  std::string bytes = fmt::format("{} tokens;", total_);
  const int64_t size = std::min(kPieceTokens, total_);
  std::vector<int64_t> tokens(static_cast<size_t>(size));
  int64_t done = 0;  // end of the last piece; pieces of a short text overlap
  for (int64_t i = 0; i < kPieces; ++i) {
    const int64_t at =
        i + 1 < kPieces ? (total_ - size) / (kPieces - 1) * i : total_ - size;
    if (at + size <= done) continue;
    SLUICE_RETURN_IF_ERROR(Read(at, tokens));
    for (const int64_t token : tokens) {
      for (int shift = 0; shift < 32; shift += 8) {
        bytes += static_cast<char>(token >> shift & 0xff);
      }
    }
    done = at + size;
  }
  return plan::HashBytes(bytes);
}

// The last token of a sequence needs one more token as its label.
int64_t Dealer::Start(int64_t cursor) const {
  return cursor + layout_.seq_len() < corpus_->tokens() ? cursor : 0;
}

absl::Status CheckLength(const Corpus& corpus, int64_t seq_len) {
  if (seq_len < corpus.tokens()) return absl::OkStatus();
  return BadInput(
      "--data has {} tokens, --seq-len {} needs {}: give more text or a "
      "shorter length",
      corpus.tokens(), seq_len, seq_len + 1);
}

absl::Status Dealer::Deal(int64_t cursor, std::span<int64_t> ids,
                          std::span<int64_t> labels) {
  const int64_t start = Start(cursor);
  for (int64_t m = 0; m < layout_.chunks(); ++m) {
    const int64_t rows = layout_.local_rows(m, rank_);
    if (rows == 0) continue;
    tokens_.resize(static_cast<size_t>(rows) + 1);
    SLUICE_RETURN_IF_ERROR(corpus_->Read(
        start + layout_.begin(m) + layout_.local_offset(m, rank_), tokens_));
    const size_t at = static_cast<size_t>(layout_.local_rows_before(m, rank_));
    std::copy(tokens_.begin(), tokens_.end() - 1, ids.begin() + at);
    std::copy(tokens_.begin() + 1, tokens_.end(), labels.begin() + at);
  }
  return absl::OkStatus();
}

}  // namespace sluice::train
