#include "client/train/checkpoint/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "client/torch/placement.h"
#include "client/train/checkpoint/hf_names.h"
#include "client/train/checkpoint/safetensors.h"
#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;

// Elements that are transposed at a time: far below HostScope's cap.
constexpr int64_t kPieceElements = 1 << 18;

TensorInfo InfoOf(const HfTensor& tensor, const at::Tensor& flat) {
  const bool bf16 = flat.scalar_type() == at::kBFloat16;
  return {tensor.name, bf16 ? TensorType::kBF16 : TensorType::kF32,
          tensor.shape()};
}

at::Tensor Part(const at::Tensor& flat, const FlatEntry& entry) {
  return flat.narrow(0, entry.offset, entry.size).view(entry.shape);
}

// Returns the tensor's rows in the file, piece by piece. A piece is one or more
// views into `flat`, side by side.
std::vector<std::vector<at::Tensor>> PiecesOf(const HfTensor& tensor,
                                              const at::Tensor& flat) {
  std::vector<std::vector<at::Tensor>> pieces;
  if (!tensor.transposed) {
    for (const FlatEntry& entry : tensor.parts) {
      pieces.push_back({Part(flat, entry)});
    }
    return pieces;
  }
  const std::vector<int64_t> shape = tensor.shape();
  const int64_t step = std::max<int64_t>(kPieceElements / shape[1], 1);
  for (int64_t at = 0; at < shape[0]; at += step) {
    const int64_t rows = std::min(step, shape[0] - at);
    std::vector<at::Tensor>& columns = pieces.emplace_back();
    for (const FlatEntry& entry : tensor.parts) {
      columns.push_back(Part(flat, entry).narrow(1, at, rows).t());
    }
  }
  return pieces;
}

absl::Status AppendTensor(const at::Tensor& tensor, runtime::HostStage& stage,
                          SafetensorsWriter& writer) {
  return stage.Read(tensor, [&](const std::byte* data, Bytes size) {
    return writer.Append(data, size.count());
  });
}

// Fills `to` from byte `offset` of the tensor's data.
absl::Status ReadTensor(const SafetensorsReader& reader,
                        const std::string& name, int64_t offset,
                        runtime::HostStage& stage, const at::Tensor& to) {
  return stage.Write(to, [&](std::byte* data, Bytes size) {
    const absl::Status read = reader.Read(name, offset, data, size.count());
    offset += size.count();
    return read;
  });
}

absl::Status WriteWeights(const std::string& path,
                          const stream::ModelShape& config,
                          const at::Tensor& flat, runtime::HostStage& stage) {
  const runtime::HostScope host("writing a checkpoint");
  const std::vector<HfTensor> tensors = HfTensors(config);
  std::vector<TensorInfo> infos;
  for (const HfTensor& t : tensors) infos.push_back(InfoOf(t, flat));
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::Create(path, infos));
  for (const HfTensor& t : tensors) {
    for (const std::vector<at::Tensor>& views : PiecesOf(t, flat)) {
      SLUICE_RETURN_IF_ERROR(
          AppendTensor(t.transposed ? at::cat(views, 1).contiguous() : views[0],
                       stage, *writer));
    }
  }
  return writer->Close();
}

absl::Status ReadWeights(const SafetensorsReader& reader,
                         const HfTensor& tensor, const at::Tensor& flat,
                         runtime::HostStage& stage) {
  int64_t offset = 0;
  for (const std::vector<at::Tensor>& views : PiecesOf(tensor, flat)) {
    const at::Tensor piece =
        tensor.transposed
            ? at::empty({views[0].size(0), tensor.shape()[1]},
                        runtime::On(flat.device(), flat.scalar_type()))
            : views[0];
    SLUICE_RETURN_IF_ERROR(
        ReadTensor(reader, tensor.name, offset, stage, piece));
    offset += static_cast<int64_t>(piece.nbytes());
    int64_t column = 0;
    for (const at::Tensor& view : views) {
      if (!tensor.transposed) break;
      view.copy_(piece.narrow(1, column, view.size(1)));
      column += view.size(1);
    }
  }
  return absl::OkStatus();
}

// Nothing draws random numbers after the start yet; the state is saved so that
// a later use, such as dropout, resumes correctly.
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

// Labels a shard, because the sizes of all ranks' shards may be equal.
std::string ShardLabel(int rank, const StateFile& state) {
  return fmt::format("rank {} of {}, step {} of run {}", rank, state.ranks,
                     state.step, state.identity.run);
}

absl::Status WriteOptimizer(const std::string& path, AdamW& optimizer,
                            runtime::HostStage& stage,
                            const std::string& label) {
  const runtime::HostScope host("writing a checkpoint");
  const at::Tensor random = RandomState();
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : NamedStates(optimizer)) {
    infos.push_back({name, TensorType::kF32, {t.numel()}});
  }
  infos.push_back({"rng_state", TensorType::kU8, {random.numel()}});
  SLUICE_ASSIGN_OR_RETURN(const auto writer,
                          SafetensorsWriter::Create(path, infos, label));
  for (const auto& [name, t] : NamedStates(optimizer)) {
    SLUICE_RETURN_IF_ERROR(AppendTensor(t, stage, *writer));
  }
  SLUICE_RETURN_IF_ERROR(writer->Append(random.data_ptr(), random.numel()));
  return writer->Close();
}

std::string KeyOf(const StepperContext& context, int ranks) {
  return PlanKey(*context.options, ranks, context.memory->size(),
                 context.memory->device().is_cpu() ? "" : context.KernelName(),
                 context.RoundsOutput(), context.states);
}

absl::Status WritePlan(const std::string& path, const StepperContext& context,
                       const runtime::SavedPlan* plan) {
  if (plan == nullptr) return absl::OkStatus();
  const Json json = {{"key", KeyOf(context, context.environment->world_size)},
                     {"profile", plan::Encode(plan->profile)},
                     {"plan", plan::Encode(plan->plan)}};
  return WriteFile(path, json.dump() + "\n");
}

absl::Status IsBroken(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::NotFoundError(
      fmt::format("it is broken: {}", std::string(status.message())));
}

// Validates the plan like one from the daemon. NotFound: it is missing, broken
// or of another run.
absl::StatusOr<runtime::SavedPlan> ReadPlan(const std::string& path,
                                            const std::string& key, Rank rank) {
  const auto text = ReadFile(path);
  if (!text.ok()) return absl::NotFoundError("the checkpoint has none");
  const auto json = Json::parse(*text, nullptr, false);
  if (const std::string saved = TextField(json, "key"); saved != key) {
    return absl::NotFoundError(WhyAnotherKey(saved, key));
  }
  auto profile = plan::DecodeRankProfile(TextField(json, "profile"));
  SLUICE_RETURN_IF_ERROR(IsBroken(profile.status()));
  auto plan = plan::DecodeNodePlan(TextField(json, "plan"));
  SLUICE_RETURN_IF_ERROR(IsBroken(plan.status()));
  const plan::RankPlan* part = plan::PartOf(*plan, *profile);
  if (part == nullptr || profile->rank != rank) {
    return absl::NotFoundError("it is another rank's");
  }
  SLUICE_RETURN_IF_ERROR(IsBroken(plan::ValidateRankPlan(*profile, *part)));
  return runtime::SavedPlan{*std::move(profile), *std::move(plan)};
}

}  // namespace

absl::Status WriteCheckpoint(const std::string& folder,
                             const StepperContext& context,
                             const StateFile& state, AdamW& optimizer,
                             const runtime::SavedPlan* plan) {
  const int rank = context.environment->rank;
  const int ranks = state.ranks;
  const RunOptions& o = *context.options;
  SLUICE_RETURN_IF_ERROR(WriteOptimizer(OptimizerFile(folder, rank, ranks),
                                        optimizer, *context.stage,
                                        ShardLabel(rank, state)));
  SLUICE_RETURN_IF_ERROR(
      WritePlan(PlanFile(folder, rank, ranks), context, plan));
  if (rank != 0) return absl::OkStatus();
  SLUICE_RETURN_IF_ERROR(WriteWeights(WeightsFile(folder), o.model,
                                      context.weights->flat(), *context.stage));
  SLUICE_RETURN_IF_ERROR(
      WriteFile(folder + "/config.json",
                HfConfig(o.model, o.seq_len, o.dtype == Dtype::kBf16)));
  return WriteState(folder, o, state);
}

absl::StatusOr<Checkpoint> OpenCheckpoint(const std::string& path,
                                          const RunOptions& options,
                                          const RankEnvironment& environment) {
  SLUICE_ASSIGN_OR_RETURN(FoundCheckpoint found, FindCheckpoint(path));
  SLUICE_RETURN_IF_ERROR(CheckFlags(found.path, options));
  return Checkpoint{std::move(found), options.model, environment.rank,
                    environment.world_size};
}

absl::Status Checkpoint::CheckData(const RunOptions& options,
                                   const RunIdentity& now) const {
  const RunIdentity& then = state.identity;
  if (then.data.empty() || then.data == now.data || options.allow_other_data) {
    return absl::OkStatus();
  }
  return BadInput(fmt::format(
      "--resume {}: run {} was trained on another text ({} tokens, fingerprint "
      "{}) than --data {} ({} tokens, {}): give that text, or go on with this "
      "one by --allow-other-data",
      path, then.run, then.data_tokens, then.data.substr(0, 8),
      options.data.empty() ? "(the default)" : options.data, now.data_tokens,
      now.data.substr(0, 8)));
}

std::string Checkpoint::Describe() const {
  return fmt::format("goes on from {}: step {} of {}{}", path, state.step,
                     state.identity.run.empty() ? "a run of before runs had ids"
                                                : "run " + state.identity.run,
                     passed_over.empty() ? "" : "; " + passed_over);
}

absl::StatusOr<runtime::SavedPlan> Checkpoint::LoadPlan(
    const StepperContext& context) const {
  const int ranks = state.ranks;
  if (ranks != world_size) {
    return absl::NotFoundError(fmt::format(
        "it was made for {} ranks, this run has {}", ranks, world_size));
  }
  return ReadPlan(PlanFile(path, rank, ranks), KeyOf(context, ranks),
                  Rank(static_cast<uint64_t>(rank)));
}

std::optional<stream::Settings> Checkpoint::LoadSettings() const {
  if (state.ranks != world_size) return std::nullopt;
  const auto text = ReadFile(PlanFile(path, rank, world_size));
  if (!text.ok()) return std::nullopt;
  return SettingsOf(TextField(Json::parse(*text, nullptr, false), "key"));
}

absl::Status Checkpoint::LoadWeights(FlatModel& weights,
                                     runtime::HostStage& stage) const {
  const runtime::HostScope host("reading a checkpoint");
  SLUICE_ASSIGN_OR_RETURN(const auto reader,
                          SafetensorsReader::Open(WeightsFile(path)));
  for (const HfTensor& t : HfTensors(model)) {
    SLUICE_RETURN_IF_ERROR(reader->Expect(InfoOf(t, weights.flat())));
    SLUICE_RETURN_IF_ERROR(ReadWeights(*reader, t, weights.flat(), stage));
  }
  return absl::OkStatus();
}

// Returns the buckets as they were cut when the checkpoint was written.
std::vector<stream::Bucket> BucketsOf(const Checkpoint& checkpoint,
                                      int64_t elements) {
  const int ranks = checkpoint.state.ranks;
  if (checkpoint.state.format > 2) {
    return stream::CutBuckets(checkpoint.model, ranks);
  }
  return stream::CutFormerBuckets(elements, ranks,
                                  checkpoint.state.format == 1
                                      ? stream::FormerDealing::kMebibytes
                                      : stream::FormerDealing::kEven);
}

// The shards of the ranks that wrote the checkpoint, opened when needed.
class Checkpoint::Shards {
 public:
  Shards(const Checkpoint& checkpoint, int64_t elements)
      : checkpoint_(checkpoint),
        buckets_(BucketsOf(checkpoint, elements)),
        sizes_(static_cast<size_t>(checkpoint.state.ranks)),
        readers_(static_cast<size_t>(checkpoint.state.ranks)) {
    for (const stream::Bucket& b : buckets_) {
      int64_t& size = sizes_[static_cast<size_t>(b.owner)];
      places_.push_back(size);
      size += b.size;
    }
  }

  using Named = std::vector<std::pair<const char*, at::Tensor>>;

  absl::StatusOr<const SafetensorsReader*> Open(int owner, const Named& named) {
    auto& reader = readers_[static_cast<size_t>(owner)];
    if (reader != nullptr) return reader.get();
    SLUICE_ASSIGN_OR_RETURN(
        auto opened, SafetensorsReader::Open(OptimizerFile(
                         checkpoint_.path, owner, checkpoint_.state.ranks)));
    for (const auto& [name, t] : named) {
      SLUICE_RETURN_IF_ERROR(opened->Expect(
          {name, TensorType::kF32, {sizes_[static_cast<size_t>(owner)]}}));
    }
    const StateFile& state = checkpoint_.state;
    const std::string wanted = ShardLabel(owner, state);
    // Shards of format 1 have no label.
    if (state.format > 1 && opened->label() != wanted) {
      return BadInput(fmt::format(
          "{}: it is the shard of {}, not of {}: it was put there from "
          "elsewhere",
          OptimizerFile(checkpoint_.path, owner, state.ranks),
          opened->label().empty() ? "nobody" : opened->label(), wanted));
    }
    reader = std::move(opened);
    return reader.get();
  }

  // Copies elements of the flat buffer from `offset` to `to` in each `named`.
  absl::Status Read(int64_t offset, int64_t size, int64_t to,
                    const Named& named, runtime::HostStage& stage) {
    const auto behind =
        std::ranges::upper_bound(buckets_, offset, {}, &stream::Bucket::offset);
    for (auto b = static_cast<size_t>(behind - buckets_.begin()) - 1; size > 0;
         ++b) {
      const stream::Bucket& bucket = buckets_[b];
      const int64_t skip = offset - bucket.offset;
      const int64_t n = std::min(bucket.size - skip, size);
      SLUICE_ASSIGN_OR_RETURN(const SafetensorsReader* const reader,
                              Open(bucket.owner, named));
      for (const auto& [name, t] : named) {
        SLUICE_RETURN_IF_ERROR(ReadTensor(
            *reader, name, (places_[b] + skip) * 4, stage, t.narrow(0, to, n)));
      }
      offset += n;
      to += n;
      size -= n;
    }
    return absl::OkStatus();
  }

 private:
  const Checkpoint& checkpoint_;
  const std::vector<stream::Bucket> buckets_;
  std::vector<int64_t> places_;  // of each bucket in its owner's shard
  std::vector<int64_t> sizes_;   // of the shards
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
};

absl::Status Checkpoint::LoadOptimizer(AdamW& optimizer,
                                       runtime::HostStage& stage) const {
  const runtime::HostScope host("reading a checkpoint");
  int64_t elements = 0;
  for (const stream::Bucket& b : optimizer.buckets()) elements += b.size;
  Shards shards(*this, elements);
  const Shards::Named named = NamedStates(optimizer);
  int64_t to = 0;
  for (const stream::Bucket& bucket : optimizer.buckets()) {
    if (bucket.owner != rank) continue;
    SLUICE_RETURN_IF_ERROR(
        shards.Read(bucket.offset, bucket.size, to, named, stage));
    to += bucket.size;
  }
  // A run with another number of ranks restores no random state. With the same
  // number each rank opens its shard, even if it owns no bucket.
  if (world_size != state.ranks) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const SafetensorsReader* const own,
                          shards.Open(rank, named));
  return LoadRandomState(*own);
}

}  // namespace sluice::train
