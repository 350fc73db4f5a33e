// Validates problems (node_swap.h) and the requests in profiles
// (rank_fractions.h).
#include <fmt/format.h>

#include <cmath>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "planner/swap/node_swap.h"
#include "planner/swap/rank_fractions.h"
#include "proto/base/status.h"

namespace sluice::planner {
namespace {

using SwapProblem = NodeSwapProblem;
using plan::kOneKind;
using plan::NodeResources;
using plan::RankProfile;
using plan::SkeletalClass;

// Far above any machine's values, far below where doubles lose whole units.
constexpr double kMost = 1e18;

template <typename... Args>
absl::Status WrongInput(const std::string& path,
                        fmt::format_string<Args...> what, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(
      "{}: {}", path, fmt::format(what, std::forward<Args>(args)...)));
}

absl::Status NotNegative(const std::string& path, double value) {
  if (std::isnan(value)) return WrongInput(path, "is not a number");
  if (value < 0) return WrongInput(path, "{} is negative", value);
  if (value > kMost) return WrongInput(path, "{} is above {:g}", value, kMost);
  return absl::OkStatus();
}

absl::Status Positive(const std::string& path, double value) {
  SLUICE_RETURN_IF_ERROR(NotNegative(path, value));
  if (value == 0) return WrongInput(path, "is 0: it must be above");
  return absl::OkStatus();
}

// Checks that `name` is not empty and differs from the names before it.
absl::Status Unique(const std::string& path, const std::string& name,
                    std::set<std::string>* seen) {
  if (name.empty()) return WrongInput(path, "is empty");
  if (!seen->insert(name).second) {
    return WrongInput(path, "'{}' occurs twice", name);
  }
  return absl::OkStatus();
}

absl::Status CheckLinks(const SwapProblem& problem,
                        std::set<std::string>* names) {
  for (size_t i = 0; i < problem.links.size(); ++i) {
    const SwapProblem::Link& link = problem.links[i];
    const std::string path = fmt::format("links[{}].", i);
    SLUICE_RETURN_IF_ERROR(Unique(path + "name", link.name, names));
    SLUICE_RETURN_IF_ERROR(
        Positive(path + "h2d_bytes_per_s", link.h2d_bytes_per_s));
    SLUICE_RETURN_IF_ERROR(
        Positive(path + "d2h_bytes_per_s", link.d2h_bytes_per_s));
    if (link.total_bytes_per_s) {
      SLUICE_RETURN_IF_ERROR(
          Positive(path + "total_bytes_per_s", *link.total_bytes_per_s));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckNuma(const SwapProblem& problem, std::set<int64_t>* ids) {
  for (size_t i = 0; i < problem.numa.size(); ++i) {
    const SwapProblem::Numa& numa = problem.numa[i];
    const std::string path = fmt::format("numa[{}].", i);
    if (numa.id < 0) return WrongInput(path + "id", "{} is negative", numa.id);
    if (!ids->insert(numa.id).second) {
      return WrongInput(path + "id", "{} occurs twice", numa.id);
    }
    SLUICE_RETURN_IF_ERROR(
        NotNegative(path + "host_budget_bytes", numa.host_budget_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckHosts(const SwapProblem& problem,
                        std::set<std::string>* names) {
  for (size_t i = 0; i < problem.hosts.size(); ++i) {
    const std::string path = fmt::format("hosts[{}].", i);
    SLUICE_RETURN_IF_ERROR(Unique(path + "name", problem.hosts[i].name, names));
    SLUICE_RETURN_IF_ERROR(
        NotNegative(path + "budget_bytes", problem.hosts[i].budget_bytes));
  }
  return absl::OkStatus();
}

absl::Status CheckGiven(const std::string& path,
                        const SwapProblem::Tensor& tensor) {
  const std::pair<const char*, std::optional<double>> given[] = {
      {"keep", tensor.given.keep}, {"swap", tensor.given.swap}};
  for (const auto& [key, value] : given) {
    if (value && !(*value >= 0 && *value <= 1)) {
      return WrongInput(path + key, "{} is not between 0 and 1", *value);
    }
  }
  const double keep = tensor.given.keep.value_or(0);
  if (keep > 0 && !tensor.can_keep) {
    return WrongInput(path + "keep", "{} of a tensor that cannot be kept",
                      keep);
  }
  const double sum = keep + tensor.given.swap.value_or(0);
  if (sum > 1 + 1e-9) {
    return WrongInput(path + "swap", "with keep it is {}: more than 1", sum);
  }
  const bool keeps = tensor.can_keep && !tensor.given.keep;
  if (tensor.given.swap && !keeps && !tensor.recompute_s && sum < 1 - 1e-9) {
    return WrongInput(path + "swap",
                      "with keep it is {}: less than 1, and the rest cannot be "
                      "recomputed",
                      sum);
  }
  return absl::OkStatus();
}

absl::Status CheckTensor(const std::string& path,
                         const SwapProblem::Tensor& tensor) {
  SLUICE_RETURN_IF_ERROR(NotNegative(path + "bytes", tensor.bytes));
  if (tensor.recompute_s) {
    SLUICE_RETURN_IF_ERROR(
        NotNegative(path + "recompute_s", *tensor.recompute_s));
  } else if (tensor.must == SwapProblem::Must::kRecompute) {
    return WrongInput(
        path + "must",
        "'recompute' of a tensor without recompute_s, which cannot "
        "be recomputed");
  }
  return CheckGiven(path, tensor);
}

// Returns whether the same choices are open for both tensors.
bool SameChoice(const SwapProblem::Tensor& a, const SwapProblem::Tensor& b) {
  return a.must == b.must && a.given == b.given && a.can_keep == b.can_keep &&
         a.recompute_s.has_value() == b.recompute_s.has_value();
}

absl::Status CheckPlaces(const std::string& path, const SwapProblem::Rank& rank,
                         const std::set<std::string>& links,
                         const std::set<int64_t>& numa,
                         const std::set<std::string>& hosts) {
  if (!numa.contains(rank.numa)) {
    return WrongInput(path + "numa", "there is no NUMA node {}", rank.numa);
  }
  const auto check = [&path](const std::vector<std::string>& own,
                             const std::set<std::string>& all, const char* list,
                             const char* what) -> absl::Status {
    std::set<std::string> seen;
    for (size_t i = 0; i < own.size(); ++i) {
      const std::string at = fmt::format("{}{}[{}]", path, list, i);
      SLUICE_RETURN_IF_ERROR(Unique(at, own[i], &seen));
      if (!all.contains(own[i])) {
        return WrongInput(at, "there is no {} '{}'", what, own[i]);
      }
    }
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(check(rank.links, links, "links", "link"));
  return check(rank.hosts, hosts, "hosts", "host limit");
}

absl::Status CheckLayers(const std::string& path,
                         const SwapProblem::Kind& kind) {
  if (kind.layers < 1)
    return WrongInput(path + "layers", "{} is below 1", kind.layers);
  if (kind.layers > 1'000'000) {
    return WrongInput(path + "layers", "{} is above 1000000", kind.layers);
  }
  if (kind.resident_layers < 0 || kind.resident_layers > kind.layers) {
    return WrongInput(path + "resident_layers",
                      "{} is not between 0 and layers, {}",
                      kind.resident_layers, kind.layers);
  }
  SLUICE_RETURN_IF_ERROR(NotNegative(path + "forward_d2h_fixed_bytes",
                                     kind.forward_d2h_fixed_bytes));
  SLUICE_RETURN_IF_ERROR(NotNegative(path + "forward_h2d_fixed_bytes",
                                     kind.forward_h2d_fixed_bytes));
  SLUICE_RETURN_IF_ERROR(NotNegative(path + "backward_d2h_fixed_bytes",
                                     kind.backward_d2h_fixed_bytes));
  return NotNegative(path + "backward_h2d_fixed_bytes",
                     kind.backward_h2d_fixed_bytes);
}

// A backward window may be 0 only if backward copies nothing, as in frozen
// layers.
absl::Status CheckWindows(const std::string& path,
                          const SwapProblem::Rank& rank, size_t k) {
  const SwapProblem::Kind& kind = rank.kinds[k];
  SLUICE_RETURN_IF_ERROR(
      Positive(path + "forward_layer_s", kind.forward_layer_s));
  double copied = kind.backward_d2h_fixed_bytes + kind.backward_h2d_fixed_bytes;
  for (const SwapProblem::Tensor& tensor : rank.tensors) {
    if (tensor.kind == k && !tensor.traffic_in_fixed) copied += tensor.bytes;
  }
  return copied > 0
             ? Positive(path + "backward_layer_s", kind.backward_layer_s)
             : NotNegative(path + "backward_layer_s", kind.backward_layer_s);
}

// Returns the path of kind k's fields. If the kinds have no names, the fields
// are the rank's own.
std::string KindPath(const std::string& path, const SwapProblem::Rank& rank,
                     size_t k) {
  const bool one = rank.kinds.size() == 1 && rank.kinds[0].name == kOneKind;
  return one ? path : fmt::format("{}kinds[{}].", path, k);
}

absl::Status CheckAmounts(const std::string& path,
                          const SwapProblem::Rank& rank) {
  if (rank.kinds.empty()) return WrongInput(path + "kinds", "there is none");
  std::set<std::string> names;
  for (size_t k = 0; k < rank.kinds.size(); ++k) {
    const std::string at = KindPath(path, rank, k);
    SLUICE_RETURN_IF_ERROR(Unique(at + "name", rank.kinds[k].name, &names));
    SLUICE_RETURN_IF_ERROR(CheckLayers(at, rank.kinds[k]));
  }
  SLUICE_RETURN_IF_ERROR(
      NotNegative(path + "gpu_budget_bytes", rank.gpu_budget_bytes));
  return NotNegative(path + "host_fixed_bytes", rank.host_fixed_bytes);
}

absl::Status CheckTensors(const std::string& path,
                          const SwapProblem::Rank& rank) {
  std::set<std::pair<size_t, std::string>> names;
  for (size_t t = 0; t < rank.tensors.size(); ++t) {
    const SwapProblem::Tensor& tensor = rank.tensors[t];
    const std::string at = fmt::format("{}tensors[{}].", path, t);
    if (tensor.kind >= rank.kinds.size()) {
      return WrongInput(at + "kind", "there is no kind {} of {}", tensor.kind,
                        rank.kinds.size());
    }
    if (tensor.name.empty()) return WrongInput(at + "name", "is empty");
    if (!names.emplace(tensor.kind, tensor.name).second) {
      return WrongInput(at + "name", "'{}' occurs twice", tensor.name);
    }
    SLUICE_RETURN_IF_ERROR(CheckTensor(at, tensor));
  }
  for (size_t k = 0; k < rank.kinds.size(); ++k) {
    SLUICE_RETURN_IF_ERROR(CheckWindows(KindPath(path, rank, k), rank, k));
  }
  return absl::OkStatus();
}

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
    return WrongClass(p, c,
                      "must be swapped whole, nothing else may be asked for");
  }
  if (keep > 0 && !c.can_keep) {
    return WrongClass(p, c, "asks to keep {}, which the runtime cannot", keep);
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

// Every kind is listed once and every class belongs to one of them.
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
  std::set<std::string> links, hosts, ranks;
  std::set<int64_t> numa;
  std::map<std::string, const SwapProblem::Tensor*> shared;
  SLUICE_RETURN_IF_ERROR(CheckLinks(problem, &links));
  SLUICE_RETURN_IF_ERROR(CheckNuma(problem, &numa));
  SLUICE_RETURN_IF_ERROR(CheckHosts(problem, &hosts));
  if (problem.ranks.empty()) return WrongInput("ranks", "there is none");
  for (size_t i = 0; i < problem.ranks.size(); ++i) {
    const SwapProblem::Rank& rank = problem.ranks[i];
    const std::string path = fmt::format("ranks[{}].", i);
    SLUICE_RETURN_IF_ERROR(Unique(path + "name", rank.name, &ranks));
    SLUICE_RETURN_IF_ERROR(CheckPlaces(path, rank, links, numa, hosts));
    SLUICE_RETURN_IF_ERROR(CheckAmounts(path, rank));
    SLUICE_RETURN_IF_ERROR(CheckTensors(path, rank));
    for (size_t t = 0; t < rank.tensors.size(); ++t) {
      const SwapProblem::Tensor& tensor = rank.tensors[t];
      if (tensor.shared.empty()) continue;
      const auto [first, added] = shared.emplace(tensor.shared, &tensor);
      if (!added && !SameChoice(*first->second, tensor)) {
        return WrongInput(
            fmt::format("{}tensors[{}].shared", path, t),
            "'{}' is shared, but not every rank may choose the same",
            tensor.shared);
      }
    }
  }
  return absl::OkStatus();
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
