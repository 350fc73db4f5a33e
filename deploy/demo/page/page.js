'use strict';
// Fills the page from the data that the demo embedded.

const DATA = JSON.parse(byId('data').textContent);
const METHODS = ['keep-all', 'recompute', 'alst', 'sluice'];
const WHY = {
  gpu_memory: 'HBM is full', host_memory: 'the host budget is spent',
  none: 'no limit was met',
};

function head() {
  const {facts} = DATA;
  // The ratio to the best of the other methods.
  byId('ratio').innerHTML =
      facts.sluice_over_alst.toFixed(1) + '<small>×</small>';
  byId('claim').textContent = `Sluice trains on ` +
      `${count(facts.methods.sluice.max_seq_len)} tokens where ALST’s ` +
      `practice stops at ${count(facts.methods.alst.max_seq_len)} and full ` +
      `recomputation at ${count(facts.methods.recompute.max_seq_len)}` +
      ', with the same simulated GPU memory, host budget and loss.';
  const met = (ok) => ok ? 'met' : 'missed';
  const rows = [
    ['GPUs', `${facts.gpus} × ${bytes(facts.hbm_bytes_per_gpu)}`],
    ['Host memory', bytes(facts.host_budget_bytes)],
    ['Sluice / recompute, at least 3×', facts.sluice_over_recompute.toFixed(1) +
        '×', met(facts.sluice_over_recompute >= 3)],
    ['Sluice / alst, at least 1.4×', facts.sluice_over_alst.toFixed(1) + '×',
     met(facts.sluice_over_alst >= 1.4)],
    ['Losses apart, at most 10⁻³',
     facts.parity.max_abs_loss_diff.toExponential(1),
     met(facts.parity.max_abs_loss_diff <= 1e-3)],
    ['Scraped by Prometheus', facts.prometheus_scraped ? 'yes' : 'no',
     met(facts.prometheus_scraped)],
  ];
  byId('facts').innerHTML = rows.map(([name, value, mark]) =>
    `<div><dt>${name}</dt><dd class="${mark || ''}">${value}</dd></div>`)
      .join('');
}

function lengths() {
  const {methods} = DATA.facts;
  byId('length-note').textContent = 'Found by running: doubling, then ' +
      'bisecting to a sixteenth. The axis is logarithmic. All four run ' +
      'Ulysses, flash attention and a chunked loss in the same leased ' +
      'memory, with the same host budget; keep-all keeps every activation, ' +
      'recompute only the layers’ inputs; alst (Arctic Long Sequence ' +
      'Training) sends those to the host and tiles all but attention.';
  logBars('lengths', METHODS.map((name) => ({
    name, value: methods[name].max_seq_len, color: css('--' + name),
    note: WHY[methods[name].limited_by] || methods[name].limited_by,
  })), 'Longest sequence by method');
  byId('table').innerHTML = '<tr><th></th><th>longest</th>' +
      '<th>HBM peak per GPU</th><th>host memory in all</th><th>a step</th>' +
      '<th>tokens/s</th><th>refused at</th></tr>' + METHODS.map((name) => {
    const m = methods[name];
    return `<tr><td>${name}</td><td>${count(m.max_seq_len)}</td>` +
        `<td>${bytes(m.peak_hbm_bytes)}</td><td>${bytes(m.host_bytes)}</td>` +
        `<td>${m.seconds_per_step.toFixed(2)} s</td>` +
        `<td>${count(m.tokens_per_second)}</td>` +
        `<td>${m.refused_at ? count(m.refused_at) : '–'}</td></tr>`;
  }).join('');
}

function desk() {
  const {question, methods, verdict} = DATA.facts.desk;
  const gb = (v) => count(Math.round(v / 1e9)) + ' GB';
  byId('desk-note').textContent = `What the cost model says of ` +
      `${question.model} on ${question.gpus} × ${question.hardware}: ` +
      'estimated, not run. ulysses is DeepSpeed-Ulysses with full ' +
      'recomputation. ' + verdict;
  byId('desk-table').innerHTML = '<tr><th></th><th>longest</th>' +
      '<th>MFU at 1M tokens</th><th>of a GPU</th><th>host per node</th>' +
      '<th>stopped by</th></tr>' + Object.entries(methods).map(([name, a]) =>
    `<tr><td>${name}</td><td>${count(a.max_seq_len)}</td>` +
    `<td>${a.mfu_at_1m === null ? 'does not fit' :
      (100 * a.mfu_at_1m).toFixed(1) + ' %'}</td>` +
    `<td>${gb(a.gpu_bytes)}</td><td>${gb(a.host_bytes_per_node)}</td>` +
    `<td>${WHY[a.stopped_by] || a.stopped_by}</td></tr>`).join('');
}

function losses() {
  const {parity} = DATA.facts;
  byId('loss-note').textContent = `${parity.steps} steps at ` +
      `${count(parity.seq_len)} tokens, the same data, seed and learning ` +
      'rate. The curves lie on top of each other, so they are drawn from ' +
      'wide to narrow.' + METHODS.slice(1).map((m) =>
        DATA.losses[m].every((v, i) => v === DATA.losses['keep-all'][i]) ?
          ` ${m} equals keep-all to the last bit.` : '').join('');
  const shape = {'keep-all': [9, 0.45], 'recompute': [5, 0.75],
                 'alst': [3, 0.9], 'sluice': [1.8, 1]};
  legend('loss-legend', METHODS.map((m) => [m, css('--' + m)]));
  lineChart('losses', METHODS.map((name) => ({
    name, color: css('--' + name), width: shape[name][0],
    opacity: shape[name][1],
    points: DATA.losses[name].map((v, i) => [i + 1, v]),
  })), {label: 'Loss by step', xName: 'step',
        tipFormat: (v) => v.toFixed(6)});
  lineChart('differences', METHODS.slice(1).map((name) => ({
    name, color: css('--' + name), width: 2,
    points: DATA.losses[name].map(
        (v, i) => [i + 1, Math.abs(v - DATA.losses['keep-all'][i])]),
  })), {label: 'Difference of losses by step', xName: 'step', log: true,
        height: 170, target: 1e-3, targetName: 'limit 1e-3',
        yFormat: (v) => v.toExponential(0),
        tipFormat: (v) => v.toExponential(2)});
}

let view = null;

// Returns where each class of a layer's tensors waits for backward, in words.
function whatBecomesOf(fractions) {
  const share = (part) => part >= 1 ? '' : ` (${(100 * part).toFixed(1)} %)`;
  const list = (key) => Object.entries(fractions)
      .filter(([, f]) => f[key] > 0.0005)
      .map(([name, f]) => name.replaceAll('_', ' ') + share(f[key])).join(', ');
  const places = [['keep', 'on the GPU'], ['swap', 'in host memory'],
    ['recompute', 'computed again']];
  const said = places.filter(([key]) => list(key))
      .map(([key, place]) => `${place}: ${list(key)}`).join('; ');
  return said && `For backward, ${said}.`;
}

function step() {
  const {trace, facts, plan} = DATA;
  if (!trace.compute || !trace.compute.length) {
    byId('step').remove();
    return;
  }
  view = view || new StepView(trace);
  const shown = trace.blocks.length < trace.blocks_all ?
      ` (${count(trace.blocks.length)} of them drawn)` : '';
  byId('step-note').textContent =
      `Rank 0, ${count(facts.methods.sluice.max_seq_len)} tokens in chunks ` +
      `of ${facts.settings.chunk}: ${count(trace.compute.length)} segments ` +
      `and ${count(trace.blocks_all)} blocks${shown} in ` +
      `all, ${count(plan.mismatches || 0)} requests off plan. ` +
      (trace.compute_is_derived ?
        'When a segment ran is read off its blocks. ' : '') +
      whatBecomesOf(DATA.fractions);
  legend('step-legend', view.used().map((family) => [
    family[0], family[matchMedia('(prefers-color-scheme: dark)').matches ?
      3 : 2]]));
  view.draw();
}

function waits() {
  const {steps} = DATA;
  const sum = (key) => steps.reduce((total, s) => total + s[key], 0);
  byId('wait-note').textContent = `Sluice’s steps of ` +
      `${count(DATA.facts.parity.seq_len)} tokens on rank 0. Stall is time ` +
      'in which compute waited for a copy; grant waits are copies waiting ' +
      'for their share of the link, beside compute. ' +
      `${bytes(sum('h2d_bytes'))} went to the GPU and ` +
      `${bytes(sum('d2h_bytes'))} to the host.`;
  const names = ['compute', 'stall'];
  const colors = [css('--keep-all'), css('--recompute')];
  const milliseconds = (v) => (v * 1000).toFixed(2) + ' ms';
  legend('wait-legend', names.map((n, i) => [n, colors[i]]));
  stackedColumns('waits', steps.map((s) => [s.step, [
    Math.max(0, s.seconds - s.stall_seconds), s.stall_seconds]]), colors,
  names, {label: 'Seconds by step', xName: 'step',
          yFormat: (v) => +v.toFixed(4) + ' s', tipFormat: milliseconds});
  if (sum('grant_wait_seconds') === 0) {
    byId('grants').textContent = 'None waited: no rank used up its share.';
    return;
  }
  lineChart('grants', [{
    name: 'grant wait', color: css('--sluice'),
    points: steps.map((s) => [s.step, s.grant_wait_seconds])}], {
    label: 'Grant waits by step', xName: 'step', height: 110, zero: true,
    yFormat: milliseconds});
}

function series() {
  const holder = byId('series');
  holder.replaceChildren();
  const groups = new Map();
  for (const one of DATA.series) {
    if (!one.values.some((v) => v[1] > 0)) continue;
    if (!groups.has(one.name)) groups.set(one.name, []);
    groups.get(one.name).push(one);
  }
  const palette = ['--sluice', '--recompute', '--keep-all', '--accent'];
  let number = 0;
  for (const [name, members] of groups) {
    const rate = name.endsWith('_total'), id = 'series-' + number++;
    const lines = members.slice(0, 8).map((one, i) => ({
      name: Object.entries(one.labels).filter(([k]) => k !== 'job')
          .map(([, v]) => v).join(' ') || name,
      color: css(palette[i % palette.length]), width: 1.6,
      opacity: i < 4 ? 1 : 0.6,
      points: rate ? rates(one.values) : since(one.values),
    }));
    if (lines.every((l) => l.points.length < 2)) continue;
    holder.insertAdjacentHTML('beforeend', `<h3><code>${name}</code>` +
        `${rate ? ', per second' : ''}</h3><div class="legend" ` +
        `id="${id}-legend"></div><div id="${id}"></div>`);
    legend(id + '-legend', lines.map((l) => [l.name, l.color]));
    lineChart(id, lines, {
      label: name, height: 110, zero: true, bytes: true,
      xName: 'seconds of the demo',
      yFormat: (v) => bytes(v) + (rate ? '/s' : '')});
  }
}

const since = (values) => values.map(([t, v]) => [t - start(), v]);
const rates = (values) => values.slice(1).map(([t, v], i) => [
  t - start(), Math.max(0, v - values[i][1]) / (t - values[i][0] || 1)]);
const start = () => Math.min(...DATA.series.map((s) => s.values[0][0]));

function foot() {
  const s = DATA.facts.settings;
  byId('footer').innerHTML = `Made by <code>./dev demo</code> in ` +
      `${count(DATA.facts.seconds)} s; every figure is in ` +
      `<code>report.json</code>. Model: ${s.arch}, ${s.layers} layers, ` +
      `hidden ${s.hidden}, ${s.heads} heads, FFN ${s.ffn}, ${s.dtype}, ` +
      `${s.ranks} ranks; links ${s.link_bytes_per_s / 1e9} GB/s each way.` +
      `<details><summary>${DATA.metrics.length} metrics seen by Prometheus` +
      `</summary>${DATA.metrics.map((m) => `<code>${m}</code>`).join(' ')}` +
      '</details>';
}

function drawAll() {
  const parts = [head, lengths, desk, losses, step, waits, series, foot];
  for (const part of parts) part();
}
drawAll();
addEventListener('resize', () => view && view.draw());
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', drawAll);
