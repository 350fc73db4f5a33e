#include "client/train/data/batch.h"

#include <fmt/format.h>

#include <algorithm>

#include "client/train/launch/outcome.h"
#include "proto/base/status.h"

namespace sluice::train {

// The last token of a sequence needs one more token as its label.
int64_t Dealer::Start(int64_t cursor) const {
  return cursor + layout_.seq_len() < corpus_->tokens() ? cursor : 0;
}

absl::Status CheckLength(const Corpus& corpus, int64_t seq_len) {
  if (seq_len < corpus.tokens()) return absl::OkStatus();
  return BadInput(fmt::format(
      "--data has {} tokens, --seq-len {} needs {}: give more text or a "
      "shorter length",
      corpus.tokens(), seq_len, seq_len + 1));
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
