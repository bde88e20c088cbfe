// Swim lanes, throughput and what is in flight, over one axis of time.
const GUTTER = 130, LANE = 34, AXIS = 22;
const timeline = byId('timeline'), throughput = byId('throughput'), flight = byId('flight');
const total = Math.max(meta.summary.seconds, 1e-6);

const xOf = (t, width) => GUTTER + (t - state.begin) / (state.end - state.begin) * (width - GUTTER - 8);
const timeAt = (x, width) => state.begin + (x - GUTTER) / (width - GUTTER - 8) * (state.end - state.begin);

function showSpan(begin, end) {
  const least = 1e-7;
  let width = Math.min(Math.max(end - begin, least), total * 1.04);
  const from = Math.min(Math.max(begin, -0.02 * total), total * 1.02 - width);
  state.begin = from;
  state.end = from + width;
  byId('span').textContent = timeText(Math.max(0, from), width) + ' to ' +
    timeText(Math.min(total, from + width), width) + ' of ' + timeText(total, Math.min(total, 1));
  redraw();
}
const zoom = (factor, around) => {
  const middle = around === undefined ? (state.begin + state.end) / 2 : around;
  showSpan(middle - (middle - state.begin) * factor, middle + (state.end - middle) * factor);
};
const move = (part) => {
  const by = (state.end - state.begin) * part;
  showSpan(state.begin + by, state.end + by);
};
const fitAll = () => showSpan(-0.01 * total, total * 1.01);

function grid(context, width, height, labels) {
  const span = state.end - state.begin;
  let step = 10 ** Math.floor(Math.log10(span / 4));
  if (span / step > 20) step *= 5; else if (span / step > 8) step *= 2;
  context.strokeStyle = state.ink.grid;
  context.fillStyle = state.ink.dim;
  context.textAlign = 'center';
  for (let k = Math.ceil(state.begin / step); k * step < state.end; k++) {
    const x = xOf(k * step, width);
    if (x < GUTTER) continue;
    context.beginPath();
    context.moveTo(x, 0);
    context.lineTo(x, height);
    context.stroke();
    if (labels) context.fillText(timeText(k * step, step), x, height - AXIS / 2);
  }
  context.textAlign = 'left';
}

// indices that may touch the span shown
function* shownFrames() {
  const time = frames.time, first = frames.first;
  let i = frames.ordered ? lowerBound(time, state.begin) : 0, behind = 0;
  for (; i < frames.count; i++) {
    if (first[i] > state.end) {
      if (frames.ordered && ++behind > 500) return;
      continue;
    }
    if (time[i] >= state.begin && !state.hidden.has(frames.type[i])) yield i;
  }
}

function drawTimeline() {
  const lanes = meta.nodes.length;
  const [context, width, height] = surface(timeline, Math.max(1, lanes) * LANE + AXIS + 6);
  grid(context, width, height, true);
  for (let lane = 0; lane < lanes; lane++) {
    const y = lane * LANE + 6;
    context.fillStyle = state.ink.ink;
    context.fillText(fitted(context, nodeName(lane), GUTTER - 14), 6, y + LANE / 2 - 3);
    context.strokeStyle = state.ink.line;
    context.strokeRect(GUTTER, y - 3 + LANE, width - GUTTER, 0.01);
  }
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, width - GUTTER, height - AXIS);
  context.clip();
  for (const [lane, begin, passed, end] of meta.spans) {
    if (end < state.begin || begin > state.end) continue;
    const y = lane * LANE + 6 + LANE - 11;
    const a = xOf(begin, width), b = xOf(passed, width), c = xOf(end, width);
    context.fillStyle = state.ink.wait;
    context.fillRect(b, y, Math.max(c - b, 0), 6);
    context.fillStyle = state.ink.busy;
    context.fillRect(a, y, Math.max(b - a, 0.7), 6);
  }
  const last = new Int32Array(Math.max(1, lanes) * (meta.types.length + 1)).fill(-1);
  const few = [];
  for (const i of shownFrames()) {
    const lane = frames.source[i], type = frames.type[i];
    const a = xOf(frames.first[i], width), b = xOf(frames.time[i], width);
    const key = lane * (meta.types.length + 1) + type, pixel = Math.round(b);
    if (few.length < 400) few.push(i);
    if (last[key] === pixel && b - a < 1.5) continue;
    last[key] = pixel;
    context.fillStyle = colorOf(type);
    const left = Math.floor(a); // whole pixels: half covered ones would fade
    context.fillRect(left, lane * LANE + 8, Math.max(Math.round(b) - left, 1), LANE - 21);
    if (frames.flags[i] & PROBLEM) {
      context.fillStyle = state.ink.bad;
      context.fillRect(b - 2, lane * LANE + 4, 4, 4);
    }
  }
  if (few.length < 400) {
    for (const i of few) {
      const x = xOf(frames.time[i], width), from = frames.source[i], to = frames.target[i];
      context.strokeStyle = colorOf(frames.type[i]);
      context.globalAlpha = 0.45;
      context.beginPath();
      context.moveTo(x, from * LANE + 14);
      context.lineTo(x, to * LANE + 14);
      context.stroke();
      context.globalAlpha = 1;
    }
  }
  if (state.chosen >= 0) {
    const i = state.chosen, x = xOf(frames.first[i], width);
    context.strokeStyle = state.ink.mark;
    context.lineWidth = 2;
    context.strokeRect(x - 3, frames.source[i] * LANE + 4,
      Math.max(xOf(frames.time[i], width) - x, 1) + 6, LANE - 13);
    context.lineWidth = 1;
  }
  context.restore();
}

function drawChart(canvas, lines, unit, title) {
  const [context, width, height] = surface(canvas, 84);
  grid(context, width, height, false);
  const bin = meta.series.width;
  const from = Math.max(0, Math.floor(state.begin / bin));
  const to = Math.min(meta.series.frames.length, Math.ceil(state.end / bin) + 1);
  let top = 0;
  for (const [, values] of lines) for (let i = from; i < to; i++) top = Math.max(top, values[i]);
  context.fillStyle = state.ink.dim;
  context.fillText(title, 6, 14);
  context.fillText(unit(top), 6, 32);
  context.save();
  context.beginPath();
  context.rect(GUTTER, 0, width - GUTTER, height);
  context.clip();
  for (const [color, values] of lines) {
    context.strokeStyle = color;
    context.beginPath();
    for (let i = from; i < to; i++) {
      const y = height - 3 - (top ? values[i] / top : 0) * (height - 10);
      context.lineTo(xOf(i * bin, width), y);
      context.lineTo(xOf((i + 1) * bin, width), y);
    }
    context.stroke();
  }
  context.restore();
}

const byteLines = Object.entries(meta.series.bytes).map(
  ([lane, values]) => [colorOf(Number(lane)), values]);
const drawThroughput = () => drawChart(throughput, byteLines,
  (top) => sizeText(Math.round(top / meta.series.width)) + '/s', 'sent by lane');
const drawFlight = () => drawChart(flight, [[state.ink.mark, meta.series.in_flight]],
  (top) => String(top), 'in flight');

// the frame under a point of the timeline, or -1
function frameAt(x, y, width) {
  const lane = Math.floor((y - 3) / LANE);
  let best = -1, distance = 6;
  for (const i of shownFrames()) {
    if (frames.source[i] !== lane) continue;
    const a = xOf(frames.first[i], width), b = xOf(frames.time[i], width);
    const away = x < a ? a - x : x > b ? x - b : 0;
    if (away < distance) { best = i; distance = away; }
    if (!away && b - a > 2) break;
  }
  return best;
}
