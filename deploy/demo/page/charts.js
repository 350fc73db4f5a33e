'use strict';
// Small SVG charts: bars on a log axis, lines, stacked columns. No library.

const NS = 'http' + '://www.w3.org/2000/svg';
const WIDTH = 956;

const css = (name) =>
    getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const byId = (id) => document.getElementById(id);
const count = (n) => Math.round(n).toLocaleString('en-US');
const bytes = (n) => {
  for (const [unit, size] of [['GiB', 2 ** 30], ['MiB', 2 ** 20],
                              ['KiB', 2 ** 10]]) {
    if (n >= size) return (n / size).toFixed(n >= 100 * size ? 0 : 1) +
        ' ' + unit;
  }
  return Math.round(n) + ' B';
};

function add(parent, tag, attributes = {}, text = '') {
  const node = document.createElementNS(NS, tag);
  for (const [key, value] of Object.entries(attributes)) {
    node.setAttribute(key, value);
  }
  if (text !== '') node.textContent = text;
  parent.append(node);
  return node;
}

function chart(id, height, label) {
  const holder = byId(id);
  holder.replaceChildren();
  return add(holder, 'svg', {
    viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': label,
  });
}

function legend(id, entries) {
  byId(id).innerHTML = entries.map(
      ([name, color]) => `<span><i style="background:${color}"></i>${name}` +
          '</span>').join('');
}

function showTip(event, html) {
  const tip = byId('tip');
  tip.style.display = html ? 'block' : 'none';
  if (!html) return;
  tip.innerHTML = html;
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  tip.style.left = left + 'px';
  tip.style.top = event.clientY + 16 + 'px';
}

// rows: [{name, value, color, note}]; a bar each, on a log axis of powers of 2.
function logBars(id, rows, label) {
  const left = 104, right = 196, row = 50;
  const svg = chart(id, rows.length * row + 28, label);
  const values = rows.map((r) => Math.max(1, r.value));
  const low = Math.floor(Math.log2(Math.min(...values))) - 1;
  const high = Math.ceil(Math.log2(Math.max(...values)) + 0.05);
  const x = (v) => left + (WIDTH - left - right) *
      (Math.log2(Math.max(v, 2 ** low)) - low) / (high - low);
  for (let power = low; power <= high; ++power) {
    add(svg, 'line', {x1: x(2 ** power), x2: x(2 ** power), y1: 0,
                      y2: rows.length * row, class: 'grid'});
    add(svg, 'text', {x: x(2 ** power), y: rows.length * row + 20,
                      'text-anchor': 'middle'},
        2 ** power >= 1024 ? 2 ** power / 1024 + 'K' : 2 ** power);
  }
  rows.forEach((r, i) => {
    const y = i * row + 10;
    add(svg, 'text', {x: 0, y: y + 20, class: 'strong'}, r.name);
    add(svg, 'rect', {x: left, y, width: Math.max(2, x(r.value) - left),
                      height: 30, rx: 3, fill: r.color});
    add(svg, 'text', {x: x(r.value) + 10, y: y + 14, class: 'strong'},
        count(r.value) + ' tokens');
    add(svg, 'text', {x: x(r.value) + 10, y: y + 30}, r.note);
  });
}

// Returns a round step for an axis of `span`, in binary units.
function niceBytes(span, parts) {
  const unit = 2 ** (10 * Math.max(0, Math.floor(Math.log2(span) / 10)));
  return niceStep(span / unit, parts) * unit;
}

function niceStep(span, parts) {
  const raw = span / parts, base = 10 ** Math.floor(Math.log10(raw));
  return base * [1, 2, 5, 10].find((m) => m * base >= raw);
}

// lines: [{name, color, width, opacity, points: [[x, y]]}].
// options: height, log, zero, bytes (binary ticks), xName, yFormat, xFormat,
// tipFormat, target, targetName.
function lineChart(id, lines, options) {
  const left = 64, right = 12, top = 10, height = options.height || 280;
  const svg = chart(id, height + 42, options.label);
  const points = lines.flatMap((l) => l.points);
  if (!points.length) return;
  const xs = points.map((p) => p[0]), ys = points.map((p) => p[1]);
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1e-9);
  const scale = options.log ? Math.log10 : (v) => v;
  const positive = ys.filter((v) => v > 0);
  let y0, y1, ticks = [];
  if (options.log) {
    y0 = Math.floor(Math.log10(Math.min(...positive, options.target || 1)));
    y1 = Math.ceil(Math.log10(Math.max(...positive, options.target || 0)));
    for (let p = y0; p <= y1; ++p) ticks.push(10 ** p);
  } else {
    const base = options.zero ? 0 : Math.min(...ys);
    const step = (options.bytes ? niceBytes : niceStep)(
        Math.max(...ys) - base || 1, 4);
    y0 = Math.floor(base / step) * step;
    y1 = Math.ceil(Math.max(...ys) / step) * step || step;
    for (let v = y0; v <= y1 + step / 2; v += step) ticks.push(v);
  }
  const x = (v) => left + (WIDTH - left - right) * (v - x0) / (x1 - x0);
  const y = (v) => top + height -
      height * (scale(v) - y0) / ((y1 - y0) || 1);
  const yFormat = options.yFormat || ((v) => +v.toFixed(3));
  for (const tick of ticks) {
    add(svg, 'line', {x1: left, x2: WIDTH - right, y1: y(tick), y2: y(tick),
                      class: 'grid'});
    add(svg, 'text', {x: left - 10, y: y(tick) + 4, 'text-anchor': 'end'},
        yFormat(tick));
  }
  const xStep = options.xName === 'step' ?
    Math.max(1, niceStep(x1 - x0, 8)) : niceStep(x1 - x0, 8);
  for (let v = Math.ceil(x0 / xStep) * xStep; v <= x1; v += xStep) {
    add(svg, 'text', {x: x(v), y: top + height + 22, 'text-anchor': 'middle'},
        (options.xFormat || count)(v));
  }
  add(svg, 'text', {x: WIDTH - right, y: top + height + 40,
                    'text-anchor': 'end'}, options.xName);
  if (options.target) {
    add(svg, 'line', {x1: left, x2: WIDTH - right, y1: y(options.target),
                      y2: y(options.target), class: 'target'});
    add(svg, 'text', {x: WIDTH - right, y: y(options.target) - 7,
                      'text-anchor': 'end'}, options.targetName);
  }
  for (const line of lines) {
    const seen = line.points.filter((p) => !options.log || p[1] > 0);
    if (!seen.length) continue;
    const path = 'M' + seen.map((p) => `${x(p[0]).toFixed(1)} ` +
        y(p[1]).toFixed(1)).join('L');
    add(svg, 'path', {d: path, fill: 'none', stroke: line.color,
                      'stroke-width': line.width || 2,
                      'stroke-opacity': line.opacity || 1,
                      'stroke-linejoin': 'round', 'stroke-linecap': 'round'});
  }
  const cursor = add(svg, 'line', {y1: top, y2: top + height, class: 'grid',
                                   visibility: 'hidden'});
  svg.addEventListener('pointermove', (event) => {
    const box = svg.getBoundingClientRect();
    const at = x0 + (x1 - x0) * ((event.clientX - box.left) / box.width *
        WIDTH - left) / (WIDTH - left - right);
    const rows = lines.map((line) => {
      const near = line.points.reduce((a, b) =>
        Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
      return [line, near];
    });
    const shown = rows[0][1][0];
    cursor.setAttribute('x1', x(shown));
    cursor.setAttribute('x2', x(shown));
    cursor.setAttribute('visibility', 'visible');
    showTip(event, `${options.xName} ${(options.xFormat || count)(shown)}` +
        rows.map(([l, p]) => `<br>${l.name}: ` +
            (options.tipFormat || yFormat)(p[1])).join(''));
  });
  svg.addEventListener('pointerleave', (event) => {
    cursor.setAttribute('visibility', 'hidden');
    showTip(event, '');
  });
}

// columns: [[x, [part, part, …]]]; parts stacked in the order of colors.
function stackedColumns(id, columns, colors, names, options) {
  const left = 64, right = 12, top = 8, height = options.height || 180;
  const svg = chart(id, height + 42, options.label);
  const most = Math.max(...columns.map((c) => c[1].reduce((a, b) => a + b)));
  const step = niceStep(most || 1, 4);
  const y1 = Math.ceil(most / step) * step || step;
  const y = (v) => top + height - height * v / y1;
  for (let v = 0; v <= y1 + step / 2; v += step) {
    add(svg, 'line', {x1: left, x2: WIDTH - right, y1: y(v), y2: y(v),
                      class: 'grid'});
    add(svg, 'text', {x: left - 10, y: y(v) + 4, 'text-anchor': 'end'},
        options.yFormat(v));
  }
  const slot = (WIDTH - left - right) / columns.length;
  const gap = Math.min(slot * 0.2, 10);
  columns.forEach(([label, parts], i) => {
    let base = 0;
    const group = add(svg, 'g');
    parts.forEach((part, k) => {
      add(group, 'rect', {
        x: left + i * slot + gap / 2, y: y(base + part), fill: colors[k],
        width: slot - gap, height: Math.max(0, y(base) - y(base + part)),
      });
      base += part;
    });
    if (columns.length <= 12 || label % 10 === 0 || label === 1) {
      add(svg, 'text', {x: left + (i + 0.5) * slot, y: top + height + 22,
                        'text-anchor': 'middle'}, label);
    }
    group.addEventListener('pointermove', (event) => showTip(
        event, `step ${label}` + parts.map(
            (p, k) => `<br>${names[k]}: ${options.tipFormat(p)}`).join('')));
    group.addEventListener('pointerleave', (event) => showTip(event, ''));
  });
  add(svg, 'text', {x: WIDTH - right, y: top + height + 40,
                    'text-anchor': 'end'}, options.xName);
}
