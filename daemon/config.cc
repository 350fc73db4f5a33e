#include "daemon/config.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <filesystem>
#include <memory>
#include <utility>

#include "daemon/bandwidth/topology.h"
#include "daemon/core/node/types.h"
#include "daemon/table_reader.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

std::map<std::string, Config::DriverChoice> Drivers() {
  return {{"auto", Config::DriverChoice::kAuto},
          {"sim", Config::DriverChoice::kSim},
          {"cuda", Config::DriverChoice::kCuda}};
}

class ConfigReader {
 public:
  explicit ConfigReader(std::string path) : path_(std::move(path)) {}

  absl::StatusOr<Config> Read(const toml::table& file) {
    TableReader top = Table("the file");
    top.Key("device", [this](const auto& n) { return Device(n); })
        .Key("sim", [this](const auto& n) { return Sim(n); })
        .Key("cuda", [this](const auto& n) { return Cuda(n); })
        .Key("pools", [this](const auto& n) { return Pools(n); })
        .Key("bandwidth", [this](const auto& n) { return Bandwidth(n); })
        .Key("budgets", [this](const auto& n) { return Budgets(n); })
        .Key("gpus", [this](const auto& n) { return Gpus(n); })
        .Key("quota", [this](const auto& n) { return Quota(n); })
        .Key("policy", [this](const auto& n) { return PolicyTable(n); })
        .Key("http", [this](const auto& n) { return Http(n); })
        .Key("worker", [this](const auto& n) { return Worker(n); })
        .Key("log", [this](const auto& n) { return LogTable(n); })
        .Key("restart", [this](const auto& n) { return Restart(n); });
    SLUICE_RETURN_IF_ERROR(top.Read(file));
    SLUICE_RETURN_IF_ERROR(CheckLinks());
    return config_;
  }

 private:
  TableReader Table(const std::string& name) const {
    return TableReader(path_, name);
  }
  // Reads `what`_memory (as other programs' flags are called) or `what`_bytes;
  // both together are an error.
  static void Memory(TableReader& table, const std::string& what, auto* to) {
    const auto given = std::make_shared<bool>(false);
    for (const char* ending : {"_bytes", "_memory"}) {
      table.Key(what + ending, [=, &table](const toml::node& node) {
        if (std::exchange(*given, true)) {  // keys come sorted
          return table.Error(
              node, fmt::format("is {}_bytes by another name: give one of them",
                                what));
        }
        return table.Size(to)(node);
      });
    }
  }

  absl::Status Device(const toml::node& node) {
    TableReader table = Table("[device]");
    table.Key("driver",
              table.Choice<Config::DriverChoice>(&config_.driver, Drivers()));
    table.Key("host_memory",
              table.Choice<device::HostMemoryChoice>(
                  &config_.host_memory,
                  {{"auto", device::HostMemoryChoice::kAuto},
                   {"memfd", device::HostMemoryChoice::kMemfd}}));
    return table.Read(node);
  }

  absl::Status Sim(const toml::node& node) {
    SimSettings& sim = config_.sim;
    TableReader table = Table("[sim]");
    table.Key("gpus", table.Whole(&sim.gpus, 1, 64));
    table.Key("gpu_memory", table.Size(&sim.gpu_memory));
    table.Key("host_memory", table.Size(&sim.host_memory));
    table.Key("numa_nodes", table.Whole(&sim.numa_nodes, 1, 16));
    table.Key("granularity", table.Size(&sim.granularity));
    table.Key("links", table.List([&](const toml::node& n) {
      return Link(n, /*has_parent=*/true, sim.links);
    }));
    table.Key("gpu_links", table.Texts(&sim.gpu_links));
    return table.Read(node);
  }

  absl::Status Cuda(const toml::node& node) {
    TableReader table = Table("[cuda]");
    table.Key("links", table.List([&](const toml::node& n) {
      return Link(n, /*has_parent=*/false, config_.cuda.links);
    }));
    return table.Read(node);
  }

  absl::Status Link(const toml::node& node, bool has_parent,
                    std::vector<LinkSpeed>& links) {
    LinkSpeed link;
    TableReader table = Table("a link");
    table.Key("name", table.Text(&link.name));
    table.Key("h2d_bytes_per_s", table.Number(&link.h2d_bytes_per_second));
    table.Key("d2h_bytes_per_s", table.Number(&link.d2h_bytes_per_second));
    table.Key("both_bytes_per_s", table.Number(&link.both_bytes_per_second));
    if (has_parent) table.Key("parent", table.Text(&link.parent));
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    if (link.name.empty()) return table.Error(node, "a link needs a name");
    links.push_back(link);
    return absl::OkStatus();
  }

  absl::Status Pools(const toml::node& node) {
    TableReader table = Table("[pools]");
    Memory(table, "gpu", &config_.gpu_pool);
    Memory(table, "host", &config_.host_pool);
    Memory(table, "host_ready", &config_.host_ready);
    Memory(table, "extent", &config_.extent);
    return table.Read(node);
  }

  absl::Status Bandwidth(const toml::node& node) {
    TableReader table = Table("[bandwidth]");
    table.Key("user", table.List([this](const toml::node& n) {
      return UserWeight(n);
    }));
    return table.Read(node);
  }

  absl::Status UserWeight(const toml::node& node) {
    std::optional<int> uid;
    double weight = 1;
    TableReader table = Table("[[bandwidth.user]]");
    table.Key("uid", table.Whole(&uid, 0, INT_MAX));
    table.Key("weight", [&](const toml::node& value) -> absl::Status {
      SLUICE_RETURN_IF_ERROR(table.Number(&weight)(value));
      if (weight >= NodeConfig::kLeastWeight &&
          weight <= NodeConfig::kMostWeight) {
        return absl::OkStatus();
      }
      return table.Error(
          value, fmt::format("must be {:g} to {:g}", NodeConfig::kLeastWeight,
                             NodeConfig::kMostWeight));
    });
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    if (!uid) return table.Error(node, "a user's weight needs a uid");
    if (!config_.user_weights.emplace(*uid, weight).second) {
      return table.Error(node, fmt::format("uid {} stands here twice", *uid));
    }
    return absl::OkStatus();
  }

  absl::Status Budgets(const toml::node& node) {
    TableReader table = Table("[budgets]");
    Memory(table, "principal_gpu", &config_.principal_limits.gpu);
    Memory(table, "principal_host", &config_.principal_limits.host);
    Memory(table, "job_gpu", &config_.job_limits.gpu);
    Memory(table, "job_host", &config_.job_limits.host);
    table.Key("job",
              table.List([this](const toml::node& n) { return JobBudget(n); }));
    return table.Read(node);
  }

  absl::Status JobBudget(const toml::node& node) {
    std::string name;
    Limits limits;
    TableReader table = Table("[[budgets.job]]");
    table.Key("name", table.Text(&name));
    Memory(table, "gpu", &limits.gpu);
    Memory(table, "host", &limits.host);
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    if (const absl::Status named = wire::CheckJob(name); !named.ok()) {
      return table.Error(node, std::string(named.message()));
    }
    if (!config_.named_job_limits.emplace(name, limits).second) {
      return table.Error(node, fmt::format("job {} stands here twice", name));
    }
    return absl::OkStatus();
  }

  absl::Status Gpus(const toml::node& node) {
    std::string access = "device";
    TableReader table = Table("[gpus]");
    table.Key("access", [&](const toml::node& value) -> absl::Status {
      SLUICE_RETURN_IF_ERROR(table.Text(&access)(value));
      if (access == "device" || access == "any") return absl::OkStatus();
      return table.Error(value, "must be \"device\" or \"any\"");
    });
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    config_.gpus_are_shown = access == "device";
    return absl::OkStatus();
  }

  absl::Status Quota(const toml::node& node) {
    std::vector<std::string> prefixes;
    TableReader table = Table("[quota]");
    constexpr int kMost = 1'000'000;
    table.Key("sessions", table.Whole(&config_.quota.sessions, 1, kMost));
    table.Key("rank_sessions", table.Whole(&config_.quota.ranks, 1, kMost));
    table.Key("extents", table.Whole(&config_.quota.extents, 1, kMost));
    table.Key("waiting_leases", table.Whole(&config_.quota.waiting, 1, kMost));
    int longest_wait_s =
        static_cast<int>(absl::ToInt64Seconds(config_.longest_wait));
    constexpr int kMonth = 31 * 86400;
    table.Key("longest_wait_s", table.Whole(&longest_wait_s, 0, kMonth));
    table.Key("cgroups", [&](const toml::node& list) -> absl::Status {
      SLUICE_RETURN_IF_ERROR(table.Texts(&prefixes)(list));
      auto cut = CgroupCut::Make(prefixes);
      if (!cut.ok()) {
        return table.Error(list, std::string(cut.status().message()));
      }
      config_.cgroups = *std::move(cut);
      return absl::OkStatus();
    });
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    config_.longest_wait = absl::Seconds(longest_wait_s);
    return absl::OkStatus();
  }

  absl::Status PolicyTable(const toml::node& node) {
    TableReader table = Table("[policy]");
    table.Key("folder", [&](const toml::node& value) -> absl::Status {
      std::string& folder = config_.policy_folder.emplace();
      SLUICE_RETURN_IF_ERROR(table.Text(&folder)(value));
      if (folder.empty() || folder[0] == '/') return absl::OkStatus();
      return table.Error(value, "must be a path from / on, or empty: nowhere");
    });
    return table.Read(node);
  }

  absl::Status Http(const toml::node& node) {
    TableReader table = Table("[http]");
    table.Key("listen", table.Text(&config_.http_listen));
    table.Key("socket_group", table.Text(&config_.http_socket_group));
    return table.Read(node);
  }

  absl::Status Worker(const toml::node& node) {
    double seconds = absl::ToDoubleSeconds(config_.plan_time_limit);
    TableReader table = Table("[worker]");
    table.Key("time_limit_s", [&](const toml::node& value) -> absl::Status {
      SLUICE_RETURN_IF_ERROR(table.Number(&seconds)(value));
      if (seconds <= 0) return table.Error(value, "must be above 0");
      return absl::OkStatus();
    });
    table.Key("memory", table.Size(&config_.worker_memory));
    table.Key("user", table.Text(&config_.worker_user));
    SLUICE_RETURN_IF_ERROR(table.Read(node));
    config_.plan_time_limit = absl::Seconds(seconds);
    return absl::OkStatus();
  }

  absl::Status Restart(const toml::node& node) {
    constexpr int kMost = 16;  // DeathRecord has no more
    TableReader table = Table("[restart]");
    table.Key("freeze_after", table.Whole(&config_.freeze_after, 0, kMost));
    return table.Read(node);
  }

  absl::Status LogTable(const toml::node& node) {
    TableReader table = Table("[log]");
    table.Key("level", table.Choice<LogLevel>(&config_.log_level,
                                              {{"error", LogLevel::kError},
                                               {"warning", LogLevel::kWarning},
                                               {"info", LogLevel::kInfo},
                                               {"debug", LogLevel::kDebug}}));
    return table.Read(node);
  }

  template <typename... Args>
  absl::Status Bad(fmt::format_string<Args...> what, Args&&... args) const {
    return absl::InvalidArgumentError(
        path_ + ": " + fmt::format(what, std::forward<Args>(args)...));
  }

  // Checks that involve several keys.
  absl::Status CheckParents() const {
    const SimSettings& sim = config_.sim;
    for (const LinkSpeed& link : sim.links) {
      if (link.parent.empty()) continue;
      const std::vector<size_t> path = LinkPath(sim.links, link.name);
      if (path.size() < 2 || !sim.links[path.back()].parent.empty()) {
        return Bad(
            "link {} hangs on '{}', which is not in links, or goes "
            "round in a circle",
            link.name, link.parent);
      }
      if (sim.gpu_links.empty()) {
        return Bad(
            "link {} has a parent: say by gpu_links which link each GPU "
            "is on",
            link.name);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckLinks() const {
    SLUICE_RETURN_IF_ERROR(CheckParents());
    if (const auto made = bandwidth::Topology::Make(config_.sim.links);
        !made.ok()) {
      return Bad("{}", std::string(made.status().message()));
    }
    const SimSettings& sim = config_.sim;
    for (const std::string& name : sim.gpu_links) {
      if (std::ranges::find(sim.links, name, &LinkSpeed::name) ==
          sim.links.end()) {
        return Bad("gpu_links names '{}', which is not in links", name);
      }
    }
    if (!sim.gpu_links.empty() && std::ssize(sim.gpu_links) != sim.gpus) {
      return Bad("gpu_links has {} entries for {} GPUs: name one per GPU",
                 sim.gpu_links.size(), sim.gpus);
    }
    return absl::OkStatus();
  }

  const std::string path_;
  Config config_;
};

absl::Status Fault(std::string what) {
  return absl::InvalidArgumentError(PrintableLine(std::move(what)));
}

}  // namespace

absl::StatusOr<Config::DriverChoice> ParseDriver(const std::string& text) {
  const auto drivers = Drivers();
  const auto found = drivers.find(text);
  if (found == drivers.end()) {
    return absl::InvalidArgumentError(
        fmt::format("--driver '{}': must be auto, cuda or sim", text));
  }
  return found->second;
}

absl::StatusOr<Config> ParseConfig(std::string_view text,
                                   const std::string& path) {
  try {
    auto config = ConfigReader(path).Read(toml::parse(text));
    if (config.ok()) return config;
    return Fault(std::string(config.status().message()));
  } catch (const toml::parse_error& error) {
    return Fault(fmt::format("{}:{}: {}", path, error.source().begin.line,
                             std::string(error.description())));
  }
}

absl::StatusOr<Config> ReadConfig(const std::string& path) {
  const std::string what = fmt::format("read the configuration {}", path);
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  // A folder would read as an empty file.
  if (kind != std::filesystem::file_type::regular &&
      kind != std::filesystem::file_type::not_found) {
    return absl::InvalidArgumentError(
        what + ": it is no regular file; give --config a TOML file");
  }
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file) return ErrnoStatus(errno, what);
  SLUICE_ASSIGN_OR_RETURN(
      const std::string text,
      ReadAll(file.get(), SIZE_MAX, "the configuration " + path));
  return ParseConfig(text, path);
}

}  // namespace sluice::daemon
