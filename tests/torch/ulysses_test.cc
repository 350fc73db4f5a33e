#include "client/torch/ranks/ulysses.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <ostream>

#include "tests/support/case_name.h"
#include "tests/torch/rank_threads.h"
#include "tests/torch/test_node.h"

namespace sluice::runtime {
namespace {

constexpr int64_t kDim = 4;

// Returns small whole numbers. Their sums are exact in every type, so results
// must be equal.
at::Tensor Numbers(std::vector<int64_t> shape, uint64_t seed,
                   at::ScalarType type) {
  at::Generator generator = at::detail::createCPUGenerator(seed);
  return at::randint(-8, 9, shape, generator).to(type);
}

struct Case {
  int ranks;
  int64_t heads, kv_heads, seq_len, chunk;
  at::ScalarType type = at::kFloat;

  friend void PrintTo(const Case& c, std::ostream* out) {
    *out << c.ranks << " ranks, " << c.heads << " heads, " << c.kv_heads
         << " kv heads, " << c.seq_len << " tokens, chunks of " << c.chunk
         << ", " << c.type;
  }
};

// Expected values are on the host; exchanged tensors are on the node's device.
class HeadExchangeTest : public ::testing::TestWithParam<Case> {
 protected:
  // Runs `body` once per rank, with the rank's exchange.
  void OnEachRank(
      const std::function<void(HeadExchange&, int rank)>& body) const {
    RunRanks(c.ranks, [&](Collectives& host) {
      node.EnterRank();
      const auto through = node.CollectivesOver(&host);
      HeadExchange exchange(c.heads, c.kv_heads, c.ranks, host.rank(),
                            through ? through.get() : &host);
      body(exchange, host.rank());
    });
  }
  at::Tensor There(const at::Tensor& tensor) const {
    return tensor.to(TestDevice());
  }

  const TestNode node{GetParam().ranks, 0, 0};
  const Case c = GetParam();
  const stream::ChunkLayout layout{c.seq_len, c.chunk, c.ranks};
  const stream::HeadLayout heads{c.heads, c.kv_heads, c.ranks};

  // Returns the chunk's rows of every rank, with all heads.
  at::Tensor Global(int64_t m, int64_t count, uint64_t seed) const {
    return Numbers({layout.rows(m), count, kDim}, seed, c.type);
  }
  at::Tensor Mine(const at::Tensor& global, const RowRuns& runs, int r) const {
    return global.narrow(0, runs.begin[r], runs.count[r]).clone();
  }
  at::Tensor QueriesOf(const at::Tensor& global, int r) const {
    return global.narrow(1, heads.first_head(r), heads.q_per_rank);
  }
  // Returns the rows of a whole chunk's head side that are in rank r's part.
  at::Tensor PartOf(const at::Tensor& whole, int64_t m, int r) const {
    const int64_t first = heads.part(r) * heads.head_ranks;
    const int64_t begin = layout.local_offset(m, first);
    const int64_t end = layout.local_offset(m, first + heads.head_ranks);
    return whole.narrow(0, begin, end - begin);
  }
  at::Tensor KeysOf(const at::Tensor& global, int r) const {
    return global.index_select(1, at::tensor(heads.kv_of(r)));
  }
  // Returns rows of 99. Rows outside of runs must stay 99.
  at::Tensor Untouched(int64_t m, int64_t count) const {
    return at::full({layout.rows(m), count, kDim}, 99, c.type);
  }
  // Returns `whole` in the rows of runs, and 99 elsewhere.
  at::Tensor InRuns(const at::Tensor& whole, const RowRuns& runs) const {
    at::Tensor result = at::full(whole.sizes(), 99, c.type);
    for (size_t p = 0; p < runs.begin.size(); ++p) {
      result.narrow(0, runs.begin[p], runs.count[p])
          .copy_(whole.narrow(0, runs.begin[p], runs.count[p]));
    }
    return result;
  }
  void CheckToHeads(HeadExchange& exchange, int rank, int64_t m,
                    const RowRuns& runs) const;
  void CheckToTokens(HeadExchange& exchange, int rank, int64_t m,
                     const RowRuns& runs) const;
};

void HeadExchangeTest::CheckToHeads(HeadExchange& exchange, int rank, int64_t m,
                                    const RowRuns& runs) const {
  const at::Tensor q = Global(m, c.heads, 1), k = Global(m, c.kv_heads, 2),
                   v = Global(m, c.kv_heads, 3);
  const at::Tensor q_out =
                       There(PartOf(Untouched(m, heads.q_per_rank), m, rank)),
                   k_out = There(Untouched(m, heads.kv_per_rank)),
                   v_out = There(Untouched(m, heads.kv_per_rank));
  const absl::Status status = exchange.ToHeads(
      runs, {{HeadKind::kQuery, There(Mine(q, runs, rank)), q_out},
             {HeadKind::kKeyValue, There(Mine(k, runs, rank)), k_out},
             {HeadKind::kKeyValue, There(Mine(v, runs, rank)), v_out}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(
      q_out.cpu().equal(PartOf(InRuns(QueriesOf(q, rank), runs), m, rank)));
  EXPECT_TRUE(k_out.cpu().equal(InRuns(KeysOf(k, rank), runs)));
  EXPECT_TRUE(v_out.cpu().equal(InRuns(KeysOf(v, rank), runs)));
}

void HeadExchangeTest::CheckToTokens(HeadExchange& exchange, int rank,
                                     int64_t m, const RowRuns& runs) const {
  const at::Tensor q = Global(m, c.heads, 4);
  // Each rank has a dk of its heads. A row's own rank must get the sum over all
  // ranks that hold the head.
  at::Tensor k = at::zeros({layout.rows(m), c.kv_heads, kDim}, c.type);
  at::Tensor mine;
  for (int r = 0; r < c.ranks; ++r) {
    const at::Tensor held = Global(m, heads.kv_per_rank, 10 + r);
    k.index_add_(1, at::tensor(heads.kv_of(r)), held);
    if (r == rank) mine = held;
  }
  const auto there = at::TensorOptions().device(TestDevice());
  const at::Tensor q_home =
      at::empty({runs.count[rank], c.heads, kDim}, there.dtype(c.type));
  const at::Tensor k_home =  // in fp32, also if bf16 is sent
      at::empty({runs.count[rank], c.kv_heads, kDim}, there.dtype(at::kFloat));
  const absl::Status status = exchange.ToTokens(
      runs,
      {{HeadKind::kQuery, q_home, There(PartOf(QueriesOf(q, rank), m, rank))},
       {HeadKind::kKeyValue, k_home, There(mine)}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_TRUE(q_home.cpu().equal(Mine(q, runs, rank)));
  EXPECT_TRUE(k_home.cpu().equal(Mine(k, runs, rank).to(at::kFloat)));
}

TEST_P(HeadExchangeTest, WholeChunksReachTheirHeadsAndReturn) {
  OnEachRank([&](HeadExchange& exchange, int rank) {
    for (int64_t m = 0; m < layout.chunks(); ++m) {
      const RowRuns runs = RowRuns::Whole(layout, m);
      CheckToHeads(exchange, rank, m, runs);
      CheckToTokens(exchange, rank, m, runs);
    }
  });
}

// The runs lie back to back, like recomputed rows.
TEST_P(HeadExchangeTest, OnlyTheRowsOfRunsAreExchanged) {
  OnEachRank([&](HeadExchange& exchange, int rank) {
    const at::Tensor q = Numbers({c.chunk, c.heads, kDim}, 1, c.type),
                     k = Numbers({c.chunk, c.kv_heads, kDim}, 2, c.type);
    for (int64_t m = 0; m < layout.chunks(); ++m) {
      RowRuns runs;
      for (int64_t p = 0, at = 0; p < c.ranks; ++p) {
        const int64_t rows = layout.local_rows(m, p);
        runs.begin.push_back(at);
        runs.count.push_back(rows - std::min(rows, (rows + p) / 2));
        at += runs.count.back();
      }
      const int64_t first = heads.part(rank) * heads.head_ranks;
      const int64_t last = first + heads.head_ranks - 1;
      const int64_t mine =
          runs.begin[last] + runs.count[last] - runs.begin[first];
      const int64_t all = runs.begin.back() + runs.count.back();
      const auto there = at::TensorOptions().device(TestDevice());
      const at::Tensor q_out = at::empty({mine, heads.q_per_rank, kDim},
                                         there.dtype(c.type)),
                       k_out = at::empty({all, heads.kv_per_rank, kDim},
                                         there.dtype(c.type));
      const absl::Status status = exchange.ToHeads(
          runs, {{HeadKind::kQuery, There(Mine(q, runs, rank)), q_out},
                 {HeadKind::kKeyValue, There(Mine(k, runs, rank)), k_out}});
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_TRUE(q_out.cpu().equal(
          QueriesOf(q, rank).narrow(0, runs.begin[first], mine)));
      EXPECT_TRUE(k_out.cpu().equal(KeysOf(k, rank).narrow(0, 0, all)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, HeadExchangeTest,
    ::testing::Values(
        Case{1, 4, 2, 10, 8}, Case{2, 2, 2, 16, 8}, Case{2, 4, 2, 21, 8},
        Case{2, 2, 1, 9, 8}, Case{4, 8, 2, 21, 8}, Case{4, 12, 3, 23, 10},
        Case{4, 4, 1, 9, 8}, Case{3, 6, 2, 13, 5}, Case{2, 3, 3, 21, 8},
        Case{4, 2, 1, 23, 9}, Case{4, 6, 2, 21, 8}, Case{4, 2, 2, 9, 8},
        Case{3, 2, 1, 13, 5}, Case{4, 18, 3, 23, 10}, Case{4, 6, 3, 3, 8},
        Case{4, 12, 3, 23, 10, at::kBFloat16}),
    ::sluice::testing::CaseName());

TEST(HeadExchange, OneRankMayUseOneTensorOnBothSides) {
  HeadExchange exchange(2, 2, 1, 0, nullptr);
  const stream::ChunkLayout layout(6, 6, 1);
  const TestNode node(1, 0, 0);
  const at::Tensor before = Numbers({6, 2, kDim}, 1, at::kFloat);
  const at::Tensor q = before.to(TestDevice(), /*non_blocking=*/false,
                                 /*copy=*/true);
  EXPECT_TRUE(exchange.local());
  EXPECT_TRUE(
      exchange.ToHeads(RowRuns::Whole(layout, 0), {{HeadKind::kQuery, q, q}})
          .ok());
  EXPECT_TRUE(q.cpu().equal(before));
}

}  // namespace
}  // namespace sluice::runtime
