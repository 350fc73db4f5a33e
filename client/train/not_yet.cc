#include "client/train/not_yet.h"

#include <fmt/format.h>

#include <string_view>

#include "client/train/launch/outcome.h"

namespace sluice::train {
namespace {

struct NotYet {
  std::string_view flag;
  std::string_view instead;
};

// Flags as torchrun, Megatron, torchtune and Hugging Face call them.
constexpr NotYet kNotYet[] = {
    {"--model",
     "give the shape by --arch, --layers, --hidden, --heads, --ffn "
     "and --vocab; it starts from random weights"},
    {"--tokenizer",
     "--data takes text as bytes, or a .bin of token ids made "
     "by a tokenizer"},
    {"--rope-theta", "it is 10000"},
    {"--rope-scaling", "it is off"},
    {"--tie-embeddings", "gpt ties its head, llama does not"},
    {"--experts", "every layer is dense"},
    {"--sliding-window", "attention is causal over the whole sequence"},
    {"--packing", "a sequence is --seq-len tokens in a row of the data"},
    {"--lora", "all weights are trained"},
    {"--zero", "ZeRO-1 is always on, ZeRO-3 is not there"},
    {"--fsdp", "ZeRO-1 is always on, ZeRO-3 is not there"},
    {"--tensor-parallel", "--ranks are Ulysses ranks: heads are split"},
    {"--pipeline-parallel", "--ranks are Ulysses ranks: heads are split"},
    {"--data-parallel", "--ranks are Ulysses ranks; use --accumulate"},
    {"--fp8", "--dtype is fp32 or bf16"},
    {"--fp16", "--dtype is fp32 or bf16"},
    {"--lr-schedule", "the learning rate warms up (--warmup), then stays"},
    {"--lr-decay", "the learning rate warms up (--warmup), then stays"},
    {"--optimizer", "it is AdamW"},
    {"--eval-data", "there is no evaluation; check compares with plain torch"},
    {"--tensorboard", "--log-jsonl writes a line per step"},
    {"--wandb", "--log-jsonl writes a line per step"},
    {"--torch-compile", "the streamed step runs kernels one by one"},
};

}  // namespace

absl::Status RefuseNotYet(const std::vector<std::string>& arguments) {
  for (const std::string& argument : arguments) {
    const std::string_view name =
        std::string_view(argument).substr(0, argument.find('='));
    for (const NotYet& each : kNotYet) {
      if (each.flag != name) continue;
      return BadInput(
          fmt::format("{}: not there yet; {}", each.flag, each.instead));
    }
  }
  return absl::OkStatus();
}

}  // namespace sluice::train
