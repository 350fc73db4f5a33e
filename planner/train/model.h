// The models that the desk knows by name, and models read from a config.json.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "planner/stream/model_shape.h"

namespace sluice::planner::train {

using stream::ModelShape;

// Returns a shipped shape. NotFound: the message lists the names.
absl::StatusOr<ModelShape> FindModel(std::string_view name);
std::vector<std::string> ModelNames();

// Reads a Hugging Face config.json (model_type llama, mistral, qwen2, qwen3,
// gpt2, gpt_neox, mixtral, qwen3_moe). `source`: the file's name in messages.
// `notes`, if given, gets one sentence per property of the file that the shape
// cannot express.
absl::StatusOr<ModelShape> ReadHuggingFaceConfig(
    std::string_view json, std::string_view source,
    std::vector<std::string>* notes = nullptr);

}  // namespace sluice::planner::train
