// Validates problems (node_swap.h) and the requests in profiles
// (rank_fractions.h).
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "planner/swap/rank_fractions.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using plan::kOneKind;
using plan::NodeResources;
using plan::RankProfile;
using plan::SkeletalClass;

// Limit of bytes, rates and seconds, far above any machine's.
constexpr double kMost = 1e18;

// Keeps the first error. Later checks are safe and change nothing.
class SwapChecker {
 public:
  explicit SwapChecker(const SwapProblem& problem) : problem_(problem) {}

  absl::Status Check() {
    CheckNode();
    if (problem_.ranks.empty()) Wrong("ranks", "there is none");
    for (size_t i = 0; i < problem_.ranks.size() && status_.ok(); ++i) {
      CheckRank(fmt::format("ranks[{}].", i), problem_.ranks[i]);
    }
    return status_;
  }

 private:
  using Names = std::set<std::string>;

  template <typename... Args>
  void Wrong(const std::string& path, fmt::format_string<Args...> what,
             Args&&... args) {
    if (!status_.ok()) return;
    status_ = absl::InvalidArgumentError(fmt::format(
        "{}: {}", path, fmt::format(what, std::forward<Args>(args)...)));
  }

  void NotNegative(const std::string& path, double value) {
    if (std::isnan(value)) Wrong(path, "is not a number");
    if (value < 0) Wrong(path, "{} is negative", value);
    if (value > kMost) Wrong(path, "{} is above {:g}", value, kMost);
  }

  void Positive(const std::string& path, double value) {
    NotNegative(path, value);
    if (value == 0) Wrong(path, "is 0: it must be positive");
  }

  // Checks that `name` is not empty and differs from the names before it.
  void Unique(const std::string& path, const std::string& name, Names* seen) {
    if (name.empty()) Wrong(path, "is empty");
    if (!seen->insert(name).second) Wrong(path, "'{}' occurs twice", name);
  }

  void CheckNode() {
    for (size_t i = 0; i < problem_.links.size(); ++i) {
      const SwapProblem::Link& link = problem_.links[i];
      const std::string path = fmt::format("links[{}].", i);
      Unique(path + "name", link.name, &links_);
      Positive(path + "h2d_bytes_per_s", link.h2d_bytes_per_s);
      Positive(path + "d2h_bytes_per_s", link.d2h_bytes_per_s);
      if (!link.total_bytes_per_s) continue;
      Positive(path + "total_bytes_per_s", *link.total_bytes_per_s);
    }
    for (size_t i = 0; i < problem_.numa.size(); ++i) {
      const SwapProblem::Numa& numa = problem_.numa[i];
      const std::string path = fmt::format("numa[{}].", i);
      if (numa.id < 0) Wrong(path + "id", "{} is negative", numa.id);
      if (!numa_.insert(numa.id).second) {
        Wrong(path + "id", "{} occurs twice", numa.id);
      }
      NotNegative(path + "host_budget_bytes", numa.host_budget_bytes);
    }
    for (size_t i = 0; i < problem_.hosts.size(); ++i) {
      const std::string path = fmt::format("hosts[{}].", i);
      Unique(path + "name", problem_.hosts[i].name, &hosts_);
      NotNegative(path + "budget_bytes", problem_.hosts[i].budget_bytes);
    }
  }

  void CheckRank(const std::string& path, const SwapProblem::Rank& rank) {
    Unique(path + "name", rank.name, &ranks_);
    if (!numa_.contains(rank.numa)) {
      Wrong(path + "numa", "there is no NUMA node {}", rank.numa);
    }
    CheckPlaces(path + "links", rank.links, links_, "link");
    CheckPlaces(path + "hosts", rank.hosts, hosts_, "host limit");
    if (rank.kinds.empty()) Wrong(path + "kinds", "there is none");
    Names names;
    for (size_t k = 0; k < rank.kinds.size(); ++k) {
      const std::string at = KindPath(path, rank, k);
      Unique(at + "name", rank.kinds[k].name, &names);
      CheckLayers(at, rank.kinds[k]);
    }
    NotNegative(path + "gpu_budget_bytes", rank.gpu_budget_bytes);
    NotNegative(path + "host_fixed_bytes", rank.host_fixed_bytes);
    CheckTensors(path, rank);
    for (size_t k = 0; k < rank.kinds.size(); ++k) {
      CheckWindows(KindPath(path, rank, k), rank, k);
    }
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      CheckShared(fmt::format("{}tensors[{}].shared", path, t),
                  rank.tensors[t]);
    }
  }

  void CheckPlaces(const std::string& path, const std::vector<std::string>& own,
                   const Names& all, const char* what) {
    Names seen;
    for (size_t i = 0; i < own.size(); ++i) {
      const std::string at = fmt::format("{}[{}]", path, i);
      Unique(at, own[i], &seen);
      if (!all.contains(own[i])) {
        Wrong(at, "there is no {} '{}'", what, own[i]);
      }
    }
  }

  // Returns the path of kind k's fields. If the kinds have no names, the fields
  // are the rank's own.
  static std::string KindPath(const std::string& path,
                              const SwapProblem::Rank& rank, size_t k) {
    const bool one = rank.kinds.size() == 1 && rank.kinds[0].name == kOneKind;
    return one ? path : fmt::format("{}kinds[{}].", path, k);
  }

  void CheckLayers(const std::string& path, const SwapProblem::Kind& kind) {
    if (kind.layers < 1) {
      Wrong(path + "layers", "{} is below 1", kind.layers);
    }
    if (kind.layers > 1'000'000) {
      Wrong(path + "layers", "{} is above 1000000", kind.layers);
    }
    if (kind.resident_layers < 0 || kind.resident_layers > kind.layers) {
      Wrong(path + "resident_layers", "{} is not between 0 and layers, {}",
            kind.resident_layers, kind.layers);
    }
    NotNegative(path + "forward_d2h_fixed_bytes", kind.forward_d2h_fixed_bytes);
    NotNegative(path + "forward_h2d_fixed_bytes", kind.forward_h2d_fixed_bytes);
    NotNegative(path + "backward_d2h_fixed_bytes",
                kind.backward_d2h_fixed_bytes);
    NotNegative(path + "backward_h2d_fixed_bytes",
                kind.backward_h2d_fixed_bytes);
  }

  void CheckTensors(const std::string& path, const SwapProblem::Rank& rank) {
    std::set<std::pair<size_t, std::string>> names;
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank.tensors[t];
      const std::string at = fmt::format("{}tensors[{}].", path, t);
      if (tensor.kind >= rank.kinds.size()) {
        Wrong(at + "kind", "there is no kind {} of {}", tensor.kind,
              rank.kinds.size());
      }
      if (tensor.name.empty()) Wrong(at + "name", "is empty");
      if (!names.emplace(tensor.kind, tensor.name).second) {
        Wrong(at + "name", "'{}' occurs twice", tensor.name);
      }
      NotNegative(at + "bytes", tensor.bytes);
      if (tensor.recompute_s) {
        NotNegative(at + "recompute_s", *tensor.recompute_s);
      } else if (tensor.must == SwapProblem::Must::kRecompute) {
        Wrong(at + "must",
              "'recompute' of a tensor without recompute_s, which cannot be "
              "recomputed");
      }
      CheckGiven(at, tensor);
    }
  }

  void CheckGiven(const std::string& path, const SwapProblem::Tensor& tensor) {
    const std::pair<const char*, std::optional<double>> given[] = {
        {"keep", tensor.given.keep}, {"swap", tensor.given.swap}};
    for (const auto& [key, value] : given) {
      if (value && !(*value >= 0 && *value <= 1)) {
        Wrong(path + key, "{} is not between 0 and 1", *value);
      }
    }
    const double keep = tensor.given.keep.value_or(0);
    if (keep > 0 && !tensor.can_keep) {
      Wrong(path + "keep", "{} of a tensor that cannot be kept", keep);
    }
    const double sum = keep + tensor.given.swap.value_or(0);
    if (sum > 1 + 1e-9) {
      Wrong(path + "swap", "keep and swap are {} together: more than 1", sum);
    }
    const bool keeps = tensor.can_keep && !tensor.given.keep;
    if (tensor.given.swap && !keeps && !tensor.recompute_s && sum < 1 - 1e-9) {
      Wrong(path + "swap",
            "keep and swap are {} together: less than 1, and the tensor cannot "
            "be recomputed",
            sum);
    }
  }

  // A backward window may be 0 if backward copies nothing (frozen layers).
  void CheckWindows(const std::string& path, const SwapProblem::Rank& rank,
                    size_t k) {
    const SwapProblem::Kind& kind = rank.kinds[k];
    Positive(path + "forward_layer_s", kind.forward_layer_s);
    double copied =
        kind.backward_d2h_fixed_bytes + kind.backward_h2d_fixed_bytes;
    for (const SwapProblem::Tensor& tensor : rank.tensors) {
      if (tensor.kind == k && !tensor.traffic_in_fixed) copied += tensor.bytes;
    }
    NotNegative(path + "backward_layer_s", kind.backward_layer_s);
    if (copied > 0) Positive(path + "backward_layer_s", kind.backward_layer_s);
  }

  // Checks that all tensors of one shared name have the same open choices.
  void CheckShared(const std::string& path, const SwapProblem::Tensor& b) {
    if (b.shared.empty()) return;
    const SwapProblem::Tensor& a = *shared_.emplace(b.shared, &b).first->second;
    if (a.must != b.must || a.given != b.given || a.can_keep != b.can_keep ||
        a.recompute_s.has_value() != b.recompute_s.has_value()) {
      Wrong(path, "'{}' is shared, but not every rank may choose the same",
            b.shared);
    }
  }

  const SwapProblem& problem_;
  absl::Status status_;
  Names links_, hosts_, ranks_;
  std::set<int64_t> numa_;
  std::map<std::string, const SwapProblem::Tensor*> shared_;
};

// ---- Profiles --------------------------------------------------------------

template <typename... Args>
absl::Status WrongClass(const RankProfile& p, const SkeletalClass& c,
                        fmt::format_string<Args...> what, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(
      "rank {}, class '{}': {}", p.rank.value(), plan::FullName(c.kind, c.name),
      fmt::format(what, std::forward<Args>(args)...)));
}

absl::Status CheckClass(const RankProfile& p, const SkeletalClass& c) {
  const double keep = c.given.keep.value_or(0), swap = c.given.swap.value_or(0);
  if (c.must_swap && (keep > 0 || c.given.swap.value_or(1) < 1)) {
    return WrongClass(
        p, c, "must be swapped whole: no other fractions may be requested");
  }
  if (keep > 0 && !c.can_keep) {
    return WrongClass(p, c, "asks to keep {}, but the runtime cannot keep it",
                      keep);
  }
  if (keep + swap > 1 + 1e-9) {
    return WrongClass(p, c, "asks for keep {} and swap {}: more than 1", keep,
                      swap);
  }
  if (p.settled && !GivenOf(p, c).all()) {
    return WrongClass(p, c, "a settled profile leaves nothing to choose");
  }
  return absl::OkStatus();
}

// Checks that every kind is listed once and every class belongs to a kind.
absl::Status CheckKinds(const RankProfile& p) {
  std::set<std::string> names;
  for (const plan::LayerKind& kind : p.kinds) {
    if (!names.insert(kind.name).second) {
      return absl::InvalidArgumentError(fmt::format(
          "rank {} has two kinds of layers '{}'", p.rank.value(), kind.name));
    }
  }
  for (const SkeletalClass& c : p.classes) {
    if (!names.contains(c.kind)) {
      return WrongClass(p, c, "its rank has no layers of the kind '{}'",
                        c.kind);
    }
  }
  return absl::OkStatus();
}

// Checks the positions of links or host limits among `count` profiles.
absl::Status CheckPositions(const auto& limits, size_t count) {
  for (const auto& limit : limits) {
    for (const size_t at : limit.profiles) {
      if (at < count) continue;
      return absl::InvalidArgumentError(
          fmt::format("'{}' names profile {} of {}", limit.name, at, count));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckNodeSwap(const SwapProblem& problem) {
  return SwapChecker(problem).Check();
}

absl::Status CheckProfiles(const std::vector<RankProfile>& profiles,
                           const NodeResources& resources) {
  std::set<std::pair<int64_t, uint64_t>> ranks;
  for (const RankProfile& p : profiles) {
    if (!ranks.emplace(p.job, p.rank.value()).second) {
      return absl::InvalidArgumentError(
          fmt::format("rank {} has two profiles", p.rank.value()));
    }
    SLUICE_RETURN_IF_ERROR(CheckKinds(p));
    for (const SkeletalClass& c : p.classes) {
      SLUICE_RETURN_IF_ERROR(CheckClass(p, c));
    }
  }
  SLUICE_RETURN_IF_ERROR(CheckPositions(resources.links, profiles.size()));
  return CheckPositions(resources.hosts, profiles.size());
}

}  // namespace sluice::planner
