// The node that the fake driver emulates, and the failures to simulate.
//
// The settings are read once from the environment, SLUICE_FAKE_CUDA="gpus=2,…".
// A test in the same process changes them with fake_cuda_set (control.h).
//
//   gpus=1                 number of GPUs; CUDA_VISIBLE_DEVICES=1,0 hides and
//                          renumbers them, by number, UUID, or the beginning of
//                          a UUID
//   mig=0                  1: the GPUs are MIG instances of one GPU, and a
//                          process sees only the first that is visible to it
//   fastest_last=0         1: the last GPU is the fastest, so CUDA lists it
//                          first unless CUDA_DEVICE_ORDER=PCI_BUS_ID
//   memory_mib=64          memory of each GPU
//   host_memory_mib=1024   memory that can be made on each NUMA node
//   context_kib=0          GPU memory that a process's context takes
//   nccl_kib=0             GPU memory that a communicator takes (nccl/)
//   gpu_granularity_kib=2048, host_granularity_kib=4096
//   pin_ms_per_gib=0       milliseconds for making 1 GiB of host memory
//   dirty=1                0: new memory is not written to, so that it may
//                          exceed this machine's memory
//   host_numa=1            0: the driver makes no memory on NUMA nodes
//   numa=0                 the NUMA node that the GPUs report
//   rdma=0                 1: network cards can reach the GPUs' memory
//   jitter_us=0            the longest random delay of each stream operation
//   unready=0              1: cuEventQuery never finds an event reached, so
//                          that no test passes because work was fast by luck
//   pageable=1             0: a copy from or to pageable memory is a finding
//   counts=0               1: a process writes its counts at its end, as a line
//                          of the node's file `counts` (world.h)
//   malloc=0               1: the runtime may make memory outside the lease
//                          (cudaMalloc), as torch's own allocator does
//   cublas=0               1: a thread's first matrix product in torch on a
//                          stream takes memory and keeps it (torch/workspace.h)
//   version=13000          the driver's version: CUDA 13.0
//   compute_mode=0         the GPUs' compute mode, which is only reported; 3:
//                          one process at a time
//   capability=80          the GPUs' compute capability; 90: 9.0, Hopper's
//   corrupt=0              N: every N-th copy has a wrong byte
//   forget_waits=0         1: no stream waits for an event, and a stream that
//                          should wait has no delay from then on
//   keep_dead=0            1: memory of a dead process is never free again
//   hang=NAME:N            the N-th call of function NAME from now on does not
//                          return
//   fail=NAME:N:CODE       the N-th call of function NAME from now on returns
//                          CODE; a release still releases (README)
//   rules=FILE             a real driver's answers to calls that broke an
//                          assumed rule (answers.h), to be emulated
//   lose=GPU               that GPU is lost for this process; a file lost-gpu0
//                          in the node's folder loses GPU 0 for all processes
//   kernels=FILE           the library of kernels' CPU forms (kernels/);
//                          default: the one next to libcuda.so.1
//   node=FOLDER            the node's files; default: a new folder, removed at
//                          the process's end
//   nodes=/dev/shm         where new folders are made: a killed process leaves
//                          its folder there, for the test to remove
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tests/fake_cuda/answers.h"

namespace sluice::fake_cuda {

struct Failure {
  int64_t call = 0;  // counts down; 1 is the next call
  int code = 0;
};

struct Settings {
  std::map<std::string, int64_t, std::less<>> numbers = {
      {"gpus", 1},
      {"mig", 0},
      {"fastest_last", 0},
      {"memory_mib", 64},
      {"host_memory_mib", 1024},
      {"context_kib", 0},
      {"nccl_kib", 0},
      {"gpu_granularity_kib", 2048},
      {"host_granularity_kib", 4096},
      {"pin_ms_per_gib", 0},
      {"dirty", 1},
      {"host_numa", 1},
      {"numa", 0},
      {"rdma", 0},
      {"jitter_us", 0},
      {"unready", 0},
      {"pageable", 1},
      {"counts", 0},
      {"malloc", 0},
      {"cublas", 0},
      {"version", 13000},
      {"compute_mode", 0},
      {"capability", 80},
      {"corrupt", 0},
      {"forget_waits", 0},
      {"keep_dead", 0},
  };
  std::map<std::string, Failure, std::less<>> failures;
  // By function, counting down; 1 is the next call.
  std::map<std::string, int64_t, std::less<>> hangs;
  std::string node;
  std::string nodes = "/dev/shm";
  std::string kernels;
  std::map<Rule, PlayedAnswer> answers;
  int64_t lose = -1;

  int64_t Get(std::string_view name) const {
    return numbers.find(name)->second;
  }
  // Applies settings such as "gpus=2,dirty=0". A mistake in `text` ends the
  // process, as a test with an unknown setting would prove nothing.
  void Apply(std::string_view text);
};

// Returns the numbers of the GPUs that this process sees, by ordinal.
std::vector<int> VisibleGpus(const Settings& settings);
// Each byte of a GPU's UUID except the last, which is the GPU's number.
inline constexpr unsigned char kUuidByte = 0xfa;

}  // namespace sluice::fake_cuda
