#include "client/ctl/status/render_jobs.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "client/ctl/text/fields.h"
#include "client/ctl/text/format.h"
#include "client/ctl/text/table.h"

namespace sluice::ctl {

using nlohmann::json;

std::string JobLines(const json& node) {
  Table table({"JOB", ">USER", ">RANKS", ">GPU MEMORY", ">HOST MEMORY", ">STEP",
               ">LOSS", ">TOKENS/S", ">PLAN"});
  for (const json& job : node.at("jobs")) {
    int64_t gpu = 0, host = 0;
    double speed = 0;
    json step, loss;
    for (const json& rank : job.at("ranks")) {
      gpu += Number(rank, "gpu_bytes");
      host += Number(rank, "host_bytes");
      if (!rank.at("step").is_null()) step = rank.at("step");
      if (!rank.at("loss").is_null()) loss = rank.at("loss");
      if (const json& own = rank.at("tokens_per_second"); !own.is_null()) {
        speed += own.get<double>();
      }
    }
    table.Add({Text(job, "name"), fmt::format("{}", Number(job, "uid")),
               fmt::format("{}/{}", job.at("ranks").size(),
                           Number(job, "world_size")),
               Size(gpu), Size(host), Optional(step, Count),
               Optional(loss, Loss), speed > 0 ? Count(speed) : "-",
               Optional(job.at("plan_id"), Count)});
  }
  return table.empty() ? "no jobs\n" : table.Text(kTerminalColumns, 1);
}

}  // namespace sluice::ctl
