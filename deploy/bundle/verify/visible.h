// Which GPUs a program is to see.
//
// Thread safety: none: it changes the environment.
#pragma once

#include <string>
#include <vector>

namespace sluice::verify {

// "0,2", as CUDA_VISIBLE_DEVICES wants it: `gpus` as this process counts them,
// `told` what it was told itself (Slurm does), or empty.
std::string VisibleList(const std::vector<int>& gpus, const std::string& told);

// Programs that are started from now on see these, in this order.
void ShowOnly(const std::vector<int>& gpus);

}  // namespace sluice::verify
