// Constants of the cost model that describe frameworks, not machines. Each is
// one number for a framework, never for a row, with its meaning. README.md says
// how they were fitted and how far they hold.
#pragma once

namespace sluice::planner::train {

// --- Memory that activations may use, as a fraction of the GPU's ------------
// Context, communicators' buffers, workspaces and the loss of two-level plans
// take the rest. MEMO's 7B fits 1024K on TP 8 (needs 76.0 GB here) and not
// 1152K; its full recomputation with a plan fits 640K and not 768K.
inline constexpr double kPlannedMemory = 0.907;
// A caching allocator without a plan: blocks cut for one size do not serve
// another. Megatron-LM 7B, TP 4 x CP 2: 384K fits, 512K does not; Ulysses 7B:
// 256K and not 384K, 65B: 1280K and not 1408K.
inline constexpr double kCachedMemory = 0.765;
// FPDT's states are static and its chunks few: 70B on 16 A100-80GB holds 70.6
// GB of states and 1M tokens.
inline constexpr double kFpdtMemory = 0.96;
// ALST: expandable segments, which its recipes set, lose little to
// fragmentation; context, communicators and workspaces take the rest.
inline constexpr double kAlstMemory = 0.90;
// TorchTitan's FSDP2, and UPipe in it: expandable segments as well.
inline constexpr double kFsdpMemory = 0.90;
// Sluice's lease is one planned region; context and communicators take the
// rest.
inline constexpr double kLeasedMemory = 0.93;
// The Python package: torch's caching allocator, with consecutive chunks of
// equal shape; context and communicators take the rest.
inline constexpr double kPythonMemory = 0.90;
// Pinned host memory, as a fraction of a node's. MEMO uses 1.03 TB of 2 TB
// (256K, alpha 1) and runs out of host memory at 1.55 TB (384K, alpha 1).
inline constexpr double kMemoHost = 0.65;
// FPDT: checkpoints of 0.69 TB and a layer's scratch in 1 TB (2.7B, 4M).
inline constexpr double kPinnedHost = 0.90;

// --- Bytes per parameter ---------------------------------------------------
inline constexpr double kWeightBytes = 2;       // bf16
inline constexpr double kMegatronGradient = 4;  // fp32, as its DDP accumulates
inline constexpr double kDeepSpeedGradient = 2;
inline constexpr double kOptimizerBytes = 12;  // fp32 weights, two moments
// FSDP2's states: weights, gradients and two moments, fp32.
inline constexpr double kFsdpStates = 16;
// ALST: DeepSpeed's optimizer in host memory, with fp32 gradients.
inline constexpr double kAlstHostStates = 16;
// ZeRO-3's live parameters and buckets (stage3_max_live_parameters 1e9 and two
// buckets of 5e8 elements at bf16, partly filled).
inline constexpr double kZero3Buffers = 3e9;

// --- Bytes per logit -------------------------------------------------------
// bf16 and an fp32 copy, softmax in place.
inline constexpr double kMegatronLogit = 6;
// bf16, fp32, softmax, and gradients in fp32 and in bf16: nothing in place.
inline constexpr double kDeepSpeedLogit = 16;

// --- Units of activation: one hidden state of the tokens a GPU holds -------
// Backward makes gradients of the FFN's wide tensors and two hidden states.
inline constexpr double kBackwardHiddens = 2;
// Sequence parallelism gathers whole hidden states (tp units each): input and
// output, and without a plan also the previous pass's block.
inline constexpr double kGatheredPlanned = 2;
inline constexpr double kGatheredCached = 3;
// Context parallelism's ring: k and v sent and received; without a plan also
// the per-step outputs' blocks, which nothing else reuses.
inline constexpr double kRingPlanned = 4;
inline constexpr double kRingCached = 10;
// The final norm's output and its gradient, in addition to the logits.
inline constexpr double kHeadHiddens = 2;
// Ulysses, a layer under recomputation: 16 skeletal, 8 receive buffers, 4
// gradients.
inline constexpr double kUlyssesHiddens = 28;
// FPDT keeps hidden states of all local tokens on the GPU between chunked
// parts: 4 forward (its table: hidden 1, other 3), 5 backward (hidden 2, other
// 3), the loss's input and its gradient.
inline constexpr double kFpdtHiddens = 11;
// States sharded over all ranks stay on the GPU up to this fraction of it (the
// paper: 30B on 8 A100-80GB, 58 GB). Above it they would leave no room, and
// optimizer states go to host memory (2.7B on one A100-40GB does not run
// otherwise).
inline constexpr double kFpdtStatesOnGpu = 0.75;
// Host memory of one layer's q, k, v, o, dO (bf16) and dq (fp32) of all tokens
// and the layer's input, in hidden states.
inline constexpr double kFpdtHostHiddens = 8;
// q, k, v, o, dO, dq, dk, dv of a chunk, double-buffered, in chunk hiddens.
inline constexpr double kFpdtChunkHiddens = 16;
inline constexpr int kFpdtChunk = 64 << 10;
// ALST, at the peak in attention's backward: input, norm1's output, q, o, dO,
// the residual's gradient, o's before its exchange, dq, and k, v, dk, dv by the
// share of kv heads; norms' fp32 copies, the kernel's fp32 dq and expanded dk,
// dv, and the all-to-all's buffers. One number, fitted to the lengths that
// Llama-8B reaches on 8 and 32 H100 (3.7M, 15M).
inline constexpr double kAlstHiddens = 18;
// The part of these that a single rank does not have, because it exchanges
// nothing (DeepSpeed's register_with_transformers does nothing then): o before
// its exchange, and an all-to-all's send and receive buffers.
inline constexpr double kAlstExchange = 3;
// UPipe, at the peak in attention's backward, as its code allocates
// (github.com/ghadiaravi13/untied-ulysses at 1ac00f10, fully_fused_attn.py).
// Hidden states of all local tokens: the input (the first layer's too, which is
// not offloaded), norm1's output and its gradient, the residual's gradient. As
// wide as the queries: o and dO. As wide as the heads of one stage: q, o, dO,
// dq, its fp32 sum (2), k, v, dk, dv and the sums of dk, dv. With a ring also,
// in fp32, dq, dk, dv, the dk, dv that are sent and received, and the received
// k, v (flash_attn_utils.py).
inline constexpr double kUpipeHiddens = 5;
inline constexpr double kUpipeQueries = 2;
inline constexpr double kUpipeStage = 12;
inline constexpr double kUpipeRing = 16;
// UPipe's rotary table: complex64, of all tokens, on every GPU.
inline constexpr double kUpipeRotary = 8;
// ALST's loss uses tiles of 1 GB of fp32 logits, with softmax and gradient.
inline constexpr double kAlstLogits = 2e9;
// A shard of weights and gradients above this fraction of the GPU goes to host
// memory, as in ALST's one-GPU recipes.
inline constexpr double kAlstStatesOnGpu = 0.20;
// The Python package, at the peak in a chunk's backward: hidden states of a
// rank's rows of the chunk, and tensors as wide as the FFN, as torch's profiler
// counts them on the CPU in transformers' Llama in bf16 (15 and 6.0, by chunks
// of 512 to 2,048 rows); and, as wide as the queries, the fetched tensors in
// leased GPU memory: those of this chunk and the next, and k, v and fp32 dk, dv
// of two.
inline constexpr double kPythonHiddens = 16;
inline constexpr double kPythonWide = 6;
inline constexpr double kPythonQueries = 10;
// Its head takes as many rows of each of a layer's chunks as make the logits
// eight hidden states large, at least 256 (client/python/sluice/hf/head.py).
inline constexpr double kPythonHeadHiddens = 8;
inline constexpr double kPythonHeadRows = 256;
// Each rank holds ids, labels, shifted labels, positions and the two ends of
// the visible interval of all tokens, and computes masks by 33 keys per row
// (int64).
inline constexpr double kPythonTokenBytes = 8 * (6 + 33);
// A unit's summed gradients in fp32, and the bf16 copy at the end.
inline constexpr double kPythonSums = 6;

// --- Time ------------------------------------------------------------------
// Elementwise kernels (norms, GELU, residual, casts, the softmax's tail) read
// and write a layer's tensors in GPU memory: in hidden states per pass.
inline constexpr double kForwardMoves = 24;
inline constexpr double kBackwardMoves = 40;
// A mixture of experts reads and writes each token's hidden state on the way to
// each of its experts and on the way back, per pass.
inline constexpr double kExpertMoves = 4;
// The share of the forward's elementwise kernels that run before its last
// matmul.
inline constexpr double kRecomputedMoves = 0.6;
// The same for sluice's engine python with ATen's kernels, one operation at a
// time, in fp32 for norms and sums: reads and writes counted in Llama's code in
// bf16, in hidden states and in tensors as wide as the FFN. (passes.h has
// engine trainer's.)
inline constexpr double kPythonForwardMoves = 54;
inline constexpr double kPythonForwardWide = 7;  // recomputation's too
inline constexpr double kPythonRecomputedMoves = 46;
inline constexpr double kPythonBackwardMoves = 182;
inline constexpr double kPythonBackwardWide = 21;
// Exposed collectives of tensor parallelism per layer. Forward gathers and
// scatters twice; backward has six, less those hidden under weight gradients.
inline constexpr double kForwardCollectives = 4;
inline constexpr double kBackwardCollectives = 3;
inline constexpr double kRecomputeCollectives = 3;  // all but the last scatter
// A caching allocator that runs out frees its cached blocks and asks the driver
// again (MEMO section 3.2: 6 times an iteration at 128K, 16 at 256K). That
// begins when activations fill the first fraction of the memory that states
// leave (7B: not at 64K, 0.13) and has its full rate from the second (7B: 128K,
// 0.22). Its cost depends on the machine (Hardware::reorganisation_s_per_byte).
inline constexpr double kReorganisationStart = 0.125;
inline constexpr double kReorganisationFull = 0.22;

}  // namespace sluice::planner::train
