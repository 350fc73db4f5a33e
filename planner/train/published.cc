#include "planner/train/published.h"

#include <algorithm>
#include <map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "planner/train/constants.h"
#include "planner/train/hardware.h"
#include "proto/base/status.h"

namespace sluice::planner::train {
namespace {

// Returns the rows of a shipped table, the header first.
std::vector<std::vector<std::string>> TableRows(std::string_view table) {
  std::vector<std::vector<std::string>> rows;
  for (const ShippedFile& file : ShippedTables()) {
    if (file.name != table) continue;
    const std::string text(file.text);
    for (const auto line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      if (line[0] != '#') rows.push_back(absl::StrSplit(line, ','));
    }
  }
  return rows;
}

class Row {
 public:
  Row(const std::vector<std::string>& header,
      const std::vector<std::string>& cells) {
    for (size_t i = 0; i < header.size() && i < cells.size(); ++i) {
      cells_[header[i]] = cells[i];
    }
  }
  const std::string& Text(const std::string& column) { return cells_[column]; }
  std::optional<double> Number(const std::string& column) {
    const std::string& text = cells_[column];
    if (text.empty()) return std::nullopt;
    return std::atof(text.c_str());
  }
  std::optional<int64_t> Whole(const std::string& column) {
    return Number(column);
  }

 private:
  std::map<std::string, std::string> cells_;  // by column
};

Method MethodOf(const std::string& label) {
  if (label == "DeepSpeed-Ulysses") return Method::kUlysses;
  return label == "Megatron-LM" ? Method::kMegatron : Method::kMemo;
}

void SetDegrees(Row& row, GivenSettings& given) {
  given.tp = row.Whole("TP");
  given.cp = row.Whole("CP");
  given.sp = row.Whole("SP");
  given.dp = row.Whole("DP");
  given.pp = row.Whole("PP");
}

PublishedCell MainCell(Row row) {
  PublishedCell cell{
      .table = "main",
      .label = row.Text("method"),
      .model = "gpt-" + absl::AsciiStrToLower(row.Text("model")),
      .gpus = row.Whole("gpus").value_or(0),
      .seq_len = row.Whole("seq_k").value_or(0) << 10,
      .mfu_percent = row.Number("mfu_pct"),
      .method = MethodOf(row.Text("method")),
      .settings = {.zero = row.Whole("ZeRO"), .alpha = row.Number("alpha")}};
  SetDegrees(row, cell.settings);
  return cell;
}

// A cell of table 4, which gives TP 4 and CP 2 for all rows. MEMO's alphas are
// those of table 5 at the same lengths, and 0 where table 5 has another
// strategy.
PublishedCell AblationCell(const std::string& label, int64_t seq_len,
                           const std::string& value,
                           const std::vector<PublishedCell>& main) {
  const bool recompute = label.starts_with("Full recomputation");
  PublishedCell cell{.table = "ablation",
                     .label = label,
                     .model = "gpt-7b",
                     .gpus = 8,
                     .seq_len = seq_len,
                     .method = recompute ? Method::kMegatron : Method::kMemo,
                     .settings = {.tp = 4, .cp = 2, .dp = 1, .pp = 1}};
  if (!value.starts_with("oo")) cell.mfu_percent = std::atof(value.c_str());
  GivenSettings& given = cell.settings;
  if (recompute) {
    given.memory_plan = absl::StrContains(label, "plan");
  } else if (absl::StrContains(label, "swapping")) {
    given.alpha = 1;
  } else {
    given.alpha = 0;
    for (const PublishedCell& other : main) {
      if (other.method == Method::kMemo && other.model == "gpt-7b" &&
          other.seq_len == seq_len && other.settings.alpha) {
        given.alpha = other.settings.alpha;
      }
    }
  }
  return cell;
}

bool IsShipped(const Hardware& hardware, const std::string& name) {
  const absl::StatusOr<Hardware> shipped = FindHardware(name);
  return shipped.ok() && hardware == *shipped;
}

}  // namespace

std::vector<PublishedCell> PublishedCells() {
  std::vector<PublishedCell> cells;
  auto rows = TableRows("memo_main");
  for (size_t i = 1; i < rows.size(); ++i) {
    cells.push_back(MainCell(Row(rows[0], rows[i])));
  }
  const std::vector<PublishedCell> main = cells;
  rows = TableRows("memo_ablation");
  for (size_t i = 1; i < rows.size(); ++i) {
    for (size_t j = 1; j < rows[i].size(); ++j) {
      const int64_t tokens = ParseTokens(rows[0][j]).value_or(0);
      cells.push_back(AblationCell(rows[i][0], tokens, rows[i][j], main));
    }
  }
  return cells;
}

std::vector<PublishedLength> PublishedLengths() {
  // FPDT's table means GPT by 2.7B, 13B and 30B, and Llama-3 by 8B and 70B.
  const std::map<std::string, std::string> models = {{"2.7B", "gpt-2.7b"},
                                                     {"13B", "gpt-13b"},
                                                     {"30B", "gpt-30b"},
                                                     {"8B", "llama-8b"},
                                                     {"70B", "llama-70b"}};
  std::vector<PublishedLength> lengths;
  const auto rows = TableRows("fpdt_max_context");
  for (size_t i = 1; i < rows.size(); ++i) {
    Row row(rows[0], rows[i]);
    std::string tokens = row.Text("max_seq");
    PublishedLength length;
    length.or_more = !tokens.empty() && tokens.back() == '+';
    if (length.or_more) tokens.pop_back();
    const auto model = models.find(row.Text("model"));
    length.model = model == models.end() ? row.Text("model") : model->second;
    length.hardware = "fpdt-" + absl::AsciiStrToLower(row.Text("gpu"));
    length.gpus = row.Whole("gpus").value_or(0);
    length.tokens = ParseTokens(tokens).value_or(0);
    lengths.push_back(std::move(length));
  }
  return lengths;
}

std::vector<PublishedRow> PublishedRows() {
  std::vector<PublishedRow> published;
  const auto rows = TableRows("published_rows");
  for (size_t i = 1; i < rows.size(); ++i) {
    Row row(rows[0], rows[i]);
    PublishedRow one{.publication = row.Text("publication"),
                     .model = row.Text("model"),
                     .hardware = row.Text("hardware"),
                     .gpus = row.Whole("gpus").value_or(0),
                     .seq_len = ParseTokens(row.Text("seq_len")).value_or(0),
                     .global_batch = row.Whole("batch").value_or(1),
                     .quantity = row.Text("quantity"),
                     .value = row.Number("value").value_or(0),
                     .judged = row.Text("use") == "judge"};
    if (const auto gigabytes = row.Number("host_gb")) {
      one.host_bytes = *gigabytes * 1e9;
    }
    if (const auto method = FindMethod(row.Text("method")); method.ok()) {
      one.method = *method;
    }
    SetDegrees(row, one.settings);
    one.settings.interleave = row.Whole("interleave");
    const auto recompute = FindRecompute(row.Text("recompute"));
    if (recompute.ok()) one.settings.recompute = *recompute;
    // The papers' settings: Megatron-LM's ZeRO, FPDT's chunk.
    if (one.method == Method::kMegatron) one.settings.zero = 1;
    if (one.method == Method::kFpdt) {
      one.settings.zero = 3;
      one.settings.chunk = kFpdtChunk;
    }
    published.push_back(std::move(one));
  }
  return published;
}

Evidence EvidenceOf(const Request& request) {
  Evidence evidence;
  if (IsShipped(request.hardware, kMemoHardware)) {
    for (const PublishedCell& cell : PublishedCells()) {
      if (cell.method != request.method) continue;
      evidence.speed = evidence.memory = "MEMO, tables 3 to 7";
      return evidence;
    }
  }
  for (const PublishedRow& row : PublishedRows()) {
    // ALST's constants were chosen with all of its rows in view.
    if (!row.judged || row.method != request.method ||
        row.method == Method::kAlst ||
        !IsShipped(request.hardware, row.hardware)) {
      continue;
    }
    std::string& of = row.seq_len > 0 ? evidence.speed : evidence.memory;
    if (absl::StrContains(of, row.publication)) continue;
    of += (of.empty() ? "" : ", ") + row.publication;
  }
  if (request.method != Method::kFpdt) return evidence;
  for (const PublishedLength& row : PublishedLengths()) {
    if (!IsShipped(request.hardware, row.hardware)) continue;
    evidence.memory = "FPDT, table 1";
    break;
  }
  return evidence;
}

}  // namespace sluice::planner::train
