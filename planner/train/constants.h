// Constants of the cost model that describe frameworks, the same on all
// machines. README.md says how they were fitted and where they are valid.
#pragma once

namespace sluice::planner::train {

// --- Memory that tensors may use, as a fraction of the GPU's ----------------
// Other memory is for the context, communicators' buffers, workspaces and the
// waste of two-level plans. MEMO's 7B runs 1024K tokens on TP 8 (76.0 GB here),
// not 1152K; full recomputation with a plan runs 640K tokens, not 768K.
inline constexpr double kPlannedMemory = 0.907;
// A caching allocator without a plan loses more, because blocks cut for one
// size do not serve another. Megatron-LM 7B on TP 4 x CP 2 runs 384K tokens and
// not 512K; Ulysses 7B 256K, not 384K; Ulysses 65B 1280K, not 1408K.
inline constexpr double kCachedMemory = 0.765;
// FPDT loses little, because its states are static and its chunks few. 70B runs
// 1M tokens on 16 A100-80GB, with 70.6 GB of states on each.
inline constexpr double kFpdtMemory = 0.96;
// ALST's recipes set expandable segments, which lose little to fragmentation.
inline constexpr double kAlstMemory = 0.90;
// TorchTitan's FSDP2, and UPipe on top of it, use expandable segments too.
inline constexpr double kFsdpMemory = 0.90;
// Sluice's lease is one planned region.
inline constexpr double kLeasedMemory = 0.93;
// The Python package uses torch's caching allocator; its chunks are equal.
inline constexpr double kPythonMemory = 0.90;
// Host memory that may be pinned, as a fraction of a node's. MEMO at alpha 1
// uses 1.03 TB of 2 TB (256K) and runs out at 1.55 TB (384K).
inline constexpr double kMemoHost = 0.65;
// FPDT's checkpoints of 0.69 TB and a layer's scratch fit in 1 TB (2.7B, 4M).
inline constexpr double kPinnedHost = 0.90;

// --- Bytes per parameter ---------------------------------------------------
inline constexpr double kWeightBytes = 2;       // bf16
inline constexpr double kMegatronGradient = 4;  // fp32, as its DDP accumulates
inline constexpr double kDeepSpeedGradient = 2;
inline constexpr double kOptimizerBytes = 12;  // fp32 weights, two moments
// FSDP2's states, all fp32: weights, gradients and two moments.
inline constexpr double kFsdpStates = 16;
// ALST's states in host memory: DeepSpeed's optimizer, with fp32 gradients.
inline constexpr double kAlstHostStates = 16;
// ZeRO-3's live parameters and buckets in bytes (stage3_max_live_parameters 1e9
// and two buckets of 5e8 elements at bf16, partly filled).
inline constexpr double kZero3Buffers = 3e9;

// --- Bytes per logit -------------------------------------------------------
// Megatron: bf16 and an fp32 copy, with the softmax in place.
inline constexpr double kMegatronLogit = 6;
// DeepSpeed: bf16, fp32, softmax, gradients in fp32 and bf16, none in place.
inline constexpr double kDeepSpeedLogit = 16;

// --- Units of activation: one hidden state of the tokens a GPU holds -------
// Backward makes gradients of the FFN's wide tensors and two hidden states.
inline constexpr double kBackwardHiddens = 2;
// Sequence parallelism gathers whole hidden states (tp units each): input and
// output, and without a plan also the block of the pass before.
inline constexpr double kGatheredPlanned = 2;
inline constexpr double kGatheredCached = 3;
// Context parallelism's ring sends and receives k and v. Without a plan, the
// outputs of each step of the ring take blocks that nothing else reuses.
inline constexpr double kRingPlanned = 4;
inline constexpr double kRingCached = 10;
// The final norm's output and its gradient, in addition to the logits.
inline constexpr double kHeadHiddens = 2;
// A layer of Ulysses under recomputation: 16 skeletal hidden states, 8 of
// receive buffers, 4 of gradients.
inline constexpr double kUlyssesHiddens = 28;
// FPDT keeps hidden states of all local tokens on the GPU between its chunked
// parts: 4 in forward (the paper's table: hidden 1, other 3), 5 in backward
// (hidden 2, other 3), the loss's input and its gradient.
inline constexpr double kFpdtHiddens = 11;
// FPDT's sharded states stay on the GPU up to this fraction of its memory (the
// paper: 30B on 8 A100-80GB, 58 GB). Above it, optimizer states go to host
// memory (2.7B on one A100-40GB does not run otherwise).
inline constexpr double kFpdtStatesOnGpu = 0.75;
// Host memory of one FPDT layer, in hidden states: q, k, v, o, dO (bf16) and dq
// (fp32) of all tokens, and the layer's input.
inline constexpr double kFpdtHostHiddens = 8;
// FPDT's q, k, v, o, dO, dq, dk, dv of a chunk, double-buffered, in hidden
// states of a chunk.
inline constexpr double kFpdtChunkHiddens = 16;
inline constexpr int kFpdtChunk = 64 << 10;
// ALST's hidden states at the peak, in attention's backward: input, norm1's
// output, q, o, dO, the residual's gradient, o before its exchange, dq, and k,
// v, dk, dv by the share of kv heads; norms' fp32 copies, the kernel's fp32 dq
// and expanded dk, dv, and the all-to-all's buffers. Fitted to Llama-8B's
// lengths on 8 and 32 H100 (3.7M, 15M).
inline constexpr double kAlstHiddens = 18;
// The part of kAlstHiddens that a single rank does not need, because
// DeepSpeed's register_with_transformers does nothing then: o before its
// exchange, and an all-to-all's send and receive buffers.
inline constexpr double kAlstExchange = 3;
// UPipe's tensors at the peak, in attention's backward
// (github.com/ghadiaravi13/untied-ulysses at 1ac00f10, fully_fused_attn.py).
// Hidden states: the input (also the first layer's, which is not offloaded),
// norm1's output and its gradient, the residual's gradient. As wide as the
// queries: o and dO. As wide as the heads of one stage: q, o, dO, dq, its fp32
// sum (2), k, v, dk, dv and the sums of dk, dv. A ring adds, in fp32, dq, dk,
// dv, the dk, dv that are sent and received, and the received k, v
// (flash_attn_utils.py).
inline constexpr double kUpipeHiddens = 5;
inline constexpr double kUpipeQueries = 2;
inline constexpr double kUpipeStage = 12;
inline constexpr double kUpipeRing = 16;
// Bytes of UPipe's rotary table per token and pair of a head's dimensions (a
// complex64), for all tokens, on every GPU.
inline constexpr double kUpipeRotary = 8;
// ALST's tile of 1 GB of fp32 logits, with softmax and gradient.
inline constexpr double kAlstLogits = 2e9;
// A fraction of the usable GPU memory. A larger shard of weights and gradients
// goes to host memory, as in ALST's one-GPU recipes.
inline constexpr double kAlstStatesOnGpu = 0.20;
// The Python package's tensors at the peak, in a chunk's backward. On the CPU
// torch's profiler counts 15 hidden states (we take one more) and 6.0 tensors
// as wide as the FFN, in transformers' Llama in bf16 with chunks of 512 to
// 2,048 rows. As wide as the queries, in leased GPU memory, are the tensors
// fetched for this chunk and the next, and k, v and fp32 dk, dv of two chunks.
inline constexpr double kPythonHiddens = 16;
inline constexpr double kPythonWide = 6;
inline constexpr double kPythonQueries = 10;
// The package's head computes logits in blocks of rows. A block's logits take
// as much memory as kPythonHeadHiddens hidden states of a chunk, but it has at
// least kPythonHeadRows rows (client/python/sluice/hf/head.py).
inline constexpr double kPythonHeadHiddens = 8;
inline constexpr double kPythonHeadRows = 256;
// The package's bytes per token on each rank: ids, labels, shifted labels,
// positions, the two ends of the visible interval, and masks of 33 keys.
inline constexpr double kPythonTokenBytes = 8 * (6 + 33);
// Bytes per parameter of a unit's summed fp32 gradients and their bf16 copy.
inline constexpr double kPythonSums = 6;

// --- Time ------------------------------------------------------------------
// What elementwise kernels (norms, GELU, residual, casts, the softmax's tail)
// read and write per pass of a layer, in hidden states.
inline constexpr double kForwardMoves = 24;
inline constexpr double kBackwardMoves = 40;
// What they read and write per expert of a token, on the way there and back.
inline constexpr double kExpertMoves = 4;
// The fraction of kForwardMoves that precede forward's last matmul.
inline constexpr double kRecomputedMoves = 0.6;
// Moves of engine python, which runs ATen's kernels, one per operation, in fp32
// for norms and sums. Counted in Llama's code in bf16, in hidden states (Moves)
// and in tensors as wide as the FFN (Wide). passes.h counts for engine trainer.
inline constexpr double kPythonForwardMoves = 54;
inline constexpr double kPythonForwardWide = 7;  // also in recomputation
inline constexpr double kPythonRecomputedMoves = 46;
inline constexpr double kPythonBackwardMoves = 182;
inline constexpr double kPythonBackwardWide = 21;
// Exposed collectives of tensor parallelism per layer. Forward gathers and
// scatters twice. Backward has six, some hidden under weight gradients.
inline constexpr double kForwardCollectives = 4;
inline constexpr double kBackwardCollectives = 3;
inline constexpr double kRecomputeCollectives = 3;  // all but the last scatter
// A caching allocator that runs out of memory frees its cached blocks and asks
// the driver for new ones (MEMO section 3.2: 6 times an iteration at 128K, 16
// at 256K). That begins when activations fill kReorganisationStart of the
// memory that states leave (7B: about 64K tokens), and reaches its full rate
// at kReorganisationFull (7B: 128K). Its cost depends on the machine
// (Hardware::reorganisation_s_per_byte).
inline constexpr double kReorganisationStart = 0.125;
inline constexpr double kReorganisationFull = 0.22;

}  // namespace sluice::planner::train
