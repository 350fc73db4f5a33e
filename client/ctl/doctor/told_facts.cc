#include "client/ctl/doctor/told_facts.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <sys/sysmacros.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <sstream>

#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace sluice::ctl {
namespace {

using nlohmann::json;

std::vector<std::string> Lines(const std::string& text) {
  return absl::StrSplit(text, '\n', absl::SkipEmpty());
}

std::vector<std::string> SplitWords(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) words.push_back(word);
  return words;
}

std::optional<int64_t> ParsedNumber(const std::string& text) {
  int64_t number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (text.empty() || read.ec != std::errc() || read.ptr != end) {
    return std::nullopt;
  }
  return number;
}

void ReadLinkFacts(const json& node, DaemonFacts& facts) {
  for (const json& link : node.value("links", json::array())) {
    const json from = link.value("speed_from", json());
    ++facts.links;
    facts.links_configured += from == "configuration" ? 1 : 0;
    facts.links_measured += from == "measured" ? 1 : 0;
  }
  const json measured = node.value("measured_links", json());
  facts.measured_waits =
      !measured.is_null() && measured.at("waits").get<bool>();
}

// Returns the value of `flag` if words[i] is that flag: the text after "=", or
// the next word, to which `i` then advances.
std::optional<std::string> ValueOf(const std::string& flag,
                                   const std::vector<std::string>& words,
                                   size_t& i) {
  if (words[i].starts_with(flag + "=")) {
    return words[i].substr(flag.size() + 1);
  }
  if (words[i] != flag || i + 1 == words.size()) return std::nullopt;
  return words[++i];
}

}  // namespace

std::optional<int64_t> ToldLimit(const std::string& limits,
                                 const std::string& name, LimitKind kind) {
  for (const std::string& line : Lines(limits)) {
    if (!line.starts_with(name)) continue;
    const auto columns = SplitWords(line.substr(name.size()));
    const size_t column = kind == LimitKind::kSoft ? 0 : 1;
    if (columns.size() > column) return ParsedNumber(columns[column]);
  }
  return std::nullopt;
}

std::string ToldValue(const std::string& text, const std::string& key,
                      char separator) {
  for (const std::string& line : Lines(text)) {
    if (!line.starts_with(key + separator)) continue;
    const auto value = absl::StripAsciiWhitespace(
        absl::string_view(line).substr(key.size() + 1));
    return {value.data(), value.size()};
  }
  return "";
}

int ToldHolder(const std::string& locks, uint64_t device, uint64_t inode) {
  const std::string file =
      fmt::format("{:02x}:{:02x}:{}", major(device), minor(device), inode);
  for (const std::string& line : Lines(locks)) {
    // "1: FLOCK  ADVISORY  WRITE 4242 00:1a:99 0 EOF"
    const auto words = SplitWords(line);
    if (words.size() < 6 || words[5] != file) continue;
    if (const auto pid = ParsedNumber(words[4]); pid && *pid > 0) {
      return static_cast<int>(*pid);
    }
  }
  return 0;
}

std::optional<uid_t> ToldListener(const std::string& sockets,
                                  const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == address.npos) return std::nullopt;
  const auto number = ParsedNumber(address.substr(colon + 1));
  const std::string port = fmt::format(":{:04X}", number.value_or(0));
  in_addr ip = {};
  const bool known =
      inet_pton(AF_INET, address.substr(0, colon).c_str(), &ip) == 1;
  const std::string exact = fmt::format("{:08X}{}", ip.s_addr, port);
  std::optional<uid_t> found;
  for (const std::string& line : Lines(sockets)) {
    // "0: 0100007F:24DB 00000000:0000 0A 00000000:00000000 00:0 0 1001 …"
    const auto words = SplitWords(line);
    constexpr const char* kListens = "0A";
    if (words.size() < 8 || words[3] != kListens || !words[1].ends_with(port)) {
      continue;
    }
    const auto user = ParsedNumber(words[7]);
    if (!user) continue;
    if (!found || (known && words[1] == exact)) {
      found = static_cast<uid_t>(*user);
    }
  }
  return found;
}

std::optional<UnitFacts> ToldUnit(const std::string& shown) {
  if (ToldValue(shown, "LoadState", '=') != "loaded") return std::nullopt;
  const auto count = [&](const char* key) {
    return ParsedNumber(ToldValue(shown, key, '=')).value_or(0);
  };
  return UnitFacts{.active = ToldValue(shown, "ActiveState", '=') == "active",
                   .status = ToldValue(shown, "StatusText", '='),
                   .store_most = count("FileDescriptorStoreMax"),
                   .stored = count("NFileDescriptorStore")};
}

std::optional<std::vector<bool>> ToldPersistence(const std::string& csv) {
  std::vector<bool> on;
  for (const std::string& line : Lines(csv)) {
    const auto mode = absl::StripAsciiWhitespace(line);
    if (mode != "Enabled" && mode != "Disabled") return std::nullopt;
    on.push_back(mode == "Enabled");
  }
  if (on.empty()) return std::nullopt;
  return on;
}

absl::StatusOr<DaemonFacts> ToldDaemon(const std::string& snapshot) {
  try {
    const json node = json::parse(snapshot);
    DaemonFacts facts;
    facts.version = node.at("version").get<std::string>();
    facts.driver = node.at("driver").get<std::string>();
    facts.generation = node.at("generation").get<uint64_t>();
    facts.sessions = node.at("sessions").get<int64_t>();
    if (const json drained = node.value("drained", json());
        !drained.is_null()) {
      facts.drained = {drained.at("by").get<std::string>(),
                       drained.at("reason").get<std::string>()};
    }
    if (const json kind = node.value("host_memory", json()); !kind.is_null()) {
      facts.host_memory = kind.at("kind").get<std::string>();
      facts.host_memory_why = kind.at("why").get<std::string>();
    }
    if (const json http = node.value("http", json()); !http.is_null()) {
      facts.http = http.at("listen").get<std::string>();
      const json& fault = http.at("fault");
      if (!fault.is_null()) facts.http_fault = fault.get<std::string>();
    }
    for (const json& each : node.value("holders", json::array())) {
      facts.holders.push_back({each.at("pid").get<int>(),
                               each.at("uid").get<uid_t>(),
                               each.at("command").get<std::string>(),
                               Bytes(each.at("gpu_bytes").get<int64_t>() +
                                     each.at("host_bytes").get<int64_t>())});
    }
    ReadLinkFacts(node, facts);
    for (const json& gpu : node.value("gpus", json::array())) {
      const json fault = gpu.value("fault", json());
      if (!fault.is_null()) facts.gpu_faults.push_back(fault);
    }
    for (const json& host : node.at("host")) {
      facts.host_pools += Bytes(host.at("total_bytes").get<int64_t>());
    }
    return facts;
  } catch (const json::exception& error) {
    return absl::InternalError(fmt::format(
        "its snapshot is not what this sluicectl knows ({})", error.what()));
  }
}

StartedWith ReadStartedWith(const std::vector<std::string>& words) {
  StartedWith with;
  for (size_t i = 1; i < words.size(); ++i) {
    if (auto config = ValueOf("--config", words, i)) {
      with.config = *std::move(config);
    } else if (!ValueOf("--runtime-dir", words, i)) {
      with.others.push_back(words[i]);
    }
  }
  return with;
}

}  // namespace sluice::ctl
