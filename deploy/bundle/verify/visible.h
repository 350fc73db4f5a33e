// Selects the GPUs that started programs see.
//
// Thread safety: none: it changes the environment.
#pragma once

#include <string>
#include <vector>

namespace sluice::verify {

// Returns a value for CUDA_VISIBLE_DEVICES, such as "0,2". `gpus`: indices as
// this process numbers them. `told`: this process's own CUDA_VISIBLE_DEVICES
// (as set by Slurm), or empty.
std::string VisibleList(const std::vector<int>& gpus, const std::string& told);

// Makes programs that are started from now on see these GPUs, in this order.
void ShowOnly(const std::vector<int>& gpus);

}  // namespace sluice::verify
