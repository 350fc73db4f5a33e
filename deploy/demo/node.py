"""A simulated node: sluiced, and a Prometheus that scrapes it."""

import json
import os
import urllib.error
import urllib.parse
import urllib.request

from processes import free_port, wait_until

CONFIG = """\
[device]
driver = "sim"
[sim]
gpus = {gpus}
gpu_memory = "{hbm_mib}MiB"
host_memory = "{host_mib}MiB"
links = [{links}]
gpu_links = [{gpu_links}]
[pools]
host_bytes = "{host_mib}MiB"
extent_bytes = "{extent_mib}MiB"
[http]
listen = "127.0.0.1:{port}"
"""

LINK = ('{{name = "pcie{i}", h2d_bytes_per_s = {rate:.1e}, '
        'd2h_bytes_per_s = {rate:.1e}}}')

SCRAPE = """\
global: {{scrape_interval: 1s}}
scrape_configs:
  - job_name: sluice
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""


def daemon_config(settings, port):
    gpus = range(settings["gpus"])
    rate = settings["link_bytes_per_s"]
    return CONFIG.format(
        port=port, links=", ".join(LINK.format(i=i, rate=rate) for i in gpus),
        gpu_links=", ".join(f'"pcie{i}"' for i in gpus), **settings)


def get(url, timeout_s=5):
    with urllib.request.urlopen(url, timeout=timeout_s) as answer:
        return answer.read().decode()


def answers(url):
    try:
        get(url, timeout_s=1)
        return True
    except (urllib.error.URLError, OSError):
        return False


class Daemon:
    """sluiced in `folder`, with its socket, pid and HTTP address."""

    def __init__(self, processes, binary, settings, folder):
        self.port = free_port()
        self.runtime = os.path.join(folder, "run")
        os.mkdir(self.runtime, 0o700)
        config = os.path.join(folder, "sluiced.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(daemon_config(settings, self.port))
        self.log = os.path.join(folder, "sluiced.log")
        with open(self.log, "w", encoding="utf-8") as log:
            self.process = processes.start(
                [binary, "--config", config, "--runtime-dir", self.runtime],
                stdout=log, stderr=log)
        self.socket = os.path.join(self.runtime, "session.sock")
        self.metrics_url = f"http://127.0.0.1:{self.port}/metrics"
        try:
            wait_until(lambda: os.path.exists(self.socket) and
                       answers(self.metrics_url), self.process, "sluiced")
        except RuntimeError as error:
            raise RuntimeError(f"{error}: {self.last_words()}") from None

    def last_words(self):
        with open(self.log, encoding="utf-8") as file:
            return " / ".join(file.read().strip().splitlines()[-3:])


class Prometheus:
    """Debian's prometheus, with its own port and data folder."""

    def __init__(self, processes, binary, daemon_port, folder):
        self.port = free_port()
        config = os.path.join(folder, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(SCRAPE.format(port=daemon_port))
        with open(os.path.join(folder, "prometheus.log"), "w",
                  encoding="utf-8") as log:
            self.process = processes.start(
                [binary, f"--config.file={config}",
                 f"--storage.tsdb.path={folder}/prometheus",
                 f"--web.listen-address=127.0.0.1:{self.port}",
                 "--log.level=warn"], stdout=log, stderr=log, cwd=folder)
        wait_until(lambda: answers(self._url("-/ready")), self.process,
                   "prometheus")

    def _url(self, path, **query):
        return (f"http://127.0.0.1:{self.port}/{path}?" +
                urllib.parse.urlencode(query))

    def query(self, expression):
        """Returns a list of {metric, value}."""
        answer = json.loads(get(self._url("api/v1/query", query=expression)))
        return answer["data"]["result"]

    def query_range(self, expression, start_s, end_s, step_s=1):
        """Returns a list of {metric, values}."""
        answer = json.loads(get(self._url(
            "api/v1/query_range", query=expression, start=start_s, end=end_s,
            step=step_s)))
        return answer["data"]["result"]
