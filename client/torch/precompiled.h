// Precompiled: the torch headers that every file of this target needs.
#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <c10/core/Allocator.h>
#include <fmt/format.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
