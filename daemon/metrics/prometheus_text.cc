#include "daemon/metrics/prometheus_text.h"

#include "daemon/metrics/metric_parts.h"
#include "proto/base/overloaded.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

using prometheus::MetricType;

void AddFrozen(bool frozen, Families& to) {
  to.Gauge("sluice_frozen",
           "1 while sluiced keeps what jobs hold and grants nothing.",
           frozen ? 1 : 0);
}

void AddProcess(const ProcessStats& from, Families& to) {
  to.Counter("process_cpu_seconds_total", "CPU time of sluiced.",
             from.cpu_seconds);
  to.Gauge("process_resident_memory_bytes", "Resident memory of sluiced.",
           from.resident_bytes);
  to.Gauge("process_virtual_memory_bytes", "Address space of sluiced.",
           from.virtual_bytes);
  to.Gauge("process_open_fds", "File descriptors sluiced has open.",
           from.open_fds);
  to.Gauge("process_max_fds", "File descriptors sluiced may have open.",
           from.max_fds);
  to.Gauge("process_start_time_seconds",
           "When sluiced started, in seconds since 1970.",
           from.start_time_seconds);
}

void AddService(const Snapshot& from, Families& to) {
  to.Add("sluice_build_info", "Always 1; the version is a label.",
         MetricType::Gauge);
  to.Value({{"version", SLUICE_VERSION}, {"driver", from.driver}}, 1);
  to.Gauge("sluice_uptime_seconds", "Time since the daemon started.",
           absl::ToDoubleSeconds(from.uptime));
  to.Gauge("sluice_drained",
           "1 while an administrator has drained the node, else 0.",
           from.drain ? 1 : 0);
  to.Add("sluice_sessions", "Connections by state.", MetricType::Gauge);
  int closed = 0;
  for (const JobSnapshot& job : from.jobs) {
    for (const RankSnapshot& rank : job.ranks) closed += rank.closed;
  }
  to.Value({{"state", "attached"}}, from.sessions - from.half_open - closed);
  to.Value({{"state", "half_open"}}, from.half_open);
  to.Value({{"state", "closed"}}, closed);
  to.Gauge("sluice_export_handles",
           "Physical memory handles the daemon holds exported.",
           static_cast<double>(from.extents));
  to.Counter("sluice_grant_stale_periods_total",
             "Times the heartbeat came so late that ranks ran without grants.",
             from.grant_stale_periods);
  from.stats->Each(Overloaded{
      [&](const char* name, const char* help, uint64_t count) {
        to.Counter(name, help, static_cast<double>(count));
      },
      [&](const char* name, const char* help, const Histogram& seconds) {
        to.AddHistogram(name, help, seconds);
      },
      [&](const char* name, const char* help, const auto& counts,
          const char* label) { to.CounterBy(name, help, label, counts); }});
  to.Add("sluice_kept",
         "1 while what jobs hold outlives this sluiced, 0 where that has "
         "ended; only where it was started with a descriptor store.",
         MetricType::Gauge);
  if (from.kept) to.Value({}, *from.kept ? 1 : 0);
  to.Counter("sluice_keepers_replaced_total",
             "Always 0, for dashboards of earlier versions.", 0);
  to.Add("sluice_http_listening",
         "1 while metrics are served on the TCP port of the configuration, 0 "
         "while another program has it.",
         MetricType::Gauge);
  const TcpListener& http = from.http;
  if (!http.address.empty()) to.Value({}, http.fault.empty() ? 1 : 0);
  to.Counter("sluice_log_lines_dropped_total",
             "Lines that are not in the log because stderr was not read.",
             from.log_lines_dropped);
  to.Counter("sluice_log_lines_suppressed_total",
             "Lines that are not in the log because one user caused too many.",
             from.log_lines_suppressed);
  to.Gauge("sluice_descriptors_closing",
           "Descriptors that clients sent, and sockets of ended sessions, "
           "that wait to be closed.",
           static_cast<double>(from.descriptors_closing));
}

}  // namespace

std::string FrozenText(const ProcessStats& process) {
  Families families;
  AddFrozen(true, families);
  AddProcess(process, families);
  return families.Text();
}

std::string PrometheusText(const Snapshot& snapshot,
                           const ProcessStats& process, Audience audience) {
  SLUICE_CHECK(snapshot.stats.has_value());
  Families families;
  AddFrozen(false, families);
  AddService(snapshot, families);
  AddNode(snapshot, audience, families);
  AddProcess(process, families);
  if (audience == Audience::kOperators) AddJobs(snapshot, families);
  return families.Text();
}

}  // namespace sluice::daemon
