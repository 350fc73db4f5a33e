#include "client/train/checkpoint/checkpoint.h"

#include <ATen/Context.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "client/torch/placement.h"
#include "client/train/checkpoint/safetensors.h"
#include "client/train/launch/outcome.h"
#include "proto/base/status.h"
#include "proto/plan/codec.h"
#include "proto/plan/validate.h"

namespace sluice::train {
namespace {

using Json = nlohmann::ordered_json;
using stream::ModelShape;

struct Pair {
  const char* ours;
  const char* theirs;
};

constexpr Pair kLlamaLayer[] = {
    {"norm1_weight", "input_layernorm.weight"},
    {"q_weight", "self_attn.q_proj.weight"},
    {"k_weight", "self_attn.k_proj.weight"},
    {"v_weight", "self_attn.v_proj.weight"},
    {"o_weight", "self_attn.o_proj.weight"},
    {"norm2_weight", "post_attention_layernorm.weight"},
    {"gate_weight", "mlp.gate_proj.weight"},
    {"up_weight", "mlp.up_proj.weight"},
    {"down_weight", "mlp.down_proj.weight"}};

constexpr Pair kGptLayer[] = {
    {"norm1_weight", "ln_1.weight"},      {"norm1_bias", "ln_1.bias"},
    {"o_weight", "attn.c_proj.weight"},   {"o_bias", "attn.c_proj.bias"},
    {"norm2_weight", "ln_2.weight"},      {"norm2_bias", "ln_2.bias"},
    {"up_weight", "mlp.c_fc.weight"},     {"up_bias", "mlp.c_fc.bias"},
    {"down_weight", "mlp.c_proj.weight"}, {"down_bias", "mlp.c_proj.bias"}};

Json LlamaConfig(const ModelShape& c, int64_t seq_len) {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"hidden_size", c.hidden},
          {"intermediate_size", c.ffn},
          {"num_hidden_layers", c.layers},
          {"num_attention_heads", c.heads},
          {"num_key_value_heads", c.kv_heads},
          {"vocab_size", c.vocab},
          {"max_position_embeddings", seq_len},
          {"rope_theta", c.rope->theta},
          {"rms_norm_eps", c.norm_epsilon},
          {"hidden_act", "silu"},
          {"attention_bias", false},
          {"mlp_bias", false},
          {"bos_token_id", nullptr},  // bytes as text have no such token
          {"eos_token_id", nullptr},
          {"tie_word_embeddings", false}};
}

Json GptConfig(const ModelShape& c) {
  Json json = {{"architectures", {"GPT2LMHeadModel"}},
               {"model_type", "gpt2"},
               {"n_embd", c.hidden},
               {"n_inner", c.ffn},
               {"n_layer", c.layers},
               {"n_head", c.heads},
               {"n_positions", c.max_positions},
               {"vocab_size", c.vocab},
               {"layer_norm_epsilon", c.norm_epsilon},
               {"activation_function", "gelu_new"},
               {"resid_pdrop", 0.0},
               {"embd_pdrop", 0.0},
               {"attn_pdrop", 0.0},
               // the default, 50256, exceeds most vocabularies here
               {"bos_token_id", nullptr},
               {"eos_token_id", nullptr},
               {"tie_word_embeddings", true}};
  // GPT-2 has no grouped queries, so the type gets another name.
  if (c.kv_heads != c.heads) {
    json["model_type"] = "gpt2_grouped";
    json["num_key_value_heads"] = c.kv_heads;
  }
  return json;
}

std::string HfConfig(const ModelShape& config, int64_t seq_len, bool bf16) {
  Json json = config.rope ? LlamaConfig(config, seq_len) : GptConfig(config);
  json["torch_dtype"] = bf16 ? "bfloat16" : "float32";
  return json.dump(2) + "\n";
}

// Elements transposed at a time; their bytes are far below HostScope's cap.
constexpr int64_t kPieceElements = 1 << 18;

TensorInfo InfoOf(const HfTensor& tensor, const at::Tensor& flat) {
  const bool bf16 = flat.scalar_type() == at::kBFloat16;
  return {tensor.name, bf16 ? TensorType::kBF16 : TensorType::kF32,
          tensor.shape()};
}

at::Tensor Part(const at::Tensor& flat, const FlatEntry& entry) {
  return flat.narrow(0, entry.offset, entry.size).view(entry.shape);
}

// Cuts the tensor into pieces, in the order of the file. A piece is one or more
// views into `flat`; the file has the rows of these views side by side.
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

// This version draws no random numbers after the start. The generator's state
// is saved for a version that does, for example for dropout.
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

// Identifies a shard, because shards of other ranks may have the same size.
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

absl::Status IsBroken(const absl::Status& status) {
  if (status.ok()) return status;
  return absl::NotFoundError("it is broken: " + std::string(status.message()));
}

// Validates a saved plan like a plan from the daemon. NotFound: the plan is
// missing, broken, of another rank, or was saved with another key.
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

// The shards of the ranks that wrote the checkpoint, opened when needed.
class Shards {
 public:
  Shards(const Checkpoint& checkpoint, AdamW& optimizer,
         runtime::HostStage& stage)
      : state_(checkpoint.state),
        named_(NamedStates(optimizer)),
        stage_(stage),
        sizes_(static_cast<size_t>(state_.ranks)),
        readers_(static_cast<size_t>(state_.ranks)) {
    for (int rank = 0; rank < state_.ranks; ++rank) {
      paths_.push_back(OptimizerFile(checkpoint.path, rank, state_.ranks));
    }
    const stream::Bucket& last = optimizer.buckets().back();
    buckets_ = state_.format > 2
                   ? stream::CutBuckets(checkpoint.model, state_.ranks)
                   : stream::CutFormerBuckets(
                         last.offset + last.size, state_.ranks,
                         state_.format == 1 ? stream::FormerDealing::kMebibytes
                                            : stream::FormerDealing::kEven);
    for (const stream::Bucket& b : buckets_) {
      int64_t& size = sizes_[static_cast<size_t>(b.owner)];
      places_.push_back(std::exchange(size, size + b.size));
    }
  }

  absl::StatusOr<const SafetensorsReader*> Open(int rank) {
    const auto owner = static_cast<size_t>(rank);
    if (readers_[owner] != nullptr) return readers_[owner].get();
    SLUICE_ASSIGN_OR_RETURN(auto opened,
                            SafetensorsReader::Open(paths_[owner]));
    for (const auto& [name, t] : named_) {
      SLUICE_RETURN_IF_ERROR(
          opened->Expect({name, TensorType::kF32, {sizes_[owner]}}));
    }
    const std::string wanted = ShardLabel(rank, state_);
    // Shards of format 1 have no label.
    if (state_.format > 1 && opened->label() != wanted) {
      return BadInput(
          "{}: it is the shard of {}, not of {}: another checkpoint's file was "
          "put there",
          paths_[owner], opened->label().empty() ? "no run" : opened->label(),
          wanted);
    }
    readers_[owner] = std::move(opened);
    return readers_[owner].get();
  }

  // Reads the states of flat elements [offset, offset + size) into this rank's
  // states, from element `to` on.
  absl::Status Read(int64_t offset, int64_t size, int64_t to) {
    const auto behind =
        std::ranges::upper_bound(buckets_, offset, {}, &stream::Bucket::offset);
    for (auto b = static_cast<size_t>(behind - buckets_.begin()) - 1; size > 0;
         ++b) {
      const int64_t skip = offset - buckets_[b].offset;
      const int64_t n = std::min(buckets_[b].size - skip, size);
      SLUICE_ASSIGN_OR_RETURN(const SafetensorsReader* const reader,
                              Open(buckets_[b].owner));
      for (const auto& [name, t] : named_) {
        SLUICE_RETURN_IF_ERROR(ReadTensor(*reader, name,
                                          (places_[b] + skip) * 4, stage_,
                                          t.narrow(0, to, n)));
      }
      offset += n;
      to += n;
      size -= n;
    }
    return absl::OkStatus();
  }

 private:
  const StateFile& state_;
  const std::vector<std::pair<const char*, at::Tensor>> named_;
  runtime::HostStage& stage_;
  std::vector<stream::Bucket> buckets_;  // as the checkpoint's run cut them
  std::vector<int64_t> places_;  // each bucket's first element in its shard
  std::vector<int64_t> sizes_;   // of the shards, in elements
  std::vector<std::string> paths_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
};

}  // namespace

std::vector<int64_t> HfTensor::shape() const {
  std::vector<int64_t> shape = parts[0].shape;
  for (size_t i = 1; i < parts.size(); ++i) shape[0] += parts[i].shape[0];
  if (transposed) std::swap(shape[0], shape[1]);
  return shape;
}

std::vector<HfTensor> HfTensors(const ModelShape& config) {
  std::map<std::string, FlatEntry> entries;
  for (FlatEntry& e : FlatEntries(config)) {
    const std::string name = e.name;
    entries.emplace(name, std::move(e));
  }
  std::vector<HfTensor> tensors;
  size_t used = 0;
  const auto add = [&](const std::string& theirs,
                       const std::vector<std::string>& ours,
                       bool transposed = false) {
    HfTensor& tensor = tensors.emplace_back();
    tensor.name = theirs;
    tensor.transposed = transposed;
    for (const std::string& name : ours) {
      tensor.parts.push_back(entries.at(name));
    }
    used += ours.size();
  };
  const bool llama = config.rope.has_value();
  add(llama ? "model.embed_tokens.weight" : "wte.weight", {"embed"});
  if (!llama) add("wpe.weight", {"positions"});
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string p = fmt::format("layers.{}.", i);
    if (llama) {
      for (const Pair& pair : kLlamaLayer) {
        add(fmt::format("model.layers.{}.{}", i, pair.theirs), {p + pair.ours});
      }
      continue;
    }
    const std::string h = fmt::format("h.{}.", i);
    add(h + "attn.c_attn.weight",
        {p + "q_weight", p + "k_weight", p + "v_weight"}, true);
    add(h + "attn.c_attn.bias", {p + "q_bias", p + "k_bias", p + "v_bias"});
    for (const Pair& pair : kGptLayer) {
      const std::string theirs = pair.theirs;
      const bool linear =
          theirs.find("c_") != std::string::npos && theirs.ends_with("weight");
      add(h + theirs, {p + pair.ours}, linear);
    }
  }
  add(llama ? "model.norm.weight" : "ln_f.weight", {"final_norm_weight"});
  if (llama) add("lm_head.weight", {"head"});
  if (!llama) add("ln_f.bias", {"final_norm_bias"});
  SLUICE_CHECK(used == entries.size());
  return tensors;
}

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
  if (plan != nullptr) {
    const Json json = {{"key", KeyOf(context, ranks)},
                       {"profile", plan::Encode(plan->profile)},
                       {"plan", plan::Encode(plan->plan)}};
    SLUICE_RETURN_IF_ERROR(
        WriteFile(PlanFile(folder, rank, ranks), json.dump() + "\n"));
  }
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
  return BadInput(
      "--resume {}: run {} was trained on another text ({} tokens, fingerprint "
      "{}) than --data {} ({} tokens, {}): give that text, or go on with this "
      "one by --allow-other-data",
      path, then.run, then.data_tokens, then.data.substr(0, 8),
      options.data.empty() ? "(the default)" : options.data, now.data_tokens,
      now.data.substr(0, 8));
}

std::string Checkpoint::Describe() const {
  return fmt::format("goes on from {}: step {} of {}{}", path, state.step,
                     state.identity.run.empty() ? "a run without id (format 1)"
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

std::optional<stream::Settings> Checkpoint::LoadSettings(
    const StepperContext& context) const {
  if (state.ranks != world_size) return std::nullopt;
  const auto text = ReadFile(PlanFile(path, rank, world_size));
  if (!text.ok()) return std::nullopt;
  const std::string key = TextField(Json::parse(*text, nullptr, false), "key");
  const std::optional<stream::Settings> settings = SettingsOf(key);
  if (!settings.has_value()) return std::nullopt;
  const RunOptions as_before = WithSettings(*context.options, *settings);
  StepperContext then = context;
  then.options = &as_before;
  Json saved = Json::parse(key), now = Json::parse(KeyOf(then, world_size));
  for (Json* const flags : {&saved, &now}) flags->erase("hbm");
  return saved == now ? settings : std::nullopt;
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

absl::Status Checkpoint::LoadOptimizer(AdamW& optimizer,
                                       runtime::HostStage& stage) const {
  const runtime::HostScope host("reading a checkpoint");
  Shards shards(*this, optimizer, stage);
  int64_t to = 0;
  for (const stream::Bucket& bucket : optimizer.buckets()) {
    if (bucket.owner != rank) continue;
    SLUICE_RETURN_IF_ERROR(shards.Read(bucket.offset, bucket.size, to));
    to += bucket.size;
  }
  // A run with another number of ranks restores no random state. With the same
  // number each rank opens its shard, even if it owns no bucket.
  if (world_size != state.ranks) return absl::OkStatus();
  SLUICE_ASSIGN_OR_RETURN(const SafetensorsReader* const own,
                          shards.Open(rank));
  return LoadRandomState(*own);
}

}  // namespace sluice::train
