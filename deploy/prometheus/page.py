#!/usr/bin/env python3
"""Draws dashboard.json without Grafana: each panel's queries, asked of a
Prometheus, as one HTML page that needs nothing from outside.

    page.py --prometheus http://localhost:9090 --out sluice.html
    page.py --prometheus URL --out sluice.html --minutes 15 \
--instance 'node7:.*'
"""

import argparse
import html
import json
import math
import os
import re
import sys
import time
import urllib.error
import urllib.parse
import urllib.request

DASHBOARD = os.path.join(os.path.dirname(os.path.abspath(__file__)),
                         "dashboard.json")
POINTS = 240  # per series
LEAST_STEP_S = 1
WIDTH, HEIGHT, LEFT, BOTTOM = 430, 170, 62, 18
COLORS = ["#2f6fb0", "#c2571a", "#3a8a4d", "#8a4fa3", "#b08a1e", "#4a9aa8",
          "#b23a48", "#6b6b6b"]
STYLE = """
body { font: 14px system-ui, sans-serif; margin: 24px; color: #222; }
h2 { margin: 28px 0 8px; } p { color: #666; }
.panels { display: flex; flex-wrap: wrap; gap: 16px; }
figure { margin: 0; width: 430px; box-sizing: border-box; \
border: 1px solid #ddd; border-radius: 6px;
         padding: 10px; }
figcaption { font-weight: 600; margin-bottom: 4px; }
.legend { font-size: 12px; color: #444; }
.legend span { margin-right: 10px; white-space: nowrap; }
.legend i { display: inline-block; width: 10px; height: 10px;
            margin-right: 4px; border-radius: 2px; }
text { font: 11px system-ui, sans-serif; fill: #666; }
.empty { color: #999; height: 170px; display: grid; place-items: center; }
"""


class Failed(Exception):
    """Ends the program with a one-line message before the page is written."""


class Prometheus:
    """Queries a Prometheus about the last `minutes`."""

    def __init__(self, url, minutes, instance, now=None):
        self._url = url.rstrip("/")
        self._instance = instance
        self.end = now or time.time()
        self.begin = self.end - 60 * minutes
        self.step = max(LEAST_STEP_S, math.ceil(60 * minutes / POINTS))

    def expression(self, text):
        """Returns the query with Grafana's variables replaced."""
        return text.replace("$__rate_interval", f"{max(4 * self.step, 60)}s"
                            ).replace("$instance", self._instance)

    def series(self, text):
        """Returns [(labels, [(time, value)])], without infinite values and
        NaN."""
        query = urllib.parse.urlencode(dict(
            query=self.expression(text), start=self.begin, end=self.end,
            step=self.step))
        try:
            with urllib.request.urlopen(
                    f"{self._url}/api/v1/query_range?{query}",
                    timeout=30) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise Failed(f"{self._url}: {text}: {error.read().decode()}"
                         ) from None
        except (OSError, ValueError, KeyError) as error:
            raise Failed(f"no Prometheus answers at {self._url}: {error}"
                         ) from None
        found = [(one["metric"], [(at, float(value)) for at, value in
                                  one["values"] if math.isfinite(float(value))])
                 for one in result]
        return [(labels, points) for labels, points in found if points]


def named(legend, labels, one_instance):
    """Replaces each {{label}}; leaves out the instance if there is only one."""
    text = re.sub(r"\{\{(\w+)\}\}", lambda m: (
        "" if one_instance and m[1] == "instance" else labels.get(m[1], "")),
        legend)
    return text.strip() or "all"


def lines_of(panel, prometheus):
    """Returns [(name, points)] of all targets of a panel."""
    found = [(target["legendFormat"], labels, points)
             for target in panel["targets"]
             for labels, points in prometheus.series(target["expr"])]
    instances = {labels.get("instance") for _, labels, _ in found}
    return [(named(legend, labels, len(instances) < 2), points)
            for legend, labels, points in found]


def stacked(lines):
    """Returns each line stacked on the lines before it."""
    total, found = {}, []
    for name, points in lines:
        for at, value in points:
            total[at] = total.get(at, 0) + value
        found.append((name, [(at, total[at]) for at, _ in points]))
    return found


def number(value, unit):
    if unit == "percentunit":
        return f"{100 * value:.3g} %"
    if unit in ("bytes", "Bps"):
        size, names = abs(value), ["B", "KiB", "MiB", "GiB", "TiB"]
        while size >= 1024 and len(names) > 1:
            size, names = size / 1024, names[1:]
        return f"{size:.3g} {names[0]}" + ("/s" if unit == "Bps" else "")
    if unit == "s" and 0 < value < 1:
        return (f"{value * 1e3:.3g} ms" if value >= 1e-3 else
                f"{value * 1e6:.3g} µs")
    return f"{value:.4g}" + {"s": " s", "ops": "/s"}.get(unit, "")


def drawn(lines, unit, stack, prometheus):
    top = max(value for _, points in lines for _, value in points) or 1
    span = prometheus.end - prometheus.begin

    def place(at, value):
        return (LEFT + (at - prometheus.begin) / span * (WIDTH - LEFT),
                (1 - value / top) * (HEIGHT - BOTTOM - 8) + 8)

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img">']
    for share in (0, 0.5, 1):
        y = place(0, share * top)[1]
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH}" stroke="#eee"/>'
                     f'<text x="{LEFT - 6}" y="{y + 4:.1f}" '
                     f'text-anchor="end">{number(share * top, unit)}</text>')
    for i, (_, points) in reversed(list(enumerate(lines))):
        color = COLORS[i % len(COLORS)]
        path = "L".join(f"{x:.1f} {y:.1f}" for x, y in (
            place(*point) for point in points))
        if stack:
            base = place(0, 0)[1]
            first, last = place(*points[0])[0], place(*points[-1])[0]
            parts.append(f'<path d="M{first:.1f} {base:.1f}L{path}'
                         f'L{last:.1f} {base:.1f}Z" fill="{color}"/>')
        else:
            parts.append(f'<path d="M{path}" fill="none" stroke="{color}" '
                         'stroke-width="1.5" stroke-linecap="round"/>')
    for at, anchor in ((prometheus.begin, "start"), (prometheus.end, "end")):
        parts.append(f'<text x="{place(at, 0)[0]:.1f}" y="{HEIGHT - 3}" '
                     f'text-anchor="{anchor}">'
                     f'{time.strftime("%H:%M:%S", time.localtime(at))}</text>')
    return "".join(parts) + "</svg>"


def figure(panel, prometheus):
    lines = lines_of(panel, prometheus)
    defaults = panel["fieldConfig"]["defaults"]
    title = html.escape(panel["title"])
    if not lines:
        return (f'<figure><figcaption>{title}</figcaption>'
                '<div class="empty">no data</div></figure>')
    last = [points[-1][1] for _, points in lines]
    stack = defaults["custom"]["stacking"]["mode"] == "normal"
    picture = drawn(stacked(lines) if stack else lines, defaults["unit"], stack,
                    prometheus)
    legend = "".join(
        f'<span><i style="background:{COLORS[i % len(COLORS)]}"></i>'
        f'{html.escape(name)} {number(value, defaults["unit"])}</span>'
        for i, ((name, _), value) in enumerate(zip(lines, last)))
    return (f"<figure><figcaption>{title}</figcaption>{picture}"
            f'<div class="legend">{legend}</div></figure>')


def page(dashboard, prometheus):
    parts = ['<!doctype html><html lang="en"><meta charset="utf-8">'
             f"<title>{dashboard['title']}</title><style>{STYLE}</style>"
             f"<h1>{dashboard['title']}</h1><p>"
             + time.strftime("%Y-%m-%d %H:%M:%S to ",
                             time.localtime(prometheus.begin))
             + time.strftime("%H:%M:%S", time.localtime(prometheus.end))
             + "; the number beside each name is its last value</p>"]
    for panel in dashboard["panels"]:
        if panel["type"] == "row":
            parts.append("</div>" if len(parts) > 1 else "")
            parts.append(f"<h2>{html.escape(panel['title'])}</h2>"
                         '<div class="panels">')
        else:
            parts.append(figure(panel, prometheus))
    return "".join(parts) + "</div></html>\n"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__[__doc__.index("\n\n"):],
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prometheus", required=True, metavar="URL")
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--instance", default=".*", metavar="REGEX",
                        help="the instances (nodes) to draw; default: all")
    arguments = parser.parse_args()
    if not arguments.minutes > 0:
        parser.error(f"--minutes {arguments.minutes}: must be above 0")
    try:
        with open(DASHBOARD, encoding="utf-8") as file:
            text = page(json.load(file), Prometheus(
                arguments.prometheus, arguments.minutes, arguments.instance))
        with open(arguments.out, "w", encoding="utf-8") as file:
            file.write(text)
    except (Failed, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"{arguments.out}: {text.count('<svg')} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
