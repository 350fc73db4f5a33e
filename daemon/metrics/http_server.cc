#include "daemon/metrics/http_server.h"

#include <fmt/format.h>
#include <httplib.h>

#include <thread>

#include "daemon/metrics/http_address.h"
#include "daemon/metrics/prometheus_text.h"
#include "daemon/metrics/snapshot_json.h"
#include "daemon/metrics/status_page.h"
#include "proto/base/status.h"

namespace sluice::daemon {
namespace {

constexpr int kThreads = 3;
constexpr int kTimeoutSeconds = 2;

void SetLimits(httplib::Server& http) {
  http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // A kept connection would occupy one of the few threads.
  http.set_keep_alive_max_count(1);
  http.set_keep_alive_timeout(kTimeoutSeconds);
  http.set_read_timeout(kTimeoutSeconds);
  http.set_write_timeout(kTimeoutSeconds);
  http.set_payload_max_length(0);
  // httplib would share the port with another listener (SO_REUSEPORT).
  http.set_socket_options([](auto socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
}

void AddPages(httplib::Server& http, const HttpServer::Source& source) {
  const auto serve = [&http, source](const char* path, const char* type,
                                     auto render) {
    http.Get(path, [=](const httplib::Request&, httplib::Response& reply) {
      const auto snapshot = source();
      if (!snapshot.ok()) {
        reply.status = 503;
        reply.set_content(std::string(snapshot.status().message()) + "\n",
                          "text/plain");
        return;
      }
      reply.set_content(render(*snapshot), type);
    });
  };
  serve("/metrics", "text/plain; version=0.0.4; charset=utf-8",
        [](const Snapshot& snapshot) {
          return PrometheusText(snapshot, ReadProcessStats());
        });
  serve("/status.json", "application/json", SnapshotJson);
  // For probes: whether the daemon's loop answers.
  serve("/healthz", "text/plain",
        [](const Snapshot&) { return std::string("ok\n"); });
  http.Get("/", [](const httplib::Request&, httplib::Response& reply) {
    reply.set_header("Content-Security-Policy",
                     "default-src 'self' 'unsafe-inline'");
    reply.set_content(std::string(StatusPage()), "text/html; charset=utf-8");
  });
}

}  // namespace

struct HttpServer::Server {
  httplib::Server http;
  std::thread thread;
};

absl::Status HttpServer::Available() { return absl::OkStatus(); }

HttpServer::HttpServer() : server_(std::make_unique<Server>()) {}

HttpServer::~HttpServer() {
  server_->http.stop();
  if (server_->thread.joinable()) server_->thread.join();
}

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(
    const std::string& listen, Source source) {
  SLUICE_ASSIGN_OR_RETURN(HttpAddress address, ParseHttpAddress(listen));
  auto server = std::unique_ptr<HttpServer>(new HttpServer());
  httplib::Server& http = server->server_->http;
  SetLimits(http);
  AddPages(http, source);
  bool bound = false;
  if (address.port == 0) {
    address.port = http.bind_to_any_port(address.host);
    bound = address.port > 0;
  } else {
    bound = http.bind_to_port(address.host, address.port);
  }
  if (!bound) {
    return absl::AlreadyExistsError(
        fmt::format("cannot listen on {}: another program does, or the "
                    "address is not this machine's; choose another in [http] "
                    "listen, or \"\" for none",
                    listen));
  }
  server->address_ = fmt::format("{}:{}", address.host, address.port);
  server->server_->thread = std::thread([&http] { http.listen_after_bind(); });
  // stop() is lost on a server that does not run yet.
  while (!http.is_running()) std::this_thread::yield();
  return server;
}

}  // namespace sluice::daemon
