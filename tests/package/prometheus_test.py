#!/usr/bin/env python3
"""The alerts and the dashboard of deploy/prometheus work with a real
Prometheus that scrapes a real daemon during a run: prometheus_test.py BUILD"""

import contextlib
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.parse
import urllib.request

import installed

BUILD = os.path.abspath(sys.argv.pop())
ROOT = os.path.dirname(os.path.dirname(installed.HERE))
FOLDER = ROOT + "/deploy/prometheus"
DEPS = os.environ.get("SLUICE_DEPS", os.path.expanduser("~/.cache/sluice"))
TOOLS = DEPS + "/prometheus/usr/bin/"
PATIENCE_S = 60
CONFIG = """\
[device]
driver = "sim"
[sim]
gpu_memory = "64MiB"
host_memory = "256MiB"
[http]
listen = "127.0.0.1:0"
"""
SCRAPE = """\
global: {{scrape_interval: 1s, evaluation_interval: 1s}}
rule_files: ["{rules}"]
scrape_configs:
  - job_name: sluice
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
TRAIN = ("--layers 2 --hidden 64 --heads 4 --kv-heads 2 --ffn 96 --chunk 64 "
         "--ranks 2 --seq-len 333 --steps 100000 --hbm 24MiB --no-keep "
         "--job night").split()
# A different sequence length, which needs a plan of its own.
PLANNED = ["--seq-len", "444", "--steps", "3", "--job", "plans"]


def free_port():
    """Returns a free port outside of the kernel's range of automatic ports."""
    while True:
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", random.randint(15000, 30000)))
            return probe.getsockname()[1]


def proxy(port, path):
    """Offers http.sock, which has the series of jobs, on TCP, as socat would.
    """
    listener = socket.create_server(("127.0.0.1", port))

    def pump(source, to):
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                to.sendall(data)
            to.shutdown(socket.SHUT_WR)

    def answer(near):
        with near, socket.socket(socket.AF_UNIX) as far:
            far.connect(path)
            asking = threading.Thread(target=pump, args=(near, far))
            asking.start()
            pump(far, near)
            asking.join()

    def serve():
        while True:
            threading.Thread(target=answer, args=listener.accept()[:1],
                             daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def dashboard():
    with open(FOLDER + "/dashboard.json", encoding="utf-8") as file:
        return json.load(file)


def panels():
    return [p for p in dashboard()["panels"] if p["type"] != "row"]


def rules():
    with open(FOLDER + "/alerts.yaml", encoding="utf-8") as file:
        text = file.read()
    return dict(zip(re.findall(r"alert: (\w+)", text),
                    re.findall(r"expr: (.*)", text)))


class Written(unittest.TestCase):

    def test_each_alert_fires_when_it_should(self):
        installed.run(TOOLS + "promtool", "check", "rules",
                      FOLDER + "/alerts.yaml")
        cases = installed.HERE + "/alerts_test.yaml"
        installed.run(TOOLS + "promtool", "test", "rules", cases)
        with open(cases, encoding="utf-8") as file:
            tried = set(re.findall(r"alertname: (\w+)", file.read()))
        self.assertEqual(tried, set(rules()))

    def test_every_metric_is_in_the_table(self):
        with open(ROOT + "/daemon/metrics/README.md",
                  encoding="utf-8") as file:
            told = set(re.findall(r"`((?:sluice|process)_\w+)", file.read()))
        asked = set()
        for text in (*rules().values(), *(
                t["expr"] for p in panels() for t in p["targets"])):
            asked |= {re.sub("_bucket$", "", name) for name in
                      re.findall(r"\b(?:sluice|process)_\w+\b",
                                 re.sub(r'"[^"]*"|by \([^)]*\)', "", text))}
        self.assertGreater(len(asked), 20)
        self.assertEqual(asked - told, set())

    def test_panels_do_not_overlap(self):
        taken = set()
        for panel in dashboard()["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                     for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            taken |= cells
        numbers = [p["id"] for p in dashboard()["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))


class Scraped(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(folder.cleanup)
        cls.folder = folder.name
        cls.daemon, cls.runtime = cls.started_daemon()
        cls.scraped, cls.port = free_port(), free_port()
        proxy(cls.scraped, cls.runtime + "/http.sock")
        with open(cls.folder + "/prometheus.yml", "w",
                  encoding="ascii") as file:
            file.write(SCRAPE.format(rules=FOLDER + "/alerts.yaml",
                                     port=cls.scraped))
        cls.start(TOOLS + "prometheus",
                  "--config.file=" + cls.folder + "/prometheus.yml",
                  "--storage.tsdb.path=" + cls.folder + "/data",
                  f"--web.listen-address=127.0.0.1:{cls.port}")
        with open(cls.folder + "/text", "w", encoding="ascii") as file:
            file.write("The quick brown fox jumps over the lazy dog. " * 2000)
        cls.start(BUILD + "/bin/sluice-train", "train", *TRAIN, "--data",
                  cls.folder + "/text", "--socket",
                  cls.runtime + "/session.sock")

    @classmethod
    def start(cls, *words):
        with open(cls.folder + "/log", "a", encoding="utf-8") as log:
            process = subprocess.Popen(words, stdout=log, stderr=log)
        cls.addClassCleanup(process.wait)
        cls.addClassCleanup(process.terminate)
        return process

    @classmethod
    def started_daemon(cls):
        with open(cls.folder + "/sluiced.toml", "w", encoding="ascii") as file:
            file.write(CONFIG)
        daemon = subprocess.Popen(
            [BUILD + "/bin/sluiced", "--config", cls.folder + "/sluiced.toml",
             "--runtime-dir", cls.folder + "/run"], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        cls.addClassCleanup(daemon.stdout.close)
        cls.addClassCleanup(daemon.wait)
        cls.addClassCleanup(daemon.terminate)
        assert "ready" in daemon.stdout.readline()
        return daemon, cls.folder + "/run"

    def ask(self, path, **query):
        url = (f"http://127.0.0.1:{self.port}/api/v1/{path}?"
               + urllib.parse.urlencode(query))
        with urllib.request.urlopen(url, timeout=20) as answer:
            found = json.load(answer)
        self.assertEqual(found["status"], "success", query)
        return found["data"]

    def soon(self, find):
        """Calls `find` until it returns something; returns that, or None after
        PATIENCE_S."""
        end = time.monotonic() + PATIENCE_S
        while True:
            try:
                if found := find():
                    return found
            except OSError:
                pass  # the server is still starting
            if time.monotonic() > end:
                return None
            time.sleep(0.5)

    def solve_a_plan(self):
        """Solves a plan between two scrapes: without an increase of the count,
        a quantile of the count's rate is undefined."""
        self.assertTrue(self.soon(lambda: self.ask(
            "query", query="sluice_plan_seconds_count > 0")["result"]))
        self.start(BUILD + "/bin/sluice-train", "train", *TRAIN, *PLANNED,
                   "--data", self.folder + "/text", "--socket",
                   self.runtime + "/session.sock")

    def test_every_query_of_the_dashboard_finds_something(self):
        plans = "How long a plan takes"
        self.assertIn(plans, [p["title"] for p in panels()])
        for panel in panels():
            if panel["title"] == plans:
                self.solve_a_plan()
            for target in panel["targets"]:
                expression = target["expr"].replace(
                    "$__rate_interval", "10s").replace("$instance", ".*")
                with self.subTest(panel=panel["title"], query=expression):
                    self.assertTrue(self.soon(lambda query=expression: self.ask(
                        "query", query=query)["result"]))

    def test_the_page_names_each_panel_and_draws_most(self):
        self.assertTrue(self.soon(lambda: self.ask(
            "query", query="sluice_job_loss")["result"]))
        out = self.folder + "/page.html"
        said = installed.run(sys.executable, FOLDER + "/page.py",
                             "--prometheus", f"http://127.0.0.1:{self.port}",
                             "--out", out, "--minutes", "1")
        drawn = int(re.search(r": (\d+) pictures", said)[1])
        # Up to three panels lack a picture: rates need several scrapes.
        self.assertGreaterEqual(drawn, len(panels()) - 3)
        with open(out, encoding="utf-8") as file:
            text = file.read()
        for panel in panels():
            self.assertIn(panel["title"], text)
        self.assertNotIn("http", text)  # it loads nothing from other servers
        if keep := os.environ.get("SLUICE_PAGE"):
            with open(keep, "w", encoding="utf-8") as file:
                file.write(text)

    def test_bad_input_of_the_page_is_reported_in_one_line(self):
        for words, what in (
                (["--prometheus", "http://127.0.0.1:1", "--out",
                  self.folder + "/x"], "no Prometheus answers at"),
                (["--prometheus", f"http://127.0.0.1:{self.port}", "--out",
                  self.folder + "/x", "--instance", "("], "error")):
            done = subprocess.run([sys.executable, FOLDER + "/page.py", *words],
                                  capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(what, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
            self.assertFalse(os.path.exists(self.folder + "/x"))

    def test_rules_are_evaluated_and_a_killed_rank_fires_an_alert(self):
        def rules_now():
            return [r for g in self.ask("rules")["groups"] for r in g["rules"]]

        self.assertTrue(self.soon(lambda: rules_now() and all(
            r["health"] == "ok" for r in rules_now())))
        self.assertEqual({r["name"] for r in rules_now()}, set(rules()))
        rank = self.start(
            BUILD + "/bin/sluice-train", "train", *TRAIN[:-1], "killed",
            "--data", self.folder + "/text", "--socket",
            self.runtime + "/session.sock")
        self.assertTrue(self.soon(lambda: self.ask(
            "query", query='sluice_job_step{sluice_job="killed"}')["result"]))
        rank.kill()
        [alert] = self.soon(lambda: [
            a for a in self.ask("alerts")["alerts"]
            if a["labels"]["alertname"] == "SluiceRanksDie"])
        self.assertEqual(alert["state"], "firing")
        self.assertEqual(alert["labels"]["reason"], "signal")


if __name__ == "__main__":
    unittest.main()
