#include "daemon/config.h"

#include <fcntl.h>
#include <fmt/format.h>

// Without this, toml++ 3.3 aborts at "[[[x" instead of reporting the fault.
#define TOML_ASSERT(expr) static_cast<void>(0)
#include <toml++/toml.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cmath>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>

#include "absl/strings/str_join.h"
#include "daemon/bandwidth/topology.h"
#include "daemon/core/node/types.h"
#include "proto/base/status.h"
#include "proto/base/text.h"
#include "proto/base/unique_fd.h"
#include "proto/base/whole_io.h"
#include "proto/wire.h"

namespace sluice::daemon {
namespace {

// --- values and tables -------------------------------------------------------

// Reads a value. A fault's message is the line, `key` (such as "'gpus' ", or
// empty), and what is wrong: "7: 'gpus' must be …".
using Reader =
    std::function<absl::Status(const toml::node& node, const std::string& key)>;

absl::Status Fault(const toml::node& at, const std::string& key,
                   std::string_view what) {
  return absl::InvalidArgumentError(
      fmt::format("{}: {}{}", at.source().begin.line, key, what));
}

template <typename To>  // std::string, or optional
Reader Text(To* to) {
  return [to](const toml::node& node, const std::string& key) {
    const auto text = node.value_exact<std::string>();
    if (!text) return Fault(node, key, "must be a string in quotes");
    *to = *text;
    return absl::OkStatus();
  };
}

template <typename To>  // int, or an optional int or int64_t
Reader Whole(To* to, int least, int most) {
  return [=](const toml::node& node, const std::string& key) {
    const auto number = node.value_exact<int64_t>();
    if (!number || *number < least || *number > most) {
      return Fault(
          node, key,
          fmt::format("must be a whole number from {} to {}", least, most));
    }
    *to = static_cast<int>(*number);
    return absl::OkStatus();
  };
}

Reader Number(double* to) {
  return [to](const toml::node& node, const std::string& key) {
    const auto number = node.value<double>();
    if (!number || !std::isfinite(*number) || *number < 0) {
      return Fault(node, key, "must be a number, 0 or more");
    }
    *to = *number;
    return absl::OkStatus();
  };
}

template <typename To>  // Bytes, or optional Bytes
Reader Size(To* to) {
  return [to](const toml::node& node, const std::string& key) {
    constexpr const char* kNeeded =
        "must be a size above 0 in quotes, such as \"36MiB\"";
    if (const auto number = node.value_exact<int64_t>(); number > 0) {
      return Fault(node, key,
                   fmt::format("{}, or \"{}B\" for {} bytes", kNeeded, *number,
                               *number));
    }
    const auto text = node.value_exact<std::string>();
    if (!text) return Fault(node, key, kNeeded);
    const auto size = ParseBytes(*text);
    if (!size.ok()) {
      return Fault(node, key, std::string(size.status().message()));
    }
    if (*size <= Bytes(0)) return Fault(node, key, kNeeded);
    *to = *size;
    return absl::OkStatus();
  };
}

template <typename T>
Reader Choice(T* to, std::map<std::string, T> choices) {
  return [=](const toml::node& node, const std::string& key) {
    const auto text = node.value_exact<std::string>();
    const T* const found = text ? FindOrNull(choices, *text) : nullptr;
    if (found == nullptr) {
      return Fault(
          node, key,
          "must be one of " +
              absl::StrJoin(choices, ", ", [](auto* out, const auto& each) {
                *out += '"' + each.first + '"';
              }));
    }
    *to = *found;
    return absl::OkStatus();
  };
}

Reader List(Reader each) {
  return [=](const toml::node& node, const std::string& key) -> absl::Status {
    const toml::array* list = node.as_array();
    if (list == nullptr) return Fault(node, key, "must be a list");
    for (const toml::node& item : *list) {
      SLUICE_RETURN_IF_ERROR(each(item, key));
    }
    return absl::OkStatus();
  };
}

Reader Texts(std::vector<std::string>* to) {
  return List([to](const toml::node& node, const std::string& key) {
    return Text(&to->emplace_back())(node, key);
  });
}

// Reads a value with `read`; then `fault` returns what is wrong, or "".
Reader Checked(Reader read, std::function<std::string()> fault) {
  return [=](const toml::node& node, const std::string& key) {
    absl::Status status = read(node, key);
    if (!status.ok()) return status;
    const std::string wrong = fault();
    return wrong.empty() ? status : Fault(node, key, wrong);
  };
}

struct Key {
  std::string name;
  Reader read;
  std::string alias = {};  // another name; both together are an error
};

// Returns the key `what`_bytes, with the alias `what`_memory, which resembles
// other programs' flags.
Key Memory(const std::string& what, auto* to) {
  return {what + "_bytes", Size(to), what + "_memory"};
}

// Reads a table. A key that is not in `keys` is an error, which lists `keys`.
Reader Table(std::string name, std::vector<Key> keys) {
  return [=](const toml::node& node, const std::string&) -> absl::Status {
    const toml::table* table = node.as_table();
    if (table == nullptr) return Fault(node, "", name + " must be a table");
    for (const auto& [key, value] : *table) {
      const std::string text(key.str());
      const auto known = std::ranges::find_if(keys, [&](const Key& each) {
        return text == each.name || (!text.empty() && text == each.alias);
      });
      if (known == keys.end()) {
        std::set<std::string> names;
        for (const Key& each : keys) names.insert({each.name, each.alias});
        names.erase("");
        return Fault(value, "",
                     fmt::format("unknown key '{}' in {}; known: {}", text,
                                 name, absl::StrJoin(names, ", ")));
      }
      const std::string quoted = "'" + text + "' ";
      if (text == known->alias && table->contains(known->name)) {
        return Fault(value, quoted,
                     fmt::format("is {} by another name: give one of them",
                                 known->name));
      }
      SLUICE_RETURN_IF_ERROR(known->read(value, quoted));
    }
    return absl::OkStatus();
  };
}

// --- the file ----------------------------------------------------------------

std::map<std::string, Config::DriverChoice> Drivers() {
  return {{"auto", Config::DriverChoice::kAuto},
          {"sim", Config::DriverChoice::kSim},
          {"cuda", Config::DriverChoice::kCuda}};
}

Reader Links(std::vector<LinkSpeed>* to, bool have_parents) {
  return List([=](const toml::node& node, const std::string&) -> absl::Status {
    LinkSpeed link;
    std::vector<Key> keys = {
        {"name", Text(&link.name)},
        {"h2d_bytes_per_s", Number(&link.h2d_bytes_per_second)},
        {"d2h_bytes_per_s", Number(&link.d2h_bytes_per_second)},
        {"both_bytes_per_s", Number(&link.both_bytes_per_second)}};
    if (have_parents) keys.push_back({"parent", Text(&link.parent)});
    SLUICE_RETURN_IF_ERROR(Table("a link", keys)(node, ""));
    if (link.name.empty()) return Fault(node, "", "a link needs a name");
    to->push_back(link);
    return absl::OkStatus();
  });
}

Reader UserWeights(std::map<uint32_t, double>* to) {
  return List([=](const toml::node& node, const std::string&) -> absl::Status {
    std::optional<int> uid;
    double weight = 1;
    constexpr double kLeast = NodeConfig::kLeastWeight,
                     kMost = NodeConfig::kMostWeight;
    const Reader table = Table(
        "[[bandwidth.user]]",
        {{"uid", Whole(&uid, 0, INT_MAX)},
         {"weight", Checked(Number(&weight), [&] {
            return weight >= kLeast && weight <= kMost
                       ? ""
                       : fmt::format("must be {:g} to {:g}", kLeast, kMost);
          })}});
    SLUICE_RETURN_IF_ERROR(table(node, ""));
    if (!uid) return Fault(node, "", "a user's weight needs a uid");
    if (to->emplace(*uid, weight).second) return absl::OkStatus();
    return Fault(node, "", fmt::format("uid {} stands here twice", *uid));
  });
}

Reader JobBudgets(std::map<std::string, Limits>* to) {
  return List([=](const toml::node& node, const std::string&) -> absl::Status {
    std::string name;
    Limits limits;
    const Reader table =
        Table("[[budgets.job]]", {{"name", Text(&name)},
                                  Memory("gpu", &limits.gpu),
                                  Memory("host", &limits.host)});
    SLUICE_RETURN_IF_ERROR(table(node, ""));
    if (const absl::Status named = wire::CheckJob(name); !named.ok()) {
      return Fault(node, "", std::string(named.message()));
    }
    if (to->emplace(name, limits).second) return absl::OkStatus();
    return Fault(node, "", fmt::format("job {} stands here twice", name));
  });
}

template <typename... Args>
absl::Status Bad(fmt::format_string<Args...> what, Args&&... args) {
  return absl::InvalidArgumentError(
      " " + fmt::format(what, std::forward<Args>(args)...));
}

// Checks the rules of [sim] that involve several keys.
absl::Status CheckLinks(const SimSettings& sim) {
  for (const LinkSpeed& link : sim.links) {
    if (link.parent.empty()) continue;
    const std::vector<size_t> path = LinkPath(sim.links, link.name);
    if (path.size() < 2 || !sim.links[path.back()].parent.empty()) {
      return Bad(
          "link {} has the parent '{}', which is not in links, or its parents "
          "form a cycle",
          link.name, link.parent);
    }
    if (sim.gpu_links.empty()) {
      return Bad(
          "link {} has a parent: say by gpu_links which link each GPU "
          "is on",
          link.name);
    }
  }
  if (const auto made = bandwidth::Topology::Make(sim.links); !made.ok()) {
    return Bad("{}", std::string(made.status().message()));
  }
  for (const std::string& name : sim.gpu_links) {
    if (std::ranges::count(sim.links, name, &LinkSpeed::name) == 0) {
      return Bad("gpu_links names '{}', which is not in links", name);
    }
  }
  if (!sim.gpu_links.empty() && std::ssize(sim.gpu_links) != sim.gpus) {
    return Bad("gpu_links has {} entries for {} GPUs: name one per GPU",
               sim.gpu_links.size(), sim.gpus);
  }
  return absl::OkStatus();
}

absl::StatusOr<Config> Read(const toml::table& file) {
  constexpr int kMost = 1'000'000, kMonth = 31 * 86400;
  constexpr int kMostDeaths = 16;  // the capacity of DeathRecord
  Config to;
  std::vector<std::string> cgroups;
  auto longest_wait_s = static_cast<int>(absl::ToInt64Seconds(to.longest_wait));
  double time_limit_s = absl::ToDoubleSeconds(to.plan_time_limit);
  const auto cut = [&] {
    auto made = CgroupCut::Make(cgroups);
    if (made.ok()) to.cgroups = *std::move(made);
    return std::string(made.status().message());
  };
  const auto is_path = [&] {
    return to.policy_folder->empty() || to.policy_folder->starts_with('/')
               ? ""
               : "must be an absolute path, or empty to keep nothing";
  };
  const auto above_0 = [&] {
    return time_limit_s > 0 ? "" : "must be above 0";
  };
  const Reader top = Table(
      "the file",
      {{"device",
        Table("[device]",
              {{"driver", Choice(&to.driver, Drivers())},
               {"host_memory",
                Choice(&to.host_memory,
                       {{"auto", device::HostMemoryChoice::kAuto},
                        {"memfd", device::HostMemoryChoice::kMemfd}})}})},
       {"sim", Table("[sim]", {{"gpus", Whole(&to.sim.gpus, 1, 64)},
                               {"gpu_memory", Size(&to.sim.gpu_memory)},
                               {"host_memory", Size(&to.sim.host_memory)},
                               {"numa_nodes", Whole(&to.sim.numa_nodes, 1, 16)},
                               {"granularity", Size(&to.sim.granularity)},
                               {"links", Links(&to.sim.links, true)},
                               {"gpu_links", Texts(&to.sim.gpu_links)}})},
       {"cuda", Table("[cuda]", {{"links", Links(&to.cuda.links, false)}})},
       {"pools", Table("[pools]", {Memory("gpu", &to.gpu_pool),
                                   Memory("host", &to.host_pool),
                                   Memory("host_ready", &to.host_ready),
                                   Memory("extent", &to.extent)})},
       {"bandwidth",
        Table("[bandwidth]", {{"user", UserWeights(&to.user_weights)}})},
       {"budgets",
        Table("[budgets]", {Memory("principal_gpu", &to.principal_limits.gpu),
                            Memory("principal_host", &to.principal_limits.host),
                            Memory("job_gpu", &to.job_limits.gpu),
                            Memory("job_host", &to.job_limits.host),
                            {"job", JobBudgets(&to.named_job_limits)}})},
       {"gpus", Table("[gpus]", {{"access", Choice(&to.gpus_are_shown,
                                                   {{"any", false},
                                                    {"device", true}})}})},
       {"quota", Table("[quota]",
                       {{"sessions", Whole(&to.quota.sessions, 1, kMost)},
                        {"rank_sessions", Whole(&to.quota.ranks, 1, kMost)},
                        {"extents", Whole(&to.quota.extents, 1, kMost)},
                        {"waiting_leases", Whole(&to.quota.waiting, 1, kMost)},
                        {"longest_wait_s", Whole(&longest_wait_s, 0, kMonth)},
                        {"cgroups", Checked(Texts(&cgroups), cut)}})},
       {"policy", Table("[policy]", {{"folder", Checked(Text(&to.policy_folder),
                                                        is_path)}})},
       {"http",
        Table("[http]", {{"listen", Text(&to.http_listen)},
                         {"socket_group", Text(&to.http_socket_group)}})},
       {"worker", Table("[worker]", {{"time_limit_s",
                                      Checked(Number(&time_limit_s), above_0)},
                                     {"memory", Size(&to.worker_memory)},
                                     {"user", Text(&to.worker_user)}})},
       {"log",
        Table("[log]", {{"level", Choice(&to.log_level,
                                         {{"error", LogLevel::kError},
                                          {"warning", LogLevel::kWarning},
                                          {"info", LogLevel::kInfo},
                                          {"debug", LogLevel::kDebug}})}})},
       {"restart",
        Table("[restart]",
              {{"freeze_after", Whole(&to.freeze_after, 0, kMostDeaths)}})}});
  SLUICE_RETURN_IF_ERROR(top(file, ""));
  to.longest_wait = absl::Seconds(longest_wait_s);
  to.plan_time_limit = absl::Seconds(time_limit_s);
  SLUICE_RETURN_IF_ERROR(CheckLinks(to.sim));
  return to;
}

}  // namespace

absl::StatusOr<Config::DriverChoice> ParseDriver(const std::string& text) {
  const auto drivers = Drivers();
  if (const auto* found = FindOrNull(drivers, text)) return *found;
  return absl::InvalidArgumentError(
      fmt::format("--driver '{}': must be auto, cuda or sim", text));
}

absl::StatusOr<Config> ParseConfig(std::string_view text,
                                   const std::string& path) {
  std::string fault;
  try {
    auto config = Read(toml::parse(text));
    if (config.ok()) return config;
    fault = std::string(config.status().message());
  } catch (const toml::parse_error& error) {
    fault = fmt::format("{}: {}", error.source().begin.line,
                        std::string(error.description()));
  }
  return absl::InvalidArgumentError(PrintableLine(path + ":" + fault));
}

absl::StatusOr<Config> ReadConfig(const std::string& path) {
  const std::string what = fmt::format("read the configuration {}", path);
  std::error_code error;
  const auto kind = std::filesystem::status(path, error).type();
  // Opening a FIFO would block.
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
