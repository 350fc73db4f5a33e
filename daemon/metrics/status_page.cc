#include "daemon/metrics/pages.h"

namespace sluice::daemon {
namespace {

// Text from the daemon only ever becomes textContent, never markup.
constexpr std::string_view kPage = R"html(<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>sluiced</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { --ink:#1b2733; --dim:#67788a; --paper:#f6f8fa; --card:#fff;
  --line:#dde4ea; --leased:#2477c9; --kept:#9cc4ea; --free:#e6ecf1;
  --held:#e0812b; --bad:#c43d3d; }
@media (prefers-color-scheme: dark) { :root { --ink:#dfe7ee; --dim:#8b9bab;
  --paper:#11171d; --card:#1a222b; --line:#2b3743; --leased:#4b9be8;
  --kept:#2d5379; --free:#27323d; --held:#e0913f; --bad:#ef7070; } }
* { box-sizing:border-box }
body { margin:0; background:var(--paper); color:var(--ink);
  font:14px/1.5 system-ui,sans-serif }
main { padding:24px 16px 48px }
header { display:flex; gap:16px; align-items:baseline; flex-wrap:wrap }
h1 { font-size:22px; margin:0 } h2 { font-size:15px; margin:28px 0 8px }
.dim { color:var(--dim) } .bad { color:var(--bad) }
.pools { display:grid; gap:12px;
  grid-template-columns:repeat(auto-fill,minmax(min(310px,100%),1fr)) }
.card { background:var(--card); border:1px solid var(--line);
  border-radius:8px; padding:12px 14px }
.row { display:flex; justify-content:space-between; gap:12px }
.bar { display:flex; height:14px; border-radius:4px; overflow:hidden;
  background:var(--free); margin:8px 0 6px }
.leased { background:var(--leased) } .kept { background:var(--kept) }
.held { background:var(--held) } .one { display:inline }
.wide { overflow-x:auto; background:var(--card); border-radius:8px;
  border:1px solid var(--line) }
table { border-collapse:collapse; width:100%; white-space:nowrap }
th, td { text-align:right; padding:5px 12px;
  border-top:1px solid var(--line); font-variant-numeric:tabular-nums }
th { color:var(--dim); font-weight:500; border-top:0 }
.text { text-align:left; white-space:normal; overflow-wrap:anywhere;
  min-width:6em }
@media (max-width:700px) { th { display:none } .bar { height:20px }
  table, tbody, tr, td { display:block; text-align:left }
  tr { border-top:1px solid var(--line); padding:6px 0; columns:2 }
  td { border:0; padding:1px 12px; white-space:normal }
  td[title]::before { content:attr(title) " "; color:var(--dim) } }
</style></head><body><main>
<header><h1>sluiced</h1><span id="about" class="dim"></span>
<strong id="state" class="bad"></strong></header>
<h2>Memory <span class="dim"><span class="leased">&emsp;</span> leased
<span class="held">&emsp;</span> returning or held outside
<span class="kept">&emsp;</span> kept for its owner
<span class="bar one">&emsp;</span> free</span></h2><div class="pools" id="pools"></div>
<p id="sums" class="dim" hidden>Jobs, limits, budgets, plans and events have
names of users and jobs: the same page at http.sock in the daemon's runtime
folder shows them to its group.</p>
<div id="named"></div>
</main><script>
const $ = id => document.getElementById(id);
function el(tag, cls, text) { const e = document.createElement(tag);
  if (cls) e.className = cls; if (text !== undefined) e.textContent = text;
  return e; }
function bytes(n) { if (n === null || n === undefined) return "–";
  const u = ["B","KiB","MiB","GiB","TiB"]; let i = 0;
  while (n >= 1024 && i < 4) { n /= 1024; i++; }
  return (Number.isInteger(n) ? n : n.toFixed(1)) + " " + u[i]; }
function num(n, d) { return n === null || n === undefined ? "–" :
  n.toLocaleString("en", {maximumFractionDigits: d}); }
function plan(c, way) { if (!c) return "–";
  const rate = c[way + "_bytes_per_second"]; if (!rate) return "–";
  return bytes(rate) + "/s, " + bytes(c[way + "_bytes_per_step"]) +
    " a step: " + (c["promised_" + way + "_bytes_per_second"] > 0 ?
    "promised" : "fair share"); }
function late(l, way) { return l[way + "_copies"] ? num(l[way + "_copies"],
  0) + ", " + span(l[way + "_seconds"]) : "–"; }
function span(s) { if (s > 0 && s < 0.1) return num(1000 * s, 2) + " ms";
  if (s < 10) return (s % 1 ? s.toFixed(2) : s) + " s";
  if (s < 60) return Math.floor(s) + " s";
  for (const [of, sub, most, a, b] of [[60, 1, 3600, "min", "s"],
      [3600, 60, 86400, "h", "min"], [86400, 3600, Infinity, "d", "h"]])
    if (s < most) { const rest = Math.floor(s % of / sub);
      return Math.floor(s / of) + " " + a + (rest ? " " + rest + " " + b : "");
    } }
const by = l => (l.by || "an administrator") + ", " + span(l.age_s) + " ago";
const user = u => u.uid + (u.cgroup && " in " + u.cgroup);
function pool(title, sub, p) { const card = el("div", "card");
  const top = el("div", "row"); top.append(el("strong", "", title),
    el("span", "dim", bytes(p.leased_bytes) + " of " + bytes(p.total_bytes)));
  const bar = el("div", "bar");
  for (const [cls, n] of [["leased", p.leased_bytes],
      ["held", p.quarantined_bytes + p.lingering_bytes +
        p.held_outside_bytes],
      ["kept", p.kept_bytes]]) {
    const part = el("div", cls); part.title = cls + " " + bytes(n);
    part.style.width = 100 * n / p.total_bytes + "%"; bar.append(part); }
  const parts = [["free", p.free_bytes], ["quarantined", p.quarantined_bytes],
    ["lingering", p.lingering_bytes], ["held outside", p.held_outside_bytes]]
    .filter(([what, n]) => n || what === "free")
    .map(([what, n]) => bytes(n) + " " + what);
  const low = el("div", "row dim");
  low.append(el("span", "", sub), el("span", "", parts.join(", ")));
  card.append(top, bar, low); return card; }
function table(title, heads, rows, none) { let t = $(title);
  if (!t) { t = el("table"); t.id = title; const wide = el("div", "wide");
    wide.append(t); $("named").append(el("h2", "", title), wide); }
  t.replaceChildren(); const cell = (tag, v) => { const left =
    Array.isArray(v); return el(tag, left ? "text" : "", left ? v[0] : v); };
  if (!rows.length) { t.insertRow().append(el("td", "text dim", none)); return; }
  t.insertRow().append(...heads.map(v => cell("th", v)));
  for (const row of rows) t.insertRow().append(...row.map((v, i) => {
    const c = cell("td", v); c.title = [heads[i]].flat()[0]; return c; })); }
function show(s) {
  document.title = "sluiced on " + s.hostname;
  $("about").textContent = s.version + " on " + s.hostname + " · " + s.driver +
    (s.driver === "sim" ? " (simulated)" : "") + " · " + s.gpus.length +
    " GPUs · " + s.sessions + " sessions · up " + span(s.uptime_s);
  $("pools").replaceChildren(
    ...s.gpus.map(g => pool("GPU " + g.index,
      g.fault || g.name + " · " + g.link, g)),
    ...s.host.map(h => pool("Host, NUMA node " + h.numa, "pinned", h)));
  $("state").textContent = s.drained ? "drained by " + by(s.drained) +
    (s.drained.reason && " (" + s.drained.reason + ")") +
    ": nothing new is granted" : "";
  $("sums").hidden = Boolean(s.jobs); $("named").hidden = !s.jobs;
  if (!s.jobs) return;
  table("Jobs", [["job"], "user", "rank", "GPU", "GPU memory", "peak",
    "outside the lease", "host memory", "step", "loss", "tokens/s", "stall", "grant wait"],
    s.jobs.flatMap(j => j.ranks.map(r => [[j.name], j.uid, r.rank +
      (r.closed ? " (closed)" : ""), r.gpu, bytes(r.gpu_bytes),
      bytes(r.hbm_peak_bytes), bytes(r.outside_bytes), bytes(r.host_bytes), num(r.step, 0),
      num(r.loss, 4), num(r.tokens_per_second, 0),
      span(r.stall_seconds), span(r.grant_wait_seconds)])),
    "No job is attached.");
  table("Waiting", [["job"], "user", "rank", "for", ["of"], "since", "at most",
    ["lacks"]], s.waiting.map(w => [[w.job], w.uid, w.rank, bytes(w.bytes),
      [(w.pool === "gpu" ? "GPU " : "NUMA node ") + w.index],
      span(w.elapsed_s), span(w.deadline_in_s), [(w.lacks === "pool" ?
      "memory there" : "budget of its " + w.lacks) + (w.in_front ? ", " +
      w.in_front + " in front" : "")]]), "No lease waits.");
  table("Held without a session", ["process", ["command"], "user", "GPU memory",
    "host memory"], s.holders.map(h => [h.pid, [h.command], h.uid,
      bytes(h.gpu_bytes), bytes(h.host_bytes)]), "No process.");
  table("Copies", [["job"], "rank", "weight", "plan to the GPU",
    "plan from the GPU", "late to the GPU", "late from the GPU"],
    s.jobs.flatMap(j => j.ranks.map(r => [[j.name], r.rank, num(r.weight, 2),
      plan(r.plan_copies, "h2d"), plan(r.plan_copies, "d2h"),
      late(r.late, "h2d"), late(r.late, "d2h")])), "No job is attached.");
  table("Reservations", [["for user"], ["pool"], "memory", "not used yet",
    ["set by"]], s.reservations.map(r => [[user(r)], [r.pool + " " + r.index],
      bytes(r.bytes), bytes(r.withheld_bytes), [by(r)]]),
    "Nothing is reserved.");
  table("Limits", [["limit of"], "GPU", "host", ["set by"]], s.limits.map(l =>
    [[[l.of, l.job, l.uid, l.cgroup && "in " + l.cgroup].filter(x => x !==
      null).join(" ")], bytes(l.gpu_limit_bytes), bytes(l.host_limit_bytes),
      [l.set_by === "live" ? by(l) : l.set_by]]), "No limit is set.");
  table("Budgets in use", [["whose"], "user", "GPU used", "GPU limit", "host used",
    "host limit"], s.budgets.map(b => [[b.job === null ? "user " +
      user(b) : "job " + b.job], b.uid, bytes(b.gpu_used_bytes),
      bytes(b.gpu_limit_bytes), bytes(b.host_used_bytes),
      bytes(b.host_limit_bytes)]), "No user holds memory.");
  table("Plans", ["plan", ["job"], "solved in", "alpha", "GPU transient peak",
    "host a rank", ["says"]], s.plans.slice().reverse().map(p => [p.id,
      [p.job], span(p.seconds),
      p.ranks.map(r => num(r.alpha, 2)).join(", "),
      bytes(Math.max(0, ...p.ranks.map(r => r.transient_peak_bytes)) || null),
      bytes(Math.max(0, ...p.ranks.map(r => r.host_bytes))),
      [p.infeasible || "feasible"]]), "No plan was asked for.");
  table("Events", ["ago", ["kind"], ["what"]], s.events.slice(-40).reverse()
    .map(e => [span(e.age_s), [e.kind], [e.text]]), "Nothing happened yet.");
}
async function refresh() {
  try { const r = await fetch("status.json");
    if (r.ok) show(await r.json()); else $("state").textContent = await r.text();
  } catch (e) { $("state").textContent = "no answer from sluiced"; }
  setTimeout(refresh, 2000);
}
refresh();
</script></body></html>
)html";

}  // namespace

std::string_view StatusPage() { return kPage; }

}  // namespace sluice::daemon
