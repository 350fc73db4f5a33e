#include "client/train/checkpoint/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/train/checkpoint/checkpoint_files.h"
#include "client/train/checkpoint/hf_names.h"
#include "client/train/checkpoint/safetensors.h"
#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"

namespace sluice::train {
namespace {

// Of a transposed tensor, copied at a time: far below HostScope's cap.
constexpr int64_t kPieceElements = 1 << 18;

TensorType TypeOf(const at::Tensor& tensor) {
  return tensor.scalar_type() == at::kBFloat16 ? TensorType::kBF16
                                               : TensorType::kF32;
}

TensorInfo InfoOf(const HfTensor& tensor, const at::Tensor& flat) {
  return {tensor.name, TypeOf(flat), tensor.shape()};
}

at::Tensor Part(const at::Tensor& flat, const FlatEntry& entry) {
  return flat.narrow(0, entry.offset, entry.size).view(entry.shape);
}

int64_t Bytewise(const at::Tensor& tensor) {
  return static_cast<int64_t>(tensor.nbytes());
}

// Inputs [first, first + n) of a transposed tensor: rows of the file.
struct Rows {
  int64_t first, n;
};

std::vector<Rows> CutRows(const HfTensor& tensor) {
  const std::vector<int64_t> shape = tensor.shape();
  const int64_t step = std::max<int64_t>(kPieceElements / shape[1], 1);
  std::vector<Rows> rows;
  for (int64_t at = 0; at < shape[0]; at += step) {
    rows.push_back({at, std::min(step, shape[0] - at)});
  }
  return rows;
}

absl::Status WriteTransposed(const HfTensor& tensor, const at::Tensor& flat,
                             SafetensorsWriter& writer) {
  for (const Rows& rows : CutRows(tensor)) {
    std::vector<at::Tensor> columns;
    for (const FlatEntry& entry : tensor.parts) {
      columns.push_back(Part(flat, entry).narrow(1, rows.first, rows.n).t());
    }
    const at::Tensor piece = at::cat(columns, 1).contiguous();
    SLUICE_RETURN_IF_ERROR(writer.Append(piece.data_ptr(), Bytewise(piece)));
  }
  return absl::OkStatus();
}

absl::Status WriteWeights(const std::string& path,
                          const stream::ModelShape& config,
                          const at::Tensor& flat) {
  const runtime::HostScope host("writing a checkpoint");
  const std::vector<HfTensor> tensors = HfTensors(config);
  std::vector<TensorInfo> infos;
  for (const HfTensor& t : tensors) infos.push_back(InfoOf(t, flat));
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::Create(path, infos));
  for (const HfTensor& t : tensors) {
    if (t.transposed) {
      SLUICE_RETURN_IF_ERROR(WriteTransposed(t, flat, *writer));
      continue;
    }
    for (const FlatEntry& entry : t.parts) {
      const at::Tensor part = Part(flat, entry);
      SLUICE_RETURN_IF_ERROR(writer->Append(part.data_ptr(), Bytewise(part)));
    }
  }
  return writer->Close();
}

absl::Status ReadTransposed(const SafetensorsReader& reader,
                            const HfTensor& tensor, const at::Tensor& flat) {
  const int64_t width = tensor.shape()[1];
  for (const Rows& rows : CutRows(tensor)) {
    at::Tensor piece = at::empty({rows.n, width}, flat.scalar_type());
    SLUICE_RETURN_IF_ERROR(
        reader.Read(tensor.name, rows.first * width * piece.element_size(),
                    piece.data_ptr(), Bytewise(piece)));
    int64_t column = 0;
    for (const FlatEntry& entry : tensor.parts) {
      const int64_t outputs = entry.shape[0];
      Part(flat, entry)
          .narrow(1, rows.first, rows.n)
          .copy_(piece.narrow(1, column, outputs).t());
      column += outputs;
    }
  }
  return absl::OkStatus();
}

absl::Status ReadPlain(const SafetensorsReader& reader, const HfTensor& tensor,
                       const at::Tensor& flat) {
  int64_t offset = 0;
  for (const FlatEntry& entry : tensor.parts) {
    const at::Tensor part = Part(flat, entry);
    SLUICE_RETURN_IF_ERROR(
        reader.Read(tensor.name, offset, part.data_ptr(), Bytewise(part)));
    offset += Bytewise(part);
  }
  return absl::OkStatus();
}

// Nothing draws random numbers after the start yet; the state is kept so
// that what will (dropout) resumes rightly.
at::Tensor RandomState() {
  return at::globalContext().defaultGenerator(at::kCPU).get_state();
}

absl::Status LoadRandomState(const SafetensorsReader& reader) {
  at::Tensor state = RandomState();
  SLUICE_RETURN_IF_ERROR(
      reader.Expect({"rng_state", TensorType::kU8, {state.numel()}}));
  SLUICE_RETURN_IF_ERROR(
      reader.Read("rng_state", 0, state.data_ptr(), state.numel()));
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  generator.set_state(state);
  return absl::OkStatus();
}

std::vector<std::pair<const char*, at::Tensor>> NamedStates(AdamW& optimizer) {
  AdamW::States& s = optimizer.states();
  std::vector<std::pair<const char*, at::Tensor>> named = {{"m", s.m},
                                                           {"v", s.v}};
  if (s.master.defined()) named.emplace_back("master", s.master);
  return named;
}

absl::Status WriteOptimizer(const std::string& path, AdamW& optimizer) {
  const runtime::HostScope host("writing a checkpoint");
  const at::Tensor random = RandomState();
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : NamedStates(optimizer)) {
    infos.push_back({name, TensorType::kF32, {t.numel()}});
  }
  infos.push_back({"rng_state", TensorType::kU8, {random.numel()}});
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::Create(path, infos));
  for (const auto& [name, t] : NamedStates(optimizer)) {
    SLUICE_RETURN_IF_ERROR(writer->Append(t.data_ptr(), Bytewise(t)));
  }
  SLUICE_RETURN_IF_ERROR(writer->Append(random.data_ptr(), random.numel()));
  return writer->Close();
}

absl::Status WritePlan(const std::string& path, const StepperContext& context,
                       const SavedPlan* plan) {
  if (plan == nullptr) return absl::OkStatus();
  const nlohmann::ordered_json json = {
      {"key", PlanKey(*context.options, context.environment->world_size,
                      context.memory->size())},
      {"profile", plan::Encode(plan->profile)},
      {"plan", plan::Encode(plan->plan)}};
  return WriteFile(path, json.dump() + "\n");
}

// "" where there is no such text.
std::string TextOf(const nlohmann::json& json, const char* name) {
  if (!json.is_object() || !json.contains(name)) return "";
  return json[name].is_string() ? json[name].get<std::string>() : "";
}

// A plan that is missing, broken or of another run is made anew. It comes
// from a file, so it is validated as one that comes from the daemon is.
std::optional<SavedPlan> ReadPlan(const std::string& path,
                                  const std::string& key, Rank rank) {
  const auto text = ReadFile(path);
  if (!text.ok()) return std::nullopt;
  const auto json = nlohmann::json::parse(*text, nullptr, false);
  if (TextOf(json, "key") != key) return std::nullopt;
  auto profile = plan::DecodeRankProfile(TextOf(json, "profile"));
  auto plan = plan::DecodeNodePlan(TextOf(json, "plan"));
  if (!profile.ok() || !plan.ok() || profile->rank != rank) {
    return std::nullopt;
  }
  const plan::RankPlan* part = plan::PartOf(*plan, *profile);
  if (part == nullptr || !plan::ValidateRankPlan(*profile, *part).ok()) {
    return std::nullopt;
  }
  return SavedPlan{*std::move(profile), *std::move(plan)};
}

absl::Status WriteOwnFiles(const std::string& folder,
                           const StepperContext& context,
                           const TrainingState& state, AdamW& optimizer,
                           const SavedPlan* plan) {
  const int rank = context.environment->rank;
  const int ranks = context.environment->world_size;
  const RunOptions& o = *context.options;
  SLUICE_RETURN_IF_ERROR(
      WriteOptimizer(OptimizerFile(folder, rank, ranks), optimizer));
  SLUICE_RETURN_IF_ERROR(
      WritePlan(PlanFile(folder, rank, ranks), context, plan));
  if (rank != 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(
      WriteWeights(WeightsFile(folder), o.model, context.weights->flat()));
  SLUICE_RETURN_IF_ERROR(
      WriteFile(folder + "/config.json",
                HfConfig(o.model, o.seq_len, o.dtype == Dtype::kBf16)));
  return WriteState(folder, o, {state.step, state.next_sequence, ranks});
}

}  // namespace

absl::Status SaveCheckpoint(const std::string& folder,
                            const StepperContext& context,
                            const TrainingState& state, AdamW& optimizer,
                            const SavedPlan* plan) {
  const bool first = context.environment->rank == 0;
  std::string temporary =
      fmt::format("{}/checkpoint-{}.tmp", folder, state.step);
  absl::Status status;
  if (first) status = BeginFolder(folder, state.step).status();
  status = Agree(context.collectives, status);
  if (status.ok()) {
    status = Agree(context.collectives,
                   WriteOwnFiles(temporary, context, state, optimizer, plan));
    if (!status.ok() && first) RemoveFolder(temporary);
  }
  SLUICE_RETURN_IF_ERROR(status);
  if (first) status = CommitFolder(temporary, folder, state.step);
  return Agree(context.collectives, status);
}

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path,
                                          const RunOptions& options,
                                          const RankEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(const std::string folder, FindCheckpoint(path));
  SLUICE_ASSIGN_OR_RETURN(const StateFile state, ReadState(folder, options));
  Checkpoint checkpoint;
  checkpoint.path = folder;
  checkpoint.state = {state.step, state.next_sequence};
  checkpoint.ranks = state.ranks;
  checkpoint.model = options.model;
  checkpoint.rank = environment.rank;
  checkpoint.world_size = environment.world_size;
  return checkpoint;
}

std::optional<SavedPlan> Checkpoint::LoadPlan(
    const StepperContext& context) const {
  if (ranks != context.environment->world_size) return std::nullopt;
  return ReadPlan(PlanFile(path, rank, ranks),
                  PlanKey(*context.options, ranks, context.memory->size()),
                  Rank(static_cast<uint64_t>(rank)));
}

absl::Status Checkpoint::LoadWeights(FlatModel& weights) const {
  const runtime::HostScope host("reading a checkpoint");
  SLUICE_ASSIGN_OR_RETURN(const auto reader,
                          SafetensorsReader::Open(WeightsFile(path)));
  for (const HfTensor& t : HfTensors(model)) {
    SLUICE_RETURN_IF_ERROR(reader->Expect(InfoOf(t, weights.flat())));
    SLUICE_RETURN_IF_ERROR(t.transposed
                               ? ReadTransposed(*reader, t, weights.flat())
                               : ReadPlain(*reader, t, weights.flat()));
  }
  return absl::OkStatus();
}

// Bucket b was the (b / ranks)-th of rank b % ranks, whoever owns it now.
absl::Status Checkpoint::LoadOptimizer(AdamW& optimizer) const {
  const runtime::HostScope host("reading a checkpoint");
  int64_t elements = 0;
  for (const Bucket& b : optimizer.buckets()) elements += b.size;
  const std::vector<Bucket> former = CutBuckets(elements, ranks);
  std::vector<int64_t> sizes(ranks);  // of the shards, in elements
  for (const Bucket& b : former) sizes[b.owner] += b.size;
  std::vector<std::unique_ptr<SafetensorsReader>> readers(ranks);
  int64_t to = 0;
  for (size_t b = 0; b < former.size(); ++b) {
    if (optimizer.buckets()[b].owner != rank) continue;
    auto& reader = readers[former[b].owner];
    if (reader == nullptr) {
      SLUICE_ASSIGN_OR_RETURN(reader, SafetensorsReader::Open(OptimizerFile(
                                          path, former[b].owner, ranks)));
      for (const auto& [name, t] : NamedStates(optimizer)) {
        SLUICE_RETURN_IF_ERROR(
            reader->Expect({name, TensorType::kF32, {sizes[former[b].owner]}}));
      }
    }
    const int64_t from = static_cast<int64_t>(b) / ranks * kBucketElements;
    for (auto& [name, t] : NamedStates(optimizer)) {
      SLUICE_RETURN_IF_ERROR(reader->Read(
          name, from * 4, t.data_ptr<float>() + to, former[b].size * 4));
    }
    to += former[b].size;
  }
  // Another number of ranks has no state of its own to go on with.
  if (world_size != ranks || readers[rank] == nullptr) {
    return absl::OkStatus();
  }
  return LoadRandomState(*readers[rank]);
}

}  // namespace sluice::train
