// Precompiled: the headers that most files of this target need.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
