// The model's constants that are not the machine's: what frameworks do. Each
// is one number for a framework, never for a row, with what it stands for; how
// they were fixed and how far they carry is in README.md.
#pragma once

namespace sluice::planner::train {

// --- Memory an activation may use, of what the GPU has -------------------
// Context, communicators' buffers, workspaces, and what a plan of two levels
// loses take the rest. MEMO's 7B fits 1024K on TP 8 (needs 76.0 GB here) and
// not 1152K; its full recomputation with a plan fits 640K and not 768K.
inline constexpr double kPlannedMemory = 0.907;
// A caching allocator without a plan: blocks cut for one size do not serve
// another. Megatron-LM 7B, TP 4 x CP 2: 384K fits, 512K does not; Ulysses 7B:
// 256K and not 384K, 65B: 1280K and not 1408K.
inline constexpr double kCachedMemory = 0.765;
// FPDT's states are static and its chunks few: 70B on 16 A100-80GB holds 70.6
// GB of states and 1M tokens.
inline constexpr double kFpdtMemory = 0.96;
// ALST: expandable segments (its recipes set them) lose little to cuts;
// context, communicators and workspaces take the rest.
inline constexpr double kAlstMemory = 0.90;
// TorchTitan's FSDP2, and UPipe in it: the same expandable segments.
inline constexpr double kFsdpMemory = 0.90;
// Our own lease is one region, planned; context and communicators the rest.
inline constexpr double kLeasedMemory = 0.93;
// The Python package: torch's caching allocator, in which chunks of equal shape
// follow each other; context and communicators the rest.
inline constexpr double kPythonMemory = 0.90;
// Pinned host memory, of what a node has. MEMO: 1.03 TB of 2 TB is used
// (256K, alpha 1), 1.55 TB is out of host memory (384K, alpha 1).
inline constexpr double kMemoHost = 0.65;
// FPDT: checkpoints of 0.69 TB and a layer's scratch on 1 TB (2.7B, 4M).
inline constexpr double kPinnedHost = 0.90;

// --- Bytes a parameter ----------------------------------------------------
inline constexpr double kWeightBytes = 2;       // bf16
inline constexpr double kMegatronGradient = 4;  // fp32, as its DDP accumulates
inline constexpr double kDeepSpeedGradient = 2;
inline constexpr double kOptimizerBytes = 12;  // fp32 weights, two moments
// FSDP2's states: weights, gradients and two moments, fp32.
inline constexpr double kFsdpStates = 16;
// ALST: DeepSpeed's optimizer in host memory, fp32 gradients beside it.
inline constexpr double kAlstHostStates = 16;
// ZeRO-3's live parameters and buckets (stage3_max_live_parameters 1e9 and
// two buckets of 5e8 elements at bf16, partly filled).
inline constexpr double kZero3Buffers = 3e9;

// --- Bytes a logit ---------------------------------------------------------
// bf16 and its fp32 copy, softmax in place.
inline constexpr double kMegatronLogit = 6;
// bf16, fp32, softmax, gradient in fp32, and in bf16: nothing in place.
inline constexpr double kDeepSpeedLogit = 16;

// --- Units of activation: one hidden state of the tokens a GPU holds -------
// Backward makes gradients of the FFN's wide tensors and two hidden states.
inline constexpr double kBackwardHiddens = 2;
// Sequence parallelism gathers whole hidden states (tp units each): input and
// output, and without a plan also the block of the pass before.
inline constexpr double kGatheredPlanned = 2;
inline constexpr double kGatheredCached = 3;
// Context parallelism's ring: k and v coming and going; without a plan also
// the per-step outputs' blocks, which nothing else reuses.
inline constexpr double kRingPlanned = 4;
inline constexpr double kRingCached = 10;
// Final norm and its gradient beside the logits.
inline constexpr double kHeadHiddens = 2;
// Ulysses: a layer under recomputation: 16 skeletal, 8 receive buffers, 4
// gradients.
inline constexpr double kUlyssesHiddens = 28;
// FPDT keeps hidden states of all local tokens on the GPU between chunked
// parts: 4 forward (its table: hidden 1, other 3), 5 backward (hidden 2, other
// 3), the loss's input and its gradient.
inline constexpr double kFpdtHiddens = 11;
// States sharded over all ranks stay on the GPU up to this part of it (30B on 8
// A100-80GB: 58 GB, says the paper); above they would leave room for nothing,
// and optimizer states go to host memory (2.7B on one A100-40GB cannot else).
inline constexpr double kFpdtStatesOnGpu = 0.75;
// One layer's q, k, v, o, dO (bf16) and dq (fp32) of all tokens in host memory,
// with the layer's input: in hidden states.
inline constexpr double kFpdtHostHiddens = 8;
// q, k, v, o, dO, dq, dk, dv of a chunk, double-buffered, in chunk hiddens.
inline constexpr double kFpdtChunkHiddens = 16;
inline constexpr int kFpdtChunk = 64 << 10;
// ALST, at the peak in attention's backward: input, norm1's output, q, o, dO,
// residual's gradient, o's before its exchange, dq, and k, v, dk, dv by the
// share of kv heads; norms' fp32 copies, the kernel's fp32 dq and expanded dk,
// dv, and the all-to-all's buffers. One number for what Llama-8B reaches on 8
// and 32 H100 (3.7M, 15M).
inline constexpr double kAlstHiddens = 18;
// The part of them that a single rank does not have, since it exchanges nothing
// (DeepSpeed's register_with_transformers does nothing then): o before its
// exchange, and what one all-to-all sends and receives.
inline constexpr double kAlstExchange = 3;
// UPipe, at the peak in attention's backward, as its code allocates
// (github.com/ghadiaravi13/untied-ulysses at 1ac00f10, fully_fused_attn.py):
// hidden states of all local tokens (the input, the first layer's too, which
// is not offloaded, norm1's output and its gradient, the residual's gradient);
// as wide as the queries o and dO; and as wide as the heads of one stage q, o,
// dO, dq, its fp32 sum (2), k, v, dk, dv and the sums of dk, dv. With a ring
// also, in fp32, dq, dk, dv, the dk, dv that leave and that arrive, and k, v
// that arrive (flash_attn_utils.py).
inline constexpr double kUpipeHiddens = 5;
inline constexpr double kUpipeQueries = 2;
inline constexpr double kUpipeStage = 12;
inline constexpr double kUpipeRing = 16;
// Its rotary table: complex64, of all tokens, on every GPU.
inline constexpr double kUpipeRotary = 8;
// ALST's loss takes tiles of 1 GB of fp32 logits; softmax and gradient beside.
inline constexpr double kAlstLogits = 2e9;
// A shard of weights and gradients above this part of the GPU goes to host
// memory, as its one-GPU recipes have it.
inline constexpr double kAlstStatesOnGpu = 0.20;
// The Python package, at the peak in a chunk's backward: hidden states of a
// rank's rows of the chunk and tensors as wide as the FFN, as torch's profiler
// counts them on the CPU in transformers' Llama in bf16 (15 and 6.0, by chunks
// of 512 to 2,048 rows); and, as wide as the queries, what lies fetched on a
// GPU in leased memory: this chunk's and the next one's, k, v and fp32 dk, dv
// of two.
inline constexpr double kPythonHiddens = 16;
inline constexpr double kPythonWide = 6;
inline constexpr double kPythonQueries = 10;
// Its head takes so many rows for each of a layer's chunk that logits are eight
// hidden states, 256 at least (client/python/sluice/hf/head.py).
inline constexpr double kPythonHeadHiddens = 8;
inline constexpr double kPythonHeadRows = 256;
// Each rank has of all tokens ids, labels, shifted labels, positions and the
// two ends of what they see, and finds masks by 33 keys a row (int64).
inline constexpr double kPythonTokenBytes = 8 * (6 + 33);
// Its sums of a unit's gradients in fp32, and the same in bf16 at the end.
inline constexpr double kPythonSums = 6;

// --- Time ------------------------------------------------------------------
// Elementwise kernels (norms, GELU, residual, casts, the softmax's tail) move
// a layer's tensors through GPU memory: in hidden states a pass.
inline constexpr double kForwardMoves = 24;
inline constexpr double kBackwardMoves = 40;
// A mixture of experts moves each token's hidden state to and from each expert
// that it takes: read and written there and back, a pass.
inline constexpr double kExpertMoves = 4;
// The share of the forward's elementwise kernels that run before its last
// matmul.
inline constexpr double kRecomputedMoves = 0.6;
// Those of sluice's engine python, which are ATen's, one operation at a time,
// and in fp32 where norms and sums are: counted in Llama's code in bf16, read
// or write by read or write, as hidden states and, of tensors as wide as the
// FFN, as those. (Engine trainer's are in passes.h.)
inline constexpr double kPythonForwardMoves = 54;
inline constexpr double kPythonForwardWide = 7;  // recomputed, too
inline constexpr double kPythonRecomputedMoves = 46;
inline constexpr double kPythonBackwardMoves = 182;
inline constexpr double kPythonBackwardWide = 21;
// Collectives of tensor parallelism per layer that nothing hides: forward
// gathers and scatters twice; backward's six less those under weight gradients.
inline constexpr double kForwardCollectives = 4;
inline constexpr double kBackwardCollectives = 3;
inline constexpr double kRecomputeCollectives = 3;  // all but the last scatter
// A caching allocator that runs out frees its cached blocks and asks the
// driver again (MEMO section 3.2: 6 times an iteration at 128K, 16 at 256K).
// It begins once activations fill the first part of what states leave (7B: no
// at 64K, 0.13) and happens at its full rate from the second (7B: 128K, 0.22).
// What it then costs is the machine's (Hardware::reorganisation_s_per_byte).
inline constexpr double kReorganisationStart = 0.125;
inline constexpr double kReorganisationFull = 0.22;

}  // namespace sluice::planner::train
