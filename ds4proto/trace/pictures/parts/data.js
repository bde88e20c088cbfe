// What the page carries: counts as JSON, columns and details as zlib'd base64.
const meta = JSON.parse(document.getElementById('meta').textContent);
const byId = (id) => document.getElementById(id);
const PALETTE = ['#3b82c4', '#d97706', '#2f9e62', '#c0467a', '#7b61c9', '#0f9aa8',
  '#b45309', '#6b8e23', '#d1495b', '#5b7083', '#a855b5', '#c7a008'];
const colorOf = (number) => PALETTE[number % PALETTE.length];
const PROBLEM = meta.flags.problem, UNDECODED = meta.flags.undecoded;
const CHUNK = meta.chunk;

async function inflated(id) {
  const text = atob(byId(id).textContent);
  const packed = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) packed[i] = text.charCodeAt(i);
  const stream = new Blob([packed]).stream();
  return new Response(stream.pipeThrough(new DecompressionStream('deflate'))).arrayBuffer();
}

const frames = {count: 0, ordered: true};

async function loadColumns() {
  const data = await inflated('columns');
  const kinds = {f8: Float64Array, u4: Uint32Array, u1: Uint8Array};
  for (const [name, kind, offset, count] of meta.columns) {
    frames[name] = new kinds[kind](data, offset, count);
    frames.count = count;
  }
  const time = frames.time;
  for (let i = 1; i < frames.count; i++) {
    if (time[i] < time[i - 1]) { frames.ordered = false; break; }
  }
}

const cache = new Map();

// [line, fields, problems, head in hex] of one frame; blocks open when needed
async function detailOf(index) {
  const block = Math.floor(index / CHUNK);
  if (!cache.has(block)) {
    if (cache.size > 15) cache.delete(cache.keys().next().value);
    cache.set(block, inflated('details-' + block).then(
      (data) => JSON.parse(new TextDecoder().decode(data))));
  }
  return (await cache.get(block))[index % CHUNK];
}

// first index whose time is not below t
function lowerBound(values, t) {
  let low = 0, high = values.length;
  while (low < high) {
    const mid = (low + high) >> 1;
    if (values[mid] < t) low = mid + 1; else high = mid;
  }
  return low;
}

// the frame that begins at an offset of one direction of a connection, or -1
function frameAtPlace(stream, back, offset) {
  for (let i = 0; i < frames.count; i++) {
    if (frames.offset[i] === offset && frames.stream[i] === stream &&
      Boolean(frames.flags[i] & meta.flags.reverse) === back) return i;
  }
  return -1;
}

function sizeText(count) {
  if (count < 10000) return count + ' B';
  let value = count;
  for (const unit of ['KiB', 'MiB', 'GiB']) {
    value /= 1024;
    if (value < 1000 || unit === 'GiB') return value.toFixed(1) + ' ' + unit;
  }
  return count + ' B';
}

function timeText(seconds, step) {
  const digits = step >= 1 ? 1 : step >= 1e-3 ? 4 : 6;
  return seconds.toFixed(digits) + ' s';
}

const nodeName = (lane) => meta.nodes[lane] ? meta.nodes[lane].name : '?';
const typeName = (number) => meta.types[number] ? meta.types[number].name : '?';
const shortType = (number) => typeName(number).replace(/^DS4.\./, '');

// what all parts of the page share
const state = {begin: 0, end: 1, chosen: -1, hidden: new Set(), ink: {}, draws: []};
const redraw = () => {
  if (state.waiting) return;
  state.waiting = true;
  requestAnimationFrame(() => {
    state.waiting = false;
    for (const draw of state.draws) draw();
  });
};

function readInk() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ['paper', 'panel', 'ink', 'dim', 'line', 'mark', 'select', 'bad',
    'grid', 'busy', 'wait']) {
    state.ink[name] = style.getPropertyValue('--' + name).trim();
  }
}

// a canvas as sharp as the screen; returns [context, width, height] in CSS pixels
function surface(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  if (height) canvas.style.height = height + 'px';
  const box = canvas.getBoundingClientRect();
  const width = Math.max(50, Math.floor(box.width)), tall = Math.max(20, Math.floor(box.height));
  if (canvas.width !== width * ratio || canvas.height !== tall * ratio) {
    canvas.width = width * ratio;
    canvas.height = tall * ratio;
  }
  const context = canvas.getContext('2d');
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.fillStyle = state.ink.paper;
  context.fillRect(0, 0, width, tall);
  context.font = '12px system-ui, sans-serif';
  context.textBaseline = 'middle';
  return [context, width, tall];
}

function fitted(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  let cut = text;
  while (cut.length > 1 && context.measureText(cut + '…').width > width) cut = cut.slice(0, -1);
  return cut + '…';
}
