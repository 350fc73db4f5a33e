#include "client/train/launch/options.h"

#include <fmt/format.h>

#include "client/train/launch/outcome.h"
#include "planner/stream/settings.h"
#include "proto/base/simulated.h"
#include "proto/base/status.h"

namespace sluice::train {
namespace {

template <typename T>
struct Limit {
  const char* flag;
  T value;
  T low;
  T high;
};

template <typename T>
absl::Status CheckLimits(std::initializer_list<Limit<T>> limits) {
  for (const Limit<T>& limit : limits) {
    // Negated, so that NaN is refused too.
    if (!(limit.value >= limit.low && limit.value <= limit.high)) {
      return BadInput("{} {}: must be between {} and {}", limit.flag,
                      limit.value, limit.low, limit.high);
    }
  }
  return absl::OkStatus();
}

constexpr int64_t kMany = int64_t{1} << 40;

absl::Status CheckFractions(const RunOptions& o) {
  const absl::Status fractions = stream::CheckFractions(o.fractions, o.model);
  if (!fractions.ok()) {
    return BadInput("--fractions: {}", std::string(fractions.message()));
  }
  for (const auto& [name, f] : o.fractions) {
    if (!o.order || HasClass(*o.order, stream::FindClass(name)->which)) {
      continue;
    }
    return BadInput(
        "--fractions: {} is no class of this step: backward sums it in place "
        "with --backward-order {}",
        name, stream::Name(*o.order));
  }
  return absl::OkStatus();
}

absl::Status CheckNumbers(const RunOptions& o) {
  SLUICE_RETURN_IF_ERROR(CheckLimits<int64_t>({
      {"--seq-len", o.seq_len, 1, int64_t{1} << 32},
      {"--chunk", o.chunk, 0, int64_t{1} << 32},
      {"--prefetch", o.prefetch, 0, 64},
      {"--rerun-layers", o.rerun_layers, 0, o.model.layers},
      {"--ranks", o.ranks, 1, 1024},
      {"--threads", o.threads, 1, 1024},
      {"--steps", o.steps, 0, kMany},
      {"--warmup", o.warmup, 0, kMany},
      {"--batch", o.batch, 1, 1 << 20},
      {"--accumulate", o.accumulate, 1, 1 << 20},
      {"--save-every", o.save_every, 0, kMany},
      {"--keep-checkpoints", o.keep_checkpoints, 0, kMany},
      {"--seed", o.seed, 0, INT64_MAX},
      {"--layers", o.model.layers, 1, 4096},
      {"--hidden", o.model.hidden, 1, 1 << 20},
      {"--heads", o.model.heads, 1, 4096},
      {"--kv-heads", o.model.kv_heads, 1, 4096},
      {"--ffn", o.model.ffn, 1, 1 << 22},
      {"--vocab", o.model.vocab, 1, 1 << 24},
  }));
  return CheckLimits<double>({
      {"--rerun", o.rerun.value_or(0), 0, 1},
      {"--lr", o.lr, 0, 1e3},
      {"--clip", o.clip, 0, 1e9},
      {"--weight-decay", o.weight_decay, 0, 1e3},
      {"--beta1", o.beta1, 0, 0.999999},
      {"--beta2", o.beta2, 0, 0.99999999},
  });
}

// Rerun chunks drop their free classes.
absl::Status CheckRerun(const RunOptions& o) {
  if (o.rerun.value_or(0) == 0) return absl::OkStatus();
  if (o.alpha > 0) {
    return BadInput("--rerun {}: with it --alpha {} must be 0 or 'auto'",
                    *o.rerun, o.alpha);
  }
  for (const auto& [name, f] : o.fractions) {
    if (!stream::FindClass(name)->free() || f == stream::ClassFractions{0, 0}) {
      continue;
    }
    return BadInput(
        "--rerun {}: with it --fractions {} must be 0: leave it out", *o.rerun,
        name);
  }
  return absl::OkStatus();
}

// Rejects, before a daemon is asked, what the attention kernel cannot compute.
absl::Status CheckAttention(const RunOptions& o) {
  if (o.attention == AttentionKernel::kAuto) return absl::OkStatus();
  const char* const name = stream::Name(o.attention);
  if (o.private_daemon || IsSimulated(o.driver)) {
    return BadInput(
        "--attention {}: a kernel of real GPUs, and this run's are simulated, "
        "where the CPU's flash attention computes: leave it out",
        name);
  }
  if (o.command == Command::kProfile) return absl::OkStatus();  // no model
  const auto refusal =
      stream::Refusal({.asked = o.attention,
                       .element_bytes = stream::ElementBytes(o.dtype),
                       .head_dim = o.model.head_dim()});
  if (!refusal.has_value()) return absl::OkStatus();
  return BadInput("--attention {}", *refusal);
}

}  // namespace

const char* Name(Method method) {
  constexpr const char* kNames[] = {"keep-all", "recompute", "alst", "sluice"};
  return kNames[static_cast<size_t>(method)];
}

const char* Name(Dtype dtype) {
  return dtype == Dtype::kFp32 ? "fp32" : "bf16";
}

absl::Status ValidateRanks(const RunOptions& o, int64_t ranks) {
  SLUICE_RETURN_IF_ERROR(o.model.ValidateStream(ranks));
  return o.method == Method::kSluice ? absl::OkStatus()
                                     : o.model.ValidateWholeHeads(ranks);
}

absl::Status Validate(const RunOptions& o) {
  SLUICE_RETURN_IF_ERROR(CheckNumbers(o));
  if (o.command != Command::kProfile) {  // it has no model
    SLUICE_RETURN_IF_ERROR(ValidateRanks(o, o.ranks));
  }
  SLUICE_RETURN_IF_ERROR(CheckAttention(o));
  if (o.optimizer_states == stream::StatePlace::kHost &&
      o.method != Method::kSluice) {
    return BadInput(
        "--optimizer-states host with --method {}: only sluice's steps stream "
        "them; leave it out, or take --method sluice",
        Name(o.method));
  }
  SLUICE_RETURN_IF_ERROR(CheckFractions(o));
  SLUICE_RETURN_IF_ERROR(CheckRerun(o));
  if (!(o.wait >= 0 && o.wait <= 1e6)) {
    return BadInput("--wait {}: give 0 to 1e6 seconds", o.wait);
  }
  if (o.save_every > 0 && o.save.empty()) {
    return BadInput("--save-every needs --save DIR to save to");
  }
  if (o.keep_checkpoints > 0 && o.save.empty()) {
    return BadInput("--keep-checkpoints needs --save DIR to save to");
  }
  if (o.allow_other_data && o.resume.empty()) {
    return BadInput("--allow-other-data needs --resume DIR to go on from");
  }
  if (o.private_daemon && !o.socket.empty()) {
    return BadInput(
        "--private starts a daemon of its own, --socket {} names another: "
        "give one of them",
        o.socket);
  }
  if (o.private_daemon && !o.driver.empty() && !IsSimulated(o.driver)) {
    return BadInput(
        "--device cuda: a sluiced for this run alone has simulated GPUs only: "
        "name the node's daemon, whose [device] driver is \"cuda\", with "
        "--socket");
  }
  if (o.token_bytes != 0 && o.token_bytes != 2 && o.token_bytes != 4) {
    return BadInput("--token-bytes {}: a .bin holds ids of 2 or 4 bytes",
                    o.token_bytes);
  }
  if (o.job.empty() || o.job.size() > 64) {
    return BadInput("--job of {} characters: give a label of 1 to 64",
                    o.job.size());
  }
  return absl::OkStatus();
}

}  // namespace sluice::train
