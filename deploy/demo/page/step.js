'use strict';
// One step of one rank: which block of HBM holds what at which time, and when
// compute and the two copy streams run. An overview with a window on it, and
// the window enlarged. Canvas, because there are tens of thousands of blocks.

const FAMILIES = [
  // [legend, pattern, light, dark]
  ['attention, off-diagonal block', /offdiagonal|off_diagonal/, '#2a6f97',
   '#5aa9d6'],
  ['attention, diagonal block', /diagonal|attention|merge/, '#61a5c2',
   '#9fd3ea'],
  ['qkv projection', /qkv|rope/, '#c8553d', '#e88468'],
  ['o projection, FFN', /post|ffn/, '#e0a63a', '#f0c069'],
  ['loss, embedding', /loss|embed/, '#8a5a9e', '#b98bcf'],
  ['staging', /^(stag|slot|ring)/, '#7aa68a', '#86bb99'],
  ['weights, gradients, optimizer, staging',
   /static|weight|state|grad|optim|model|^$/, '#b9b4a7', '#5b5f68'],
  ['other', /./, '#9aa0a8', '#7b828c'],
];

function familyOf(name) {
  return FAMILIES.findIndex((family) => family[1].test(name));
}

class StepView {
  constructor(trace) {
    this.trace = trace;
    const n = trace.compute.length;
    // About forty segments from the middle of the forward pass.
    const first = trace.compute[Math.floor(n * 0.2)];
    const last = trace.compute[Math.min(n - 1, Math.floor(n * 0.2) + 40)];
    this.window = [first[0], Math.max(last[1], first[0] + 1)];
    this.family = trace.names.map(familyOf);
    this.bind();
  }

  used() {
    const seen = new Set(this.trace.blocks.map((b) => this.family[b[4]]));
    this.trace.compute.forEach((c) => seen.add(this.family[c[2]]));
    return FAMILIES.filter((_, i) => seen.has(i));
  }

  color(id) {
    const dark = matchMedia('(prefers-color-scheme: dark)').matches;
    return FAMILIES[this.family[id]][dark ? 3 : 2];
  }

  begin(canvas, height) {
    const ratio = devicePixelRatio || 1, width = canvas.clientWidth;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.height = height + 'px';
    const pen = canvas.getContext('2d');
    pen.scale(ratio, ratio);
    pen.font = '12px ' + getComputedStyle(document.body).fontFamily;
    return [pen, width];
  }

  // Draws the blocks between `from` and `to` into a box of the canvas.
  map(pen, left, top, width, height, from, to, high) {
    pen.fillStyle = css('--panel');
    pen.fillRect(left, top, width, height);
    const sx = width / (to - from), sy = height / high;
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    for (const [offset, size, born, died, name] of this.trace.blocks) {
      if (died < from || born > to || offset >= high) continue;
      const x = left + (born - from) * sx, w = (died - born) * sx;
      const h = Math.max(size * sy, 0.5);
      pen.fillStyle = this.color(name);
      pen.fillRect(x, top + height - offset * sy - h, Math.max(w, 0.6), h);
      if (w > 7 && h > 7) {
        pen.strokeStyle = css('--panel');
        pen.lineWidth = 1;
        pen.strokeRect(x, top + height - offset * sy - h, w, h);
      }
    }
    pen.restore();
    pen.strokeStyle = css('--rule');
    pen.lineWidth = 1;
    pen.strokeRect(left + 0.5, top + 0.5, width - 1, height - 1);
  }

  // The enlarged map shows the planned area alone where it is a small part.
  detailBytes() {
    const {planned_bytes: planned, hbm_bytes: all} = this.trace;
    return planned > 0 && planned < all / 3 ? planned : all;
  }

  axis(pen, top, height, high) {
    pen.fillStyle = css('--soft');
    pen.textAlign = 'right';
    pen.fillText(bytes(high), 68, top + 10);
    pen.fillText('0', 68, top + height - 1);
    const planned = height * this.trace.planned_bytes / high;
    if (planned > 14 && planned < height - 24) {
      pen.fillText('planned', 68, top + height - planned + 4);
    }
  }

  plannedLine(pen, left, top, width, height, high) {
    if (this.trace.planned_bytes >= high) return;
    const y = top + height - height * this.trace.planned_bytes / high;
    pen.strokeStyle = css('--soft');
    pen.setLineDash([4, 4]);
    pen.beginPath();
    pen.moveTo(left, y);
    pen.lineTo(left + width, y);
    pen.stroke();
    pen.setLineDash([]);
  }

  draw() {
    this.drawOverview();
    this.drawDetail();
  }

  drawOverview() {
    const canvas = byId('overview'), height = 150;
    const [pen, width] = this.begin(canvas, height);
    const left = 76, plot = width - left - 2;
    // The map is drawn once for each size; moving the window only copies it.
    const key = [canvas.width, css('--panel')].join();
    if (this.overviewKey !== key) {
      this.overviewKey = key;
      this.overviewImage = document.createElement('canvas');
      this.overviewImage.width = canvas.width;
      this.overviewImage.height = canvas.height;
      const copy = this.overviewImage.getContext('2d');
      copy.scale(devicePixelRatio || 1, devicePixelRatio || 1);
      this.map(copy, left, 0, plot, height, 0, this.trace.micros,
               this.trace.hbm_bytes);
    }
    pen.drawImage(this.overviewImage, 0, 0, width, height);
    this.axis(pen, 0, height, this.trace.hbm_bytes);
    this.plannedLine(pen, left, 0, plot, height, this.trace.hbm_bytes);
    const scale = plot / this.trace.micros;
    const x0 = left + this.window[0] * scale;
    const x1 = Math.max(left + this.window[1] * scale, x0 + 3);
    pen.fillStyle = css('--paper');
    pen.globalAlpha = 0.35;
    pen.fillRect(left, 0, x0 - left, height);
    pen.fillRect(x1, 0, left + plot - x1, height);
    pen.globalAlpha = 1;
    pen.strokeStyle = css('--ink');
    pen.lineWidth = 1.5;
    pen.strokeRect(x0, 0.75, x1 - x0, height - 1.5);
    this.overviewScale = {left, scale};
  }

  drawDetail() {
    const canvas = byId('detail'), mapHeight = 270, lane = 26, gap = 8;
    const [pen, width] = this.begin(canvas, mapHeight + 3 * (lane + gap) + 30);
    const left = 76, plot = width - left - 2, [from, to] = this.window;
    const high = this.detailBytes();
    this.map(pen, left, 0, plot, mapHeight, from, to, high);
    this.axis(pen, 0, mapHeight, high);
    this.plannedLine(pen, left, 0, plot, mapHeight, high);
    const lanes = [['compute', this.trace.compute], ['to GPU', this.trace.h2d],
                   ['to host', this.trace.d2h]];
    const scale = plot / (to - from);
    this.lanes = lanes.map(([label, events], i) => {
      const top = mapHeight + gap + i * (lane + gap);
      pen.fillStyle = css('--soft');
      pen.textAlign = 'right';
      pen.fillText(label, 68, top + 17);
      pen.fillStyle = css('--panel');
      pen.fillRect(left, top, plot, lane);
      this.drawLane(pen, events, i, {left, top, plot, lane, from, to, scale});
      return {label, events, top, bottom: top + lane};
    });
    this.timeAxis(pen, left, plot, mapHeight + 3 * (lane + gap) + gap);
    this.detailScale = {left, plot, mapHeight, from, scale};
    const area = high < this.trace.hbm_bytes ?
        `the planned area (${bytes(high)}) during ` : '';
    byId('detail-title').textContent =
        `Enlarged: ${area}${((to - from) / 1000).toFixed(1)} ms of ` +
        `${(this.trace.micros / 1e6).toFixed(2)} s, with compute and both ` +
        'copy streams';
  }

  drawLane(pen, events, index, box) {
    pen.save();
    pen.beginPath();
    pen.rect(box.left, box.top, box.plot, box.lane);
    pen.clip();
    for (const event of events) {
      if (event[1] < box.from || event[0] > box.to) continue;
      const x = box.left + (event[0] - box.from) * box.scale;
      const w = Math.max((event[1] - event[0]) * box.scale, 1);
      pen.fillStyle = index === 0 ? this.color(event[2]) : css('--sluice');
      pen.fillRect(x, box.top, w > 3 ? w - 1 : w, box.lane);
    }
    pen.restore();
  }

  timeAxis(pen, left, plot, top) {
    const [from, to] = this.window, step = niceStep((to - from) / 1000, 6);
    pen.fillStyle = css('--soft');
    pen.textAlign = 'center';
    for (let ms = Math.ceil(from / 1000 / step) * step; ms * 1000 < to;
         ms += step) {
      const x = left + (ms * 1000 - from) * plot / (to - from);
      if (x > left + 12 && x < left + plot - 24) {
        pen.fillText(+ms.toFixed(3) + ' ms', x, top + 12);
      }
    }
  }

  bind() {
    const overview = byId('overview');
    let drag = null;
    const at = (event) => (event.offsetX - this.overviewScale.left) /
        this.overviewScale.scale;
    const near = (event, time) =>
      Math.abs(at(event) - time) * this.overviewScale.scale < 6;
    overview.addEventListener('pointerdown', (event) => {
      const [from, to] = this.window, wide = to - from;
      const grip = near(event, to) ? 'end' : near(event, from) ? 'start' :
          'move';
      drag = {grip, wide, offset: at(event) - from};
      if (grip === 'move' && (at(event) < from || at(event) > to)) {
        drag.offset = wide / 2;
      }
      overview.setPointerCapture(event.pointerId);
      this.move(drag, at(event));
    });
    overview.addEventListener('pointermove', (event) => {
      overview.style.cursor = near(event, this.window[0]) ||
          near(event, this.window[1]) ? 'ew-resize' : 'grab';
      if (drag) this.move(drag, at(event));
    });
    overview.addEventListener('pointerup', () => { drag = null; });
    const detail = byId('detail');
    detail.addEventListener('pointermove', (event) =>
      showTip(event, this.describe(event.offsetX, event.offsetY)));
    detail.addEventListener('pointerleave', (event) => showTip(event, ''));
  }

  move(drag, time) {
    const end = this.trace.micros, least = end / 5000;
    let [from, to] = this.window;
    if (drag.grip === 'start') {
      from = Math.min(Math.max(0, time), to - least);
    } else if (drag.grip === 'end') {
      to = Math.max(Math.min(end, time), from + least);
    } else {
      from = Math.min(Math.max(0, time - drag.offset), end - drag.wide);
      to = from + drag.wide;
    }
    this.window = [from, to];
    this.draw();
  }

  describe(x, y) {
    const box = this.detailScale, time = box.from + (x - box.left) / box.scale;
    if (x < box.left) return '';
    const names = this.trace.names;
    const ms = (v) => (v / 1000).toFixed(2) + ' ms';
    if (y < box.mapHeight) {
      const address = (box.mapHeight - y) / box.mapHeight *
          this.detailBytes();
      const hit = this.trace.blocks.findLast((b) => b[0] <= address &&
          address < b[0] + b[1] && b[2] <= time && time <= b[3]);
      return hit ? `${names[hit[4]]}<br>${bytes(hit[1])} at ` +
          `${bytes(hit[0])}<br>held ${ms(hit[3] - hit[2])}` : '';
    }
    const lane = this.lanes.find((l) => l.top <= y && y < l.bottom);
    const event = lane &&
        lane.events.find((e) => e[0] <= time && time <= e[1]);
    if (!event) return '';
    const moved = event.length > 3 ? `<br>${bytes(event[3])}, ` +
        `${(event[3] / Math.max(1, event[1] - event[0]) / 1e3).toFixed(2)} ` +
        `GB/s<br>asked ${ms(event[0] - event[4])} before it began` : '';
    return `${names[event[2]]}<br>${ms(event[1] - event[0])}${moved}`;
  }
}
