"""report.json and the self-contained report.html."""

import json
import os
import re

HERE = os.path.dirname(os.path.abspath(__file__))
MAX_BLOCKS = 60000  # a browser draws this many without a pause


def write(out, facts, parity, best, scraped):
    """Writes both files into `out`; returns the page's path."""
    with open(os.path.join(out, "report.json"), "w", encoding="utf-8") as file:
        json.dump(facts, file, indent=2)
        file.write("\n")
    page = os.path.join(out, "report.html")
    with open(page, "w", encoding="utf-8") as file:
        file.write(render(page_data(facts, parity, best, scraped)))
    return page


def read(name):
    with open(os.path.join(HERE, "page", name), encoding="utf-8") as file:
        return file.read()


def render(data):
    """Returns the page, with its style, scripts and data inside."""
    scripts = "\n".join(read(name) for name in
                        ("charts.js", "step.js", "page.js"))
    # "</" would end the script element that carries the data.
    text = json.dumps(data, separators=(",", ":")).replace("</", "<\\/")
    parts = {"STYLE": read("page.css"), "SCRIPT": scripts, "DATA": text}
    return re.sub(r"\{\{(STYLE|SCRIPT|DATA)\}\}",
                  lambda match: parts[match.group(1)], read("page.html"))


def page_data(facts, parity, best, scraped):
    trace = {}
    path = best["sluice"]["trace"]
    if path and os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            trace = compact(json.load(file))
    return {
        "facts": facts,
        "losses": {m: run["result"]["losses"]
                   for m, run in parity["runs"].items()},
        "steps": parity["runs"]["sluice"]["steps"],
        "longest": best["sluice"]["steps"],
        "plan": best["sluice"]["result"].get("plan", {}),
        "fractions": best["sluice"]["result"].get("fractions", {}),
        "trace": trace,
        "metrics": scraped["metrics"],
        "series": chosen_series(scraped["series"]),
    }


def compact(trace):
    """Returns the trace as rows of numbers for the page, with at most
    MAX_BLOCKS blocks. Times are microseconds since the step's first event."""
    names = {}

    def name_id(name):
        return names.setdefault(name, len(names))

    # Some blocks (weights) are older than the step.
    events = trace["compute"] + trace["h2d"] + trace["d2h"]
    begin = min((e["start_s"] for e in events), default=0)
    end = max((e["end_s"] for e in events), default=0)

    def micros(second):
        return round((min(max(second, begin), end) - begin) * 1e6)

    # A block that outlives the trace is marked by died_s < born_s.
    blocks = [dict(b, died_s=end) if b["died_s"] < b["born_s"] else b
              for b in trace["blocks"]]
    compute = trace["compute"] or segments_of(blocks)
    if len(blocks) > MAX_BLOCKS:
        blocks = most_visible(blocks, compute, end - begin)
    return {
        "compute": [[micros(e["start_s"]), micros(e["end_s"]),
                     name_id(e["name"])] for e in compute],
        "compute_is_derived": not trace["compute"],
        "h2d": [copy_row(e, micros, name_id) for e in trace["h2d"]],
        "d2h": [copy_row(e, micros, name_id) for e in trace["d2h"]],
        "blocks": [[b["offset"], b["size"], micros(b["born_s"]),
                    micros(b["died_s"]),
                    name_id(b["segment"] or "weights and buffers")]
                   for b in blocks],
        "blocks_all": len(trace["blocks"]),
        "hbm_bytes": trace["hbm_bytes"],
        "planned_bytes": trace["planned_bytes"],
        "micros": micros(end),
        "names": list(names),
    }


def segments_of(blocks):
    """Returns when each segment ran, for traces without "compute". A segment
    lasts while any of its blocks lives."""
    runs = []
    for block in sorted((b for b in blocks if b["segment"]),
                        key=lambda b: b["born_s"]):
        last = runs[-1] if runs else None
        if (last and last["name"] == block["segment"] and
                block["born_s"] <= last["end_s"]):
            last["end_s"] = max(last["end_s"], block["died_s"])
        else:
            runs.append({"name": block["segment"], "start_s": block["born_s"],
                         "end_s": block["died_s"]})
    return runs


def most_visible(blocks, compute, seconds):
    """Returns MAX_BLOCKS blocks: those near the window that the page first
    enlarges (step.js: at a fifth of the compute), then the largest by bytes
    times lifetime."""
    start = compute[len(compute) // 5]["start_s"] if compute else 0

    def rank(block):
        near = start - 0.01 * seconds <= block["born_s"] <= (
            start + 0.04 * seconds)
        lived = block["died_s"] - block["born_s"]
        return (not near, -block["size"] * (lived + 1e-6))

    return sorted(blocks, key=rank)[:MAX_BLOCKS]


def copy_row(event, micros, name_id):
    return [micros(event["start_s"]), micros(event["end_s"]),
            name_id(event["name"]), event["bytes"],
            micros(event["issued_s"])]


# The series that the page draws.
SHOWN = {"sluice_pool_bytes", "sluice_host_pool_bytes",
         "sluice_swap_bytes_total"}


def chosen_series(series):
    """Returns the series in SHOWN, thinned to what a chart shows."""
    chosen = []
    for one in series:
        labels = {k: v for k, v in one["metric"].items()
                  if k not in ("__name__", "instance", "job")}
        if (one["metric"]["__name__"] not in SHOWN or
                "free" in labels.values()):
            continue
        values = [[round(t, 1), float(v)] for t, v in one["values"]]
        chosen.append({"name": one["metric"]["__name__"], "labels": labels,
                       "values": values[::max(1, len(values) // 300)]})
    return chosen
